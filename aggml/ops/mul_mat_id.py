"""Products with one of several matrices, chosen for each column: a mixture of experts.

Here: shapes, types, checks. Not here: kernels (native/lower/mul_mat/mul_mat_id.c), which check the
indices.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec

from aggml.ops._common import (
    DOT_TYPES,
    F32,
    I32,
    all_tensors,
    gaps,
    mismatch,
    product_of,
    refuse_type,
    wider,
)
from aggml.tensor import Tensor, new_node

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["mul_mat_id"]

P = ParamSpec("P")


def _also_as(builder: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let ``as_`` be given by its C name, a keyword of Python: ``f(**{"as": w})``."""

    @functools.wraps(builder)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if "as" in kwargs:
            if "as_" in kwargs:
                raise TypeError(f"{builder.__name__}() got both 'as' and 'as_'")
            kwargs["as_"] = kwargs.pop("as")
        return builder(*args, **kwargs)

    return call


@_also_as
def mul_mat_id(as_: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Multiply each column of ``b`` with the matrix that its index names (``ggml_mul_mat_id``).

    Args:
        as_: [k, m, experts] of any float or quantized type, rows without gaps, not transposed. Its
            name in C, ``as``, can be given in a mapping: ``mul_mat_id(**{"as": w, ...})``.
        b: [k, n, tokens], rows without gaps, of f32 or of the type that `mul_mat` converts rows to;
            n divides ``used``.
        ids: i32 [used, tokens] of indices into dimension 2 of ``as_``. A negative one gives zeros
            (ggml leaves such a row as it was); one too large fails the computation before anything
            is written.

    Returns:
        f32 [m, used, tokens]; column i of a token is computed from column ``i % n`` of ``b``.

    Raises:
        LayoutMismatch: extents do not fit, ``as_`` is transposed, or rows have gaps.
        Unsupported: types for which there is no product.
    """
    op = "mul_mat_id"
    if as_.__class__ is not Tensor or b.__class__ is not Tensor or ids.__class__ is not Tensor:
        all_tensors(op, as_=as_, b=b, ids=ids)
    k, m, _, a3 = as_.ne
    kb, n, tokens, b3 = b.ne
    used, id_tokens, i2, i3 = ids.ne
    if ids.dtype is not I32:
        raise refuse_type(op, "ids of i32", as_=as_, b=b, ids=ids)
    if k != kb or (a3, b3, i2, i3) != (1, 1, 1, 1):
        raise mismatch(
            op,
            "expected as_ [k, m, experts], b [k, n, tokens], ids [used, tokens]",
            as_=as_,
            b=b,
            ids=ids,
        )
    if tokens != id_tokens or (used % n if n else used):
        raise mismatch(op, f"ids must be [a multiple of {n}, {tokens}]", as_=as_, b=b, ids=ids)
    if as_.nb[0] > as_.nb[1]:
        raise mismatch(
            op, "as_ is transposed: pass the original, or ops.cont(as_)", as_=as_, b=b, ids=ids
        )
    if b.dtype is not F32 or as_.dtype is not F32:
        dot = DOT_TYPES.get(as_.dtype)
        if dot is None or (b.dtype is not F32 and b.dtype is not dot):
            raise refuse_type(op, product_of(dot), as_=as_, b=b, ids=ids)
    if as_.nb[0] != as_.dtype.type_size or b.nb[0] != b.dtype.type_size:
        raise gaps(op, as_=as_, b=b)
    return new_node(
        op, F32, (m, used, tokens, 1), (as_, b, ids), ndim=wider(as_, b, max(ids.ndim, 2))
    )
