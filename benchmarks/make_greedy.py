"""Makes tests/examples/reference_greedy.json: the tokens that llama.cpp takes greedily.

Run by hand (``python -m benchmarks.make_greedy``) where llama-cpp-python is installed, when the
models of tests/examples/llama_files.py change. Not here: the comparison
(tests/examples/test_generate_greedy.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.llamacpp import Session

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
PROMPTS: Final = ([1, 40, 270, 281, 265, 277], [1, 290], [1, *range(60, 100)])
N: Final = 64


def main() -> None:
    sys.path.append(str(TESTS))
    from examples import llama_files

    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("f32", "q8_0"):
            tensors = llama_files.decided(dtype)
            path = llama_files.write(Path(folder, "model.gguf"), tensors=tensors, dtype=dtype)
            session = Session(str(path), threads=1, ctx=512, packing="none")
            for prompt in PROMPTS:
                ids: list[int] = []
                session.clear()
                session.decode(prompt, range(len(prompt)), [0] * len(prompt), 1)
                for position in range(len(prompt), len(prompt) + N):
                    ids.append(int(np.argmax(session.logits())))
                    session.decode(ids[-1:], [position], [0], 1)
                taken.append({"dtype": dtype, "prompt": prompt, "ids": ids})
    by = f"llama-cpp-python {version('llama-cpp-python')}"
    path = TESTS / "examples" / "reference_greedy.json"
    path.write_text(json.dumps({"by": by, "taken": taken}) + "\n", encoding="ascii")
    print(f"{len(taken)} sequences of {N} tokens, by {by}")


if __name__ == "__main__":
    main()
