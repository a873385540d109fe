"""The choice of a token: penalize changes some logits of each row, sample draws one of the best.

Here: shapes, types, checks. Not here: kernels (native/lower/sample.c), which devices repeat bit by
bit, so that the same numbers give the same token everywhere; finding the best (sort.py). ggml has
no such ops.
"""

from __future__ import annotations

from aggml.dtype import DType
from aggml.ops._common import F32, I32, all_tensors, mismatch, refuse_type
from aggml.tensor import Tensor, new_node

__all__ = ["penalize", "sample"]

_MOST = 1 << 20  # candidates: weights of 2^42 at most, which have to add up to less than 2^64


def _check(op: str, a: Tensor, ids: Tensor, how: Tensor, *, rows_of_how: int) -> None:
    if a.dtype is not F32 or ids.dtype is not I32:
        raise refuse_type(op, "a of f32, ids of i32", a=a, ids=ids, how=how)
    if not a.is_matrix or a.ne[0] > 0x7FFFFFFF:
        raise mismatch(op, "a must be a matrix, with rows of less than 2^31 elements", a=a)
    if ids.ne[1:] != a.ne[1:]:
        raise mismatch(op, f"ids must be [k, {a.ne[1]}], a row for each row of a", a=a, ids=ids)
    if how.ne[1] * how.ne[2] != rows_of_how or how.ne[3] != 1:
        raise mismatch(op, f"how must be [n, {rows_of_how}]", a=a, ids=ids, how=how)


def sample(a: Tensor, ids: Tensor, how: Tensor) -> Tensor:
    """Draw an index of each row, among the best ones.

    Of the ``ids``: the first ``top_k``; of those the fewest whose probabilities reach ``top_p``; of
    those the ones at least ``min_p`` times as probable as the first. One of them is drawn by its
    probability at ``temperature``: the first at which the sum of the probabilities so far exceeds
    ``draw``. Probabilities are counted in integers, so the order of a sum does not matter.

    Args:
        a: f32 [n, rows] of any strides, the logits.
        ids: i32 [k, rows] of any strides, indices of the best of each row, the best first, as
            `top_k` gives them; k is 1 to 2^20. Those outside of ``a`` are never drawn.
        how: f64 [5, rows], rows without gaps: temperature (0 takes the first), top_k (0: all),
            top_p, min_p, and draw, at least 0 and below 1.

    Returns:
        i32 [rows].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or ids.__class__ is not Tensor or how.__class__ is not Tensor:
        all_tensors("sample", a=a, ids=ids, how=how)
    _check("sample", a, ids, how, rows_of_how=a.ne[1])
    if how.dtype is not DType.F64:
        raise refuse_type("sample", "how of f64", a=a, ids=ids, how=how)
    if how.ne[0] != 5 or how.ne[2] != 1 or how.nb[0] != 8:
        raise mismatch("sample", "how must have five numbers for each row of a", a=a, how=how)
    if not 1 <= ids.ne[0] <= _MOST:
        raise mismatch("sample", f"a row of ids must have 1 to {_MOST} elements", ids=ids)
    return new_node("sample", I32, (a.ne[1], 1, 1, 1), (a, ids, how), ndim=1)


def penalize(a: Tensor, ids: Tensor, how: Tensor) -> Tensor:
    """Change some elements of each row; the others stay as they are.

    An element x becomes x * (up if x is above 0, else down) + bias - fall - step, rounded after
    each operation: penalties for repetition, frequency and presence.

    Args:
        a: f32 [n, rows] of any strides, the logits.
        ids: i32 [m, rows] of any strides, the elements that change, none of a row twice. Those
            outside of ``a`` change nothing: -1 fills a row.
        how: f32 [m, 5, rows], rows without gaps: up, down, bias, fall and step of each.

    Returns:
        f32 [n, rows].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or ids.__class__ is not Tensor or how.__class__ is not Tensor:
        all_tensors("penalize", a=a, ids=ids, how=how)
    _check("penalize", a, ids, how, rows_of_how=5 * a.ne[1])
    if how.dtype is not F32:
        raise refuse_type("penalize", "how of f32", a=a, ids=ids, how=how)
    if how.ne[0] != ids.ne[0] or how.ne[1] != 5 or how.nb[0] != 4:
        raise mismatch("penalize", "how must have five numbers for each id", ids=ids, how=how)
    return new_node("penalize", F32, a.ne, (a, ids, how))
