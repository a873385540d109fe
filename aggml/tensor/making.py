"""Making tensors: leafs, nodes with storage of their own, views.

Here: the functions that `new_tensor` and the builders of `aggml.ops` call. The budget is 5 us a
node, so C fills the slots (native/binding/tensors.cpp). Not here: what the operations mean (ops/).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Final, SupportsIndex

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument, InvalidHandle, OutOfBounds
from aggml.native import _native
from aggml.tensor.layout import (
    MAX_BYTES,
    MAX_DIMS,
    MAX_NAME,
    Extents,
    check_size,
    check_view,
    checked_name,
    cut,
    describe,
    span,
)
from aggml.tensor.tensor import Tensor

__all__ = [
    "MAX_SRC",
    "NO_PARAMS",
    "new_like",
    "new_node",
    "new_permuted",
    "new_tensor",
    "new_view",
]

MAX_SRC: Final = 10
NO_PARAMS: Final = bytes(64)


def new_tensor(
    dtype: DTypeLike,
    ne: SupportsIndex | Sequence[SupportsIndex],
    name: str = "",
) -> Tensor:
    """Make a leaf: a tensor without operation and, so far, without memory (``ggml_new_tensor``).

    Args:
        dtype: a DType, its name (case ignored), or the numpy type of a plain one.
        ne: one to four extents in ggml's order, ``ne[0]`` innermost; 0 makes an empty tensor. Each
            extent given is an axis of the tensor, also if it is 1.
        name: for messages; at most 63 bytes of UTF-8.

    Raises:
        InvalidArgument: no such type; a longer name; not 1 to 4 extents, a negative one, or more
            bytes than any machine has; ``ne[0]`` is not a multiple of the type's block.
        InvalidHandle: an argument of the wrong kind.
    """
    element = dtype if isinstance(dtype, DType) else DType.parse(dtype)
    try:
        given = tuple(map(index, ne)) if isinstance(ne, Sequence) else (index(ne),)
    except TypeError:
        raise InvalidHandle(f"[new_tensor] ne = {ne!r}: give 1 to 4 integers") from None
    if not 1 <= len(given) <= MAX_DIMS:
        raise InvalidArgument(f"[new_tensor] ne = {given} has {len(given)} extents, not 1 to 4")
    if min(given) < 0:
        raise InvalidArgument(f"[new_tensor] ne = {given} has a negative extent")
    extents: Extents = (*given, 1, 1, 1)[:4]  # type: ignore[assignment]
    return new_node(
        "none", element, extents, (), NO_PARAMS, checked_name(name, "new_tensor"), len(given)
    )


def new_node(
    op: str,
    dtype: DType,
    ne: Extents,
    src: tuple[Tensor | None, ...],
    op_params: bytes = NO_PARAMS,
    name: str = "",
    ndim: int = 0,
) -> Tensor:
    """Make a tensor with storage of its own; for builders, which have checked all but the size.

    Args:
        op: name of the operation.
        dtype: of the result.
        ne: extents of the result.
        src: the operands.
        op_params: 64 bytes.
        name: of the result.
        ndim: axes of the result; 0: those of the first source. Never less than ``ne`` needs.

    Raises:
        InvalidArgument: ``ne[0]`` is not a multiple of the block, or the tensor is too large.
    """
    return _maker.node(op, dtype, ne, src, op_params, name, ndim)  # type: ignore[no-any-return]


def new_view(
    op: str,
    a: Tensor,
    ne: Extents,
    nb: Extents,
    offset: int,
    src: tuple[Tensor | None, ...],
    op_params: bytes = NO_PARAMS,
    name: str = "",
    ndim: int = 0,
) -> Tensor:
    """Make a tensor over the bytes of ``a``, from ``offset`` bytes after its first element on.

    Args:
        op: name of the operation.
        a: the tensor whose bytes are shown.
        ne: extents of the view.
        nb: strides of the view.
        offset: bytes from the first element of ``a``.
        src: the operands.
        op_params: 64 bytes.
        name: of the view.
        ndim: axes of the view; 0: those of ``a``. Never less than ``ne`` needs.

    Raises:
        InvalidArgument: a negative extent, stride or offset; ``ne[0]`` is not a multiple of the
            block.
        Misaligned: offset or stride is not a multiple of the type's size.
        OutOfBounds: the view ends beyond the storage.
    """
    dtype = a.dtype
    root = a.view_src or a
    start = a.view_offs + offset
    if ne != a.ne or nb != a.nb or offset:
        check_view(op, a, ne, nb, offset)
        nbytes = span(dtype, ne, nb)
        if start + nbytes > root.nbytes:
            raise OutOfBounds(
                f"[{op}] ne {list(ne)} with nb {list(nb)} at byte {start} takes {nbytes} bytes, "
                f"the storage of {describe(a)} has {root.nbytes}"
            )
    else:
        nbytes = a.nbytes
    if len(name) > MAX_NAME // 4:
        name = cut(name)
    return _maker.view(  # type: ignore[no-any-return]
        op, a, ne, nb, nbytes, start, src, op_params, name, ndim or a.ndim
    )


def new_permuted(
    op: str,
    a: Tensor,
    ne: Extents,
    nb: Extents,
    src: tuple[Tensor],
    op_params: bytes,
    name: str,
    ndim: int,
) -> Tensor:
    """Make a tensor that shows all bytes of ``a`` in another order or with other extents.

    No check is needed: the span stays the same.
    """
    if len(name) > MAX_NAME // 4:
        name = cut(name)
    return _maker.view(  # type: ignore[no-any-return]
        op, a, ne, nb, a.nbytes, a.view_offs, src, op_params, name, ndim
    )


def new_like(
    a: Tensor, op: str, src: tuple[Tensor | None, ...], view_src: Tensor | None = None
) -> Tensor:
    """Make a tensor of the same layout, parameters, flags and name, over other sources.

    For code that rewrites a graph, which itself never changes. The result is frozen, like the
    tensors of a graph.

    Args:
        a: the tensor that it is like.
        op: its operation.
        src: the operands.
        view_src: the tensor whose bytes it shows, at the offset of ``a``; None: it has a storage of
            its own.
    """
    return _maker.like(a, op, src, view_src)  # type: ignore[no-any-return]


def _refuse(op: str, dtype: DType, ne: Extents, src: tuple[object, ...]) -> None:
    """Raise for extents of which there is no tensor; those without elements pass."""
    what = op if src else "new_tensor"
    if ne[0] % dtype.blck_size:
        raise InvalidArgument(
            f"[{what}] ne[0] = {ne[0]} is not a multiple of the block of {dtype.blck_size} of "
            f"{dtype.type_name}"
        )
    check_size(what, dtype, ne)


_maker = _native.Maker(
    Tensor, [(dtype, dtype.blck_size, dtype.type_size) for dtype in DType], MAX_BYTES, _refuse
)
