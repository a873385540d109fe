"""Makes tests/models/reference_imatrix.npz: sums of squares and logits of llama.cpp.

For files of random weights: of each matrix the sums of what its columns are multiplied by, seen by
a callback of llama.cpp's evaluation, and the logarithms of the probabilities of a text's tokens.
Run by hand (``python -m benchmarks.make_imatrix``) where llama-cpp-python is installed. Not here:
the comparison (tests/models/test_measuring.py).
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.ggml import GGML
from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
DIMS: Final = 4


class _Tensor(ctypes.Structure):
    """``struct ggml_tensor``."""


_Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * DIMS),
    ("nb", ctypes.c_size_t * DIMS), ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32), ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
]  # fmt: skip


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor in host memory."""
    size = max(tensor.nb[i] * tensor.ne[i] for i in range(DIMS))
    raw = (ctypes.c_char * size).from_address(tensor.data)
    kind = np.float32 if tensor.type == 0 else np.int32
    return np.ndarray(tuple(tensor.ne)[::-1], kind, raw, strides=tuple(tensor.nb)[::-1])


def recorded(path: str, chunks: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Sums and counts by matrix, and log-probabilities (chunks, scored tokens, vocabulary)."""
    c: Any = module("llama_cpp")
    ggml: Any = GGML().base
    ggml.ggml_op_name.restype = ctypes.c_char_p
    found: dict[str, Any] = {}

    def see(pointer: int, ask: bool, _: Any) -> bool:
        node = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
        op = ggml.ggml_op_name(node.op).decode()
        if op not in ("MUL_MAT", "MUL_MAT_ID"):
            return not ask
        matrix, x = node.src[0].contents, node.src[1].contents
        name = matrix.name.decode()
        wanted = name == "output.weight" or (name.startswith("blk.") and name.endswith(".weight"))
        if ask:
            return bool(wanted and x.type == 0 and (op == "MUL_MAT_ID" or x.ne[1] >= 16))
        squares = _array(x).astype(np.float64) ** 2
        if op == "MUL_MAT_ID":
            ids = _array(node.src[2].contents)[0, 0]
            made = np.zeros((matrix.ne[2], x.ne[0])), np.zeros(matrix.ne[2])
            sums, counts = found.setdefault(name, made)
            for token, experts in enumerate(ids):
                for i, expert in enumerate(experts):
                    sums[expert] += squares[0, token, i % squares.shape[2]]
                    counts[expert] += 1
            return True
        planes = matrix.ne[2] * matrix.ne[3]
        sums, counts = found.setdefault(name, (np.zeros((planes, x.ne[0])), np.zeros(1)))
        for i3 in range(x.ne[3]):
            for i2 in range(x.ne[2]):
                at = (i3 % matrix.ne[3]) * matrix.ne[2] + i2 % matrix.ne[2]
                sums[at] += squares[i3, i2].sum(axis=0)
        counts += x.ne[1] * x.ne[2] * x.ne[3] / planes
        return True

    n = chunks.shape[1]
    c.llama_backend_init()
    about = c.llama_model_default_params()
    about.use_extra_bufts = False
    model = c.llama_model_load_from_file(path.encode(), about)
    more = c.llama_context_default_params()
    more.n_ctx = more.n_batch = more.n_ubatch = n
    more.n_threads = more.n_threads_batch = 1
    callback = c.ggml_backend_sched_eval_callback(see)
    more.cb_eval = callback
    context = c.llama_init_from_model(model, more)
    size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    rows = []
    for ids in chunks:
        c.llama_memory_clear(c.llama_get_memory(context), True)
        batch = c.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(ids.tolist()):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        assert c.llama_decode(context, batch) == 0
        logits = np.ctypeslib.as_array(c.llama_get_logits(context), (n, size))[n // 2 : n - 1]
        logits = logits.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        rows.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        c.llama_batch_free(batch)
    kept = {f"{name}.sums": sums.astype(np.float32) for name, (sums, _) in found.items()}
    kept |= {f"{name}.counts": counts.astype(np.int32) for name, (_, counts) in found.items()}
    return kept | {"lp": np.stack(rows).astype(np.float32)}


def main() -> None:
    sys.path.append(str(TESTS))
    from models import random_models, test_measuring

    chunks = np.array(test_measuring.chunks(), np.int32)
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in test_measuring.LAYOUTS:
            path = str(random_models.write(Path(folder, f"{name}.gguf"), name))
            for key, value in recorded(path, chunks).items():
                arrays[f"{name}/{key}"] = value
    np.savez_compressed(TESTS / "models" / "reference_imatrix.npz", **arrays)


if __name__ == "__main__":
    main()
