"""Reductions: sums, means, the index of the largest element, counts, a loss; running sums.

Here: shapes, types, checks. Not here: kernels (native/lower/reduce.c); sorting (sort.py).
"""

from __future__ import annotations

from aggml.ops._common import F32, FLOATS, I32, I64, all_tensors, mismatch, need_rows, refuse_type
from aggml.tensor import Tensor, new_node

__all__ = ["argmax", "count_equal", "cross_entropy_loss", "cumsum", "mean", "sum", "sum_rows"]


def sum(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """The sum of all elements (``ggml_sum``).

    Args:
        a: any extents and strides, f32, f16 or bf16.

    Returns:
        [1] of the type of ``a``, summed in double; 0 if ``a`` is empty.

    Raises:
        Unsupported: the type of ``a``.
    """
    if a.__class__ is not Tensor:
        all_tensors("sum", a=a)
    if a.dtype not in FLOATS:
        raise refuse_type("sum", "f32, f16 or bf16", a=a)
    return new_node("sum", a.dtype, (1, 1, 1, 1), (a,))


def _rows(op: str, a: Tensor) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    return new_node(op, F32, (1, *a.ne[1:]), (a,))


def sum_rows(a: Tensor) -> Tensor:
    """The sum of each row (``ggml_sum_rows``).

    Args:
        a: f32 [n, r, s, t] of any strides.

    Returns:
        f32 [1, r, s, t].

    Raises:
        Unsupported: ``a`` is not f32.
    """
    return _rows("sum_rows", a)


def mean(a: Tensor) -> Tensor:
    """The mean of each row; NaN for an empty row; else as `sum_rows` (``ggml_mean``)."""
    return _rows("mean", a)


def argmax(a: Tensor) -> Tensor:
    """The index of the largest element of each row, the last of equal ones (``ggml_argmax``).

    Args:
        a: f32 [n, r] of any strides; NaN is ignored.

    Returns:
        i32 [r].

    Raises:
        LayoutMismatch: ``a`` has more than two dimensions.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("argmax", a=a)
    if not a.is_matrix or a.ne[0] > 0x7FFFFFFF:
        raise mismatch("argmax", "a is no matrix of rows below 2^31", a=a)
    if a.dtype is not F32:
        raise refuse_type("argmax", "f32", a=a)
    return new_node("argmax", I32, (a.ne[1], 1, 1, 1), (a,))


def count_equal(a: Tensor, b: Tensor) -> Tensor:
    """How many elements of ``a`` and ``b`` are equal (``ggml_count_equal``).

    Args:
        a: i32 of any extents and strides.
        b: the same type and extents.

    Returns:
        i64 [1].

    Raises:
        LayoutMismatch: the extents differ.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("count_equal", a=a, b=b)
    if a.ne != b.ne:
        raise mismatch("count_equal", "a and b must have the same extents", a=a, b=b)
    if a.dtype is not I32 or b.dtype is not I32:
        raise refuse_type("count_equal", "i32", a=a, b=b)
    return new_node("count_equal", I64, (1, 1, 1, 1), (a, b))


def cumsum(a: Tensor) -> Tensor:
    """The running sums of each row, each element included (``ggml_cumsum``).

    Args:
        a: f32 [n, r, s, t] of any strides.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("cumsum", a=a)
    if a.dtype is not F32:
        raise refuse_type("cumsum", "f32", a=a)
    return new_node("cumsum", F32, a.ne, (a,))


def cross_entropy_loss(a: Tensor, b: Tensor) -> Tensor:
    """``-sum(b * log(soft_max(a)))`` divided by the rows (``ggml_cross_entropy_loss``).

    Args:
        a: f32 logits [n, r, s, t], rows without gaps.
        b: f32 labels of the same extents, likewise; those of a row should add up to 1.

    Returns:
        f32 [1].

    Raises:
        LayoutMismatch: extents differ, or gaps within rows.
        Unsupported: other types.
    """
    op = "cross_entropy_loss"
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if a.ne != b.ne:
        raise mismatch(op, "a and b must have the same extents", a=a, b=b)
    if a.dtype is not F32 or b.dtype is not F32:
        raise refuse_type(op, "f32", a=a, b=b)
    need_rows(op, "a", a)
    need_rows(op, "b", b)
    return new_node(op, F32, (1, 1, 1, 1), (a, b))
