"""Records what llama.cpp gives for random vocabularies, for tests/models.

Run by hand (``python -m benchmarks.make_vocabularies``) where llama-cpp-python is installed, when
tests/models/random_vocabularies.py changes. Not here: the comparison
(tests/models/test_recorded_vocabularies.py), new vocabularies each time
(tests/fuzz/gguf_vocabularies.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import need

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
PROGRAMS: Final = 48
SEED: Final = 20


def main() -> None:
    sys.path.append(str(TESTS))
    need("llama_cpp")
    from fuzz.gguf_vocabularies import expected
    from fuzz.rounds import draw
    from models.random_vocabularies import a_text, a_vocabulary, write

    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(PROGRAMS):
            r = draw(SEED, k)
            metadata = a_vocabulary(r)
            texts = [a_text(r, metadata) for _ in range(3)]
            wanted = expected(write(Path(folder, "vocabulary.gguf"), metadata), texts)
            found.append({"metadata": metadata, "texts": texts, "wanted": wanted})
    path = TESTS / "models" / "recorded_vocabularies.json"
    path.write_text("[" + ",\n".join(map(json.dumps, found)) + "]\n", encoding="ascii")
    print(f"{len(found)} vocabularies")


if __name__ == "__main__":
    main()
