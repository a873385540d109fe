"""Makes tests/models/reference/: the logits of llama.cpp for files of random weights.

Run by hand (``python -m benchmarks.make_logits [LAYOUT ...]``) where llama-cpp-python is installed,
when the layouts of tests/models/random_models.py change. Not here: the comparison (tests/models/).
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
FOLLOWED: Final = 64  # greedy tokens of llama.cpp after the prompt


def vectors(path: str, texts: list[list[int]], name: str) -> np.ndarray[Any, Any]:
    """The pooled vector of each text alone."""
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


def _logits(path: str, ids: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """The logits after the last tokens of a prompt, and the tokens that follow it."""
    session = Session(path, threads=1, ctx=512, packing="none")
    session.decode(ids, range(len(ids)), [0] * len(ids), len(ids))
    rows = [session.logits(i) for i in range(len(ids) - 8, len(ids))]
    taken = []
    for position in range(len(ids), len(ids) + FOLLOWED):
        taken.append(int(np.argmax(session.logits())))
        session.decode(taken[-1:], [position], [0], 1)
    print(path, taken[:8])
    return {"logits": np.stack(rows).astype(np.float32), "ids": np.array(taken, np.int32)}


def _late(path: str, ids: list[int]) -> np.ndarray[Any, Any]:
    """The logits after the last tokens of a long prompt.

    The last batch is a full one: llama.cpp adds values up in f16 where a batch has few tokens.
    """
    session = Session(path, threads=1, ctx=len(ids) + 256, packing="none")
    cuts = [0, *range(len(ids) % 512, len(ids) + 1, 512)]
    last = 0
    for first, end in pairwise(cuts):
        last = end - first
        session.decode(ids[first:end], range(first, end), [0] * last, min(8, last))
    return np.stack([session.logits(i) for i in range(last - 8, last)])


def main() -> None:
    sys.path.append(str(TESTS))
    from models import random_models

    names = sys.argv[1:] or [*random_models.LAYOUTS, *random_models.ENCODERS]
    random_models.REFERENCE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = str(random_models.write(Path(folder, f"{name}.gguf"), name))
            if name in random_models.LAYOUTS:
                found = _logits(path, random_models.prompt())
                if name in random_models.LATE:
                    found["late"] = _late(path, random_models.prompt(random_models.LATE[name]))
            else:
                found = {"vectors": vectors(path, random_models.texts(), name)}
            np.savez_compressed(
                random_models.REFERENCE / f"{name}.npz", allow_pickle=False, **found
            )


if __name__ == "__main__":
    main()
