"""The cases of the kernel benchmarks, which every contender understands, and their data.

A case is a dict, so it can be sent to another process. Its data follow from its seed; quantized
weights come from a file. Not here: the contenders, which compute the cases.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

Case = dict[str, Any]
F32 = np.ndarray[Any, np.dtype[np.float32]]

BASE_ROWS: Final = 64
"""Weights are so many random rows, again and again: quantizing them all would take minutes."""


def mul_mat(dtype: str, m: int, n: int, k: int, copies: int = 1) -> Case:
    """Weights [k, m] times activations [k, n], ``copies`` times, each with other weights."""
    return {"op": "mul_mat", "dtype": dtype, "m": m, "n": n, "k": k, "copies": copies}


def attention(dtype: str, head: int, *, causal: bool, tokens: int = 512) -> Case:
    """Attention of queries to all keys, or to earlier ones; all heads together have 2048 values."""
    heads = 2048 // head
    return {
        "op": "attention", "dtype": dtype, "head": head, "heads": heads, "tokens": tokens,
        "causal": causal,
    }  # fmt: skip


def context(
    dtype: str, heads: int, kv_heads: int, head: int, keys: int, sequences: int = 1
) -> Case:
    """One query of each sequence sees all keys of its cache, whose rows hold all heads."""
    return {
        "op": "context", "dtype": dtype, "heads": heads, "kv_heads": kv_heads, "head": head,
        "keys": keys, "sequences": sequences,
    }  # fmt: skip


def elementwise(op: str, *ne: int) -> Case:
    """``op`` ("soft_max", "rms_norm" or "rope") on one tensor."""
    return {"op": op, "ne": list(ne)}


def operations(case: Case) -> float:
    """The multiplications and additions needed; causal attention needs half of all."""
    if case["op"] == "mul_mat":
        return float(2 * case["m"] * case["n"] * case["k"] * case["copies"])
    if case["op"] == "attention":
        pairs = case["tokens"] * (case["tokens"] + 1) / 2 if case["causal"] else case["tokens"] ** 2
        return float(4 * pairs * case["head"] * case["heads"])
    if case["op"] == "context":
        return float(4 * case["keys"] * case["sequences"] * case["heads"] * case["head"])
    return float(math.prod(case["ne"]))


def floats(seed: int, *shape: int) -> F32:
    """Standard normal numbers, the same for every contender."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def base_rows(case: Case) -> F32:
    """The rows that weights are made of, (BASE_ROWS, k)."""
    return floats(1, BASE_ROWS, case["k"])


def repeated(rows: np.ndarray[Any, Any], m: int) -> np.ndarray[Any, Any]:
    """``m`` rows: ``rows``, repeated."""
    return np.ascontiguousarray(np.tile(rows, (-(-m // len(rows)), 1))[:m])


def activations(case: Case) -> F32:
    """The activations of a product, (n, k)."""
    return floats(2, case["n"], case["k"])


def heads(case: Case) -> tuple[F32, F32, F32]:
    """q, k, v, each (heads, tokens, head)."""
    shape = (case["heads"], case["tokens"], case["head"])
    return floats(3, *shape), floats(4, *shape), floats(5, *shape)


def queries(case: Case) -> F32:
    """The queries of "context", (sequences, heads, 1, head)."""
    return floats(3, case["sequences"], case["heads"], 1, case["head"])


def cache_rows(case: Case) -> F32:
    """The rows that the keys of "context" are made of, then those of the values."""
    return floats(4, 2 * BASE_ROWS, case["kv_heads"] * case["head"])


def filled(rows: np.ndarray[Any, Any], case: Case) -> np.ndarray[Any, Any]:
    """A whole cache made of these rows, (sequences, keys, ...)."""
    one = repeated(rows, case["keys"])
    return np.ascontiguousarray(np.broadcast_to(one, (case["sequences"], *one.shape)))


def mask(case: Case) -> np.ndarray[Any, np.dtype[np.float16]]:
    """The causal mask, (queries, keys): 0 or -inf."""
    seen = np.tri(case["tokens"], dtype=bool)
    return np.where(seen, np.float16(0), np.float16(-np.inf))


def scale(case: Case) -> float:
    """The factor of the attention scores."""
    return 1 / math.sqrt(case["head"])


def values(case: Case) -> F32:
    """The input of an elementwise case, in numpy order."""
    return floats(6, *reversed(case["ne"]))


EPS: Final = 1e-5
SAMPLE: Final = 512  # so many results, the first ones, are compared
