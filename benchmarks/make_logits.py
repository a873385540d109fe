"""Makes tests/models/reference_logits.npz: the logits of llama.cpp for files of random weights.

Run by hand (``python -m benchmarks.make_logits``) where llama-cpp-python is installed, when the
layouts of tests/models/random_models.py change. Not here: the comparison (tests/models/).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
FOLLOWED: Final = 24  # tokens that llama.cpp takes greedily after the prompt


def _vectors(path: str, texts: list[list[int]], name: str) -> np.ndarray[Any, Any]:
    """Pooled vectors, each of a text alone."""
    pooling = {"bert-cls": 2, "bert-rank": 2}.get(name, 1)
    session = Session(path, threads=1, ctx=512, packing="none", embeddings=True, pooling=pooling)
    rows = []
    for ids in texts:
        session.decode(ids, range(len(ids)), [0] * len(ids), len(ids))
        found = session.c.llama_get_embeddings_seq(session.context, 0)
        width = session.c.llama_model_n_embd(session.model)
        rows.append(np.ctypeslib.as_array(found, shape=(width,)).copy())
        session.clear()
    return np.stack(rows)


def main() -> None:
    sys.path.append(str(TESTS))
    from models import random_models

    found: dict[str, Any] = {}
    ids = random_models.prompt()
    with tempfile.TemporaryDirectory() as folder:
        for name in random_models.LAYOUTS:
            path = random_models.write(Path(folder, f"{name}.gguf"), name)
            session = Session(str(path), threads=1, ctx=512, packing="none")
            session.decode(ids, range(len(ids)), [0] * len(ids), len(ids))
            rows = [session.logits(i) for i in range(len(ids))]
            taken = []
            for position in range(len(ids), len(ids) + FOLLOWED):
                taken.append(int(np.argmax(session.logits())))
                session.decode(taken[-1:], [position], [0], 1)
            found[f"{name}:logits"] = np.stack(rows[-8:]).astype(np.float32)
            found[f"{name}:ids"] = np.array(taken, np.int32)
            print(name, taken[:8])
        for name in random_models.ENCODERS:
            path = random_models.write(Path(folder, f"{name}.gguf"), name)
            found[f"{name}:vectors"] = _vectors(str(path), random_models.texts(), name)
            print(name)
    path = TESTS / "models" / "reference_logits.npz"
    np.savez_compressed(path, allow_pickle=False, **found)


if __name__ == "__main__":
    main()
