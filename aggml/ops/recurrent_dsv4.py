"""The ops of DeepSeek V3.2 and V4: lightning_indexer, and hyper-connections (dsv4_hc_*).

Here: shapes, types, checks. Not here: kernels (native/*/recurrent_dsv4.c).
"""

from __future__ import annotations

import math
import struct

from aggml.dtype import DType
from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F16,
    F32,
    FLOATS,
    all_tensors,
    mismatch,
    need_f32_rows,
    need_rows,
    pack,
    refuse_type,
    whole,
)
from aggml.tensor import Tensor, new_node

__all__ = [
    "dsv4_hc_comb",
    "dsv4_hc_post",
    "dsv4_hc_pre",
    "dsv4_hc_pre_gated",
    "lightning_indexer",
]

_PRE = struct.Struct("<fi56x")
_UNGATED = _PRE.pack(1.0, 0)
_COMB = struct.Struct("<fi56x")
_SUMS_ONLY = frozenset((DType.Q8_1, DType.Q8_K))


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """The score of each key for each query (``ggml_lightning_indexer``).

    The score is the sum over heads of ``weight * relu(q k)``, plus the mask.

    Args:
        q: f32 [d, h, t, s], rows without gaps.
        k: f32, f16, bf16 or quantized [d, 1, n, s], rows without gaps.
        weights: f32 [h, t, 1, s], rows without gaps.
        mask: f16 [n, t, 1, divides s].

    Returns:
        f32 [n, t, 1, s].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    op = "lightning_indexer"
    for operand in (q, k, weights, mask):
        if operand.__class__ is not Tensor:
            all_tensors(op, q=q, k=k, weights=weights, mask=mask)
    dtype = k.dtype
    keys = dtype in FLOATS or (dtype.is_quantized and dtype not in _SUMS_ONLY)
    if q.dtype is not F32 or weights.dtype is not F32 or mask.dtype is not F16 or not keys:
        raise refuse_type(
            op,
            "q and weights of f32, a mask of f16, k of a float or quantized type",
            q=q,
            k=k,
            weights=weights,
            mask=mask,
        )
    d, heads, tokens, sequences = q.ne
    n = k.ne[2]
    if (
        k.ne != (d, 1, n, sequences)
        or weights.ne != (heads, tokens, 1, sequences)
        or mask.ne[:3] != (n, tokens, 1)
        or (sequences % mask.ne[3] if mask.ne[3] else sequences)
    ):
        raise mismatch(
            op,
            "expected k [d, 1, n, s], weights [h, t, 1, s], mask [n, t, 1, a divisor of s] for q "
            "[d, h, t, s]",
            q=q,
            k=k,
            weights=weights,
            mask=mask,
        )
    for name, operand in (("q", q), ("k", k), ("weights", weights)):
        need_rows(op, name, operand)
    return new_node(op, F32, (n, tokens, 1, sequences), (q, k, weights, mask))


def dsv4_hc_comb(
    mixes: Tensor, scale: Tensor, base: Tensor, eps: float = 1e-6, n_iter: int = 20
) -> Tensor:
    """The matrix that mixes n residual streams (``ggml_dsv4_hc_comb``).

    The last n * n mixes, times ``scale[2]``, plus ``base``, go through a softmax of each row; then
    columns and rows are divided by their sums in turn, columns first and last, ``n_iter`` times.

    Args:
        mixes: f32 [(2 + n) * n, t].
        scale: f32 [3].
        base: f32 [(2 + n) * n].
        eps: added to each share and each sum.
        n_iter: how often columns are divided, at least once.

    Returns:
        f32 [n, n, t].

    Raises:
        InvalidArgument: a number out of range.
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "dsv4_hc_comb"
    need_f32_rows(op, mixes=mixes, scale=scale, base=base)
    (times,) = whole(op, n_iter)
    params = pack(op, _COMB, eps, times)
    if times < 1 or not eps >= 0:
        raise InvalidArgument(f"[{op}] eps = {eps}, n_iter = {n_iter}: must be >= 0 and >= 1")
    n = math.isqrt(mixes.ne[0] + 1) - 1
    if not 1 <= n <= 16 or (2 + n) * n != mixes.ne[0] or not mixes.is_matrix:
        raise mismatch(op, "mixes must be [(2 + n) n, t] with n from 1 to 16", mixes=mixes)
    if scale.ne != (3, 1, 1, 1) or base.ne != (mixes.ne[0], 1, 1, 1):
        raise mismatch(
            op,
            f"scale must be [3], and base [{mixes.ne[0]}]",
            mixes=mixes,
            scale=scale,
            base=base,
        )
    ndim = min(mixes.ndim + 1, 4)  # a row becomes a matrix
    return new_node(op, F32, (n, n, mixes.ne[1], 1), (mixes, scale, base), params, ndim=ndim)


def dsv4_hc_pre(x: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of n residual streams (``ggml_dsv4_hc_pre``).

    Args:
        x: f32 [d, n, t], n at least 1.
        weights: f32 [n, t].

    Returns:
        f32 [d, t].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "dsv4_hc_pre"
    need_f32_rows(op, x=x, weights=weights)
    d, n, tokens, outer = x.ne
    if n < 1 or outer != 1 or weights.ne != (n, tokens, 1, 1):
        raise mismatch(op, "weights must be [n, t] for x [d, n, t]", x=x, weights=weights)
    return new_node(op, F32, (d, tokens, 1, 1), (x, weights), _UNGATED)


def dsv4_hc_pre_gated(x: Tensor, gate: Tensor, scale: float = 1.0) -> Tensor:
    """The sum of n residual streams, each element behind a gate (``ggml_dsv4_hc_pre_gated``).

    Element i becomes ``scale`` times the sum over the streams of ``x sigmoid(gate)``.

    Args:
        x: f32 [d, n, t], n at least 1.
        gate: f32 [d, n, t].
        scale: factor of the sum.

    Returns:
        f32 [d, t].

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "dsv4_hc_pre_gated"
    need_f32_rows(op, x=x, gate=gate)
    d, n, tokens, outer = x.ne
    if n < 1 or outer != 1 or gate.ne != x.ne:
        raise mismatch(op, "x and gate must both be [d, n, t]", x=x, gate=gate)
    params = pack(op, _PRE, scale, 1)
    return new_node("dsv4_hc_pre", F32, (d, tokens, 1, 1), (x, gate), params)


def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor | None = None) -> Tensor:
    """Mix n residual streams and add x to each (``ggml_dsv4_hc_post``).

    Stream i becomes ``post[i] x + sum over j of comb[i, j] residual[j]``, comb in order of ne.
    Without ``comb`` each stream keeps its own residual: ``post[i] x + residual[i]``.

    Args:
        x: f32 [d, t].
        residual: f32 [d, n, t], n at least 1.
        post: f32 [n, t].
        comb: f32 [n, n, t], or None.

    Returns:
        f32 [d, n, t].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "dsv4_hc_post"
    operands = {"x": x, "residual": residual, "post": post}
    if comb is not None:
        operands["comb"] = comb
    need_f32_rows(op, **operands)
    d, n, tokens, outer = residual.ne
    if (
        n < 1
        or outer != 1
        or x.ne != (d, tokens, 1, 1)
        or post.ne != (n, tokens, 1, 1)
        or (comb is not None and comb.ne != (n, n, tokens, 1))
    ):
        raise mismatch(
            op,
            "expected x [d, t], post [n, t], comb [n, n, t] or None for residual [d, n, t]",
            **operands,
        )
    return new_node(op, F32, residual.ne, tuple(operands.values()), ndim=residual.ndim)
