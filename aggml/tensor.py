"""Tensor: dtype, extents, strides, the operation it comes from, its sources, the storage it views.

Here: layout, flags, names, the way from a tensor to its bytes. Not here: what the operations mean
(ops/), where bytes come from (allocator.py, buffer.py).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Final, SupportsIndex

from aggml.dtype import DType
from aggml.errors import (
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Misaligned,
    OutOfBounds,
)

if TYPE_CHECKING:
    import numpy as np

    from aggml.buffer import Buffer, Placement

__all__ = [
    "MAX_BYTES",
    "MAX_DIMS",
    "MAX_NAME",
    "MAX_SRC",
    "NO_PARAMS",
    "Extents",
    "Tensor",
    "TensorFlag",
    "can_repeat",
    "describe",
    "fresh_strides",
    "new_node",
    "new_permuted",
    "new_tensor",
    "new_view",
    "same_layout",
    "span",
]

MAX_DIMS: Final = 4
MAX_SRC: Final = 10
MAX_NAME: Final = 63  # bytes; ggml's 64 hold a terminator
MAX_BYTES: Final = (
    1 << 48
)  # more than any machine has; keeps sums and products of C far from 63 bits
NO_PARAMS: Final = bytes(64)

Extents = tuple[int, int, int, int]


class TensorFlag(enum.IntFlag):
    """What a tensor is for (enum ``ggml_tensor_flag``)."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2
    PARAM = 4
    LOSS = 8
    COMPUTE = 16


class Tensor:
    """A value: a leaf, or what an operation will make of its sources. Describes, holds no data.

    Made by `new_tensor` and the builders of `aggml.ops`; compared and hashed by identity.
    Attributes are for reading; what may be set has a method.

    Attributes:
        dtype: element type.
        ne: four extents, ``ne[0]`` innermost, unused ones 1; 0 makes an empty tensor.
        nb: four strides in bytes; ``nb[0]`` is that of an element, of a block if the type is
            quantized.
        nbytes: bytes from the first to the end of the last element, gaps of a strided view
            included.
        op: lower-case name of the operation ("mul_mat"), "none" for leaves.
        op_params: 64 bytes, 16 little-endian slots of 32 bits; their layout is in native/ops.def.
        src: what the operation reads; None where an optional operand was not given.
        view_src: the tensor whose storage this one views, never itself a view; None if it has its
            own.
        view_offs: where this view begins in that storage, in bytes.
        name: at most 63 bytes of UTF-8.
        placement: where the storage lies, None until allocated; of use on ``root`` only.
    """

    __slots__ = (
        "__weakref__",
        "_flags",
        "_frozen",
        "_span",
        "dtype",
        "name",
        "nb",
        "nbytes",
        "ne",
        "op",
        "op_params",
        "placement",
        "src",
        "view_offs",
        "view_src",
    )

    dtype: DType
    ne: Extents
    nb: Extents
    nbytes: int
    op: str
    op_params: bytes
    src: tuple[Tensor | None, ...]
    view_src: Tensor | None
    view_offs: int
    name: str
    placement: Placement | None
    _flags: int
    _frozen: bool
    _span: tuple[object, object] | None  # what transfers made of the placement (stream.py)

    def __init__(self) -> None:
        raise InvalidState("[Tensor] tensors are made by new_tensor and by the builders in ops")

    # -- storage

    @property
    def root(self) -> Tensor:
        """The tensor that has the storage: itself unless it is a view."""
        return self.view_src or self

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that holds the bytes, None until allocated."""
        placement = self.root.placement
        return None if placement is None else placement.buffer

    @property
    def address(self) -> int | None:
        """Address of the first element in the memory of its device, None until allocated."""
        placement = self.root.placement
        return None if placement is None else placement.address + self.view_offs

    # -- shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The numpy order: reversed ``ne`` without outer extents of 1, at least one axis."""
        return self.ne[self.n_dims - 1 :: -1] if self.n_dims < MAX_DIMS else self.ne[::-1]

    @property
    def n_dims(self) -> int:
        """Dimensions up to the last whose extent is not 1, at least one (``ggml_n_dims``)."""
        n = MAX_DIMS
        while n > 1 and self.ne[n - 1] == 1:
            n -= 1
        return n

    @property
    def nelements(self) -> int:
        """Number of elements."""
        return math.prod(self.ne)

    @property
    def nrows(self) -> int:
        """Number of rows, ``ne[1] * ne[2] * ne[3]``."""
        return math.prod(self.ne[1:])

    @property
    def is_empty(self) -> bool:
        """Whether any extent is 0."""
        return 0 in self.ne

    @property
    def is_scalar(self) -> bool:
        """Whether there is exactly one element."""
        return self.ne == (1, 1, 1, 1)

    @property
    def is_vector(self) -> bool:
        """Whether only ``ne[0]`` differs from 1."""
        return self.ne[1:] == (1, 1, 1)

    @property
    def is_matrix(self) -> bool:
        """Whether ``ne[2]`` and ``ne[3]`` are 1."""
        return self.ne[2:] == (1, 1)

    # -- layout

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie without gaps in logical order (``ggml_is_contiguous``)."""
        return self.is_contiguous_n(0)

    def is_contiguous_n(self, n: int) -> bool:
        """The same, but strides of dimensions 1 to ``n`` may be any (``ggml_is_contiguous_n``)."""
        ne, nb, dtype = self.ne, self.nb, self.dtype
        if ne[0] != dtype.blck_size and nb[0] != dtype.type_size:
            return False
        expected = dtype.type_size * (ne[0] // dtype.blck_size)
        for i in (1, 2, 3):
            if i > n:
                if ne[i] != 1 and nb[i] != expected:
                    return False
                expected *= ne[i]
            else:
                expected = ne[i] * nb[i]
        return True

    @property
    def is_contiguous_rows(self) -> bool:
        """Whether the elements of each row lie without gaps (``ggml_is_contiguous_rows``)."""
        return self.ne[0] == self.dtype.blck_size or self.nb[0] == self.dtype.type_size

    @property
    def is_contiguously_allocated(self) -> bool:
        """Whether the span has no gaps, in whatever order the elements lie."""
        n, block = self.nelements, self.dtype.blck_size
        return n % block == 0 and self.nbytes == n // block * self.dtype.type_size

    @property
    def is_contiguous_channels(self) -> bool:
        """Whether dimension 2 is innermost in memory, then 0 (``ggml_is_contiguous_channels``)."""
        nb = self.nb
        return nb[1] > nb[0] > nb[2] == self.dtype.type_size

    @property
    def is_padded_1d(self) -> bool:
        """Whether only rows are padded: all rows have one distance (``ggml_is_padded_1d``)."""
        ne, nb = self.ne, self.nb
        return nb[0] == self.dtype.type_size and nb[2] == nb[1] * ne[1] and nb[3] == nb[2] * ne[2]

    @property
    def is_transposed(self) -> bool:
        """Whether rows lie closer together than the elements of a row (``ggml_is_transposed``)."""
        return self.nb[0] > self.nb[1]

    @property
    def is_permuted(self) -> bool:
        """Whether strides do not ascend (``ggml_is_permuted``)."""
        a, b, c, d = self.nb
        return a > b or b > c or c > d

    @property
    def is_view(self) -> bool:
        """Whether the bytes belong to another tensor."""
        return self.view_src is not None

    # -- names and flags

    @property
    def flags(self) -> TensorFlag:
        """What the tensor is for."""
        return TensorFlag(self._flags)

    def _check_open(self, place: str) -> None:
        if self._frozen:
            raise InvalidState(
                f"[{place}] {describe(self)} is in a Graph, it cannot change any more"
            )

    def set_name(self, name: str) -> Tensor:
        """Name the tensor; what is beyond 63 bytes of UTF-8 is cut off, as ggml does.

        Raises:
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_name")
        self.name = _cut(name)
        return self

    def set_input(self) -> Tensor:
        """Flag the tensor as set by the user before a computation (``ggml_set_input``).

        Raises:
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_input")
        self._flags |= 1
        return self

    def set_output(self) -> Tensor:
        """Flag the tensor and what it views as read after a computation (``ggml_set_output``).

        A leaf that is viewed, and already in a Graph, stays as it is: nothing reuses its memory.

        Raises:
            InvalidState: the tensor, or the node whose storage it views, is in a Graph.
        """
        self._check_open("Tensor.set_output")
        root = self.view_src
        if root is not None and not root._flags & 2 and not (root._frozen and root.op == "none"):
            root._check_open("Tensor.set_output")
            root._flags |= 2
        self._flags |= 2
        return self

    def set_param(self) -> Tensor:
        """Flag a leaf as a parameter to be trained (``ggml_set_param``).

        Raises:
            InvalidArgument: the tensor is the result of an operation.
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_param")
        if self.op != "none":
            raise InvalidArgument(f"[Tensor.set_param] {describe(self)} is no leaf")
        self._flags |= 4
        return self

    def set_loss(self) -> Tensor:
        """Flag a scalar as a loss (``ggml_set_loss``).

        Raises:
            InvalidArgument: the tensor is not one f32.
            InvalidState: the tensor is in a Graph.
        """
        self._check_open("Tensor.set_loss")
        if not self.is_scalar or self.dtype is not DType.F32:
            raise InvalidArgument(f"[Tensor.set_loss] {describe(self)} is not one f32")
        self._flags |= 8
        return self

    def __repr__(self) -> str:
        words = [describe(self)]
        if self.op != "none":
            words.append(f"= {self.op}")
        if self.view_src is not None:
            words.append(f"at {self.view_src.name or 'storage'} + {self.view_offs}")
        if not self.is_contiguous:
            words.append(f"nb {list(self.nb)}")
        words += [
            flag.name.lower() for flag in TensorFlag if flag and flag & self._flags and flag.name
        ]
        if self.root.placement is not None:
            words.append("placed")
        return f"<Tensor {' '.join(words)}>"


# -- making them


def new_tensor(
    dtype: DType | str | np.dtype[np.generic],
    ne: SupportsIndex | Sequence[SupportsIndex],
    name: str = "",
) -> Tensor:
    """Make a leaf: a tensor without operation and, so far, without memory (``ggml_new_tensor``).

    Args:
        dtype: a DType, its name (case ignored), or the numpy type of a plain one.
        ne: one to four extents in ggml's order, ``ne[0]`` innermost; 0 makes an empty tensor.
        name: for messages; at most 63 bytes.

    Raises:
        InvalidArgument: no such type; not 1 to 4 extents, a negative one, or more bytes than any
            machine has; ``ne[0]`` is not a multiple of the type's block.
        InvalidHandle: an argument of the wrong kind.
    """
    kind = dtype if isinstance(dtype, DType) else DType.parse(dtype)
    try:
        given = tuple(map(index, ne)) if isinstance(ne, Sequence) else (index(ne),)
    except TypeError:
        raise InvalidHandle(f"[new_tensor] ne = {ne!r} is not 1 to 4 integers") from None
    if not 1 <= len(given) <= MAX_DIMS:
        raise InvalidArgument(f"[new_tensor] ne = {given} has {len(given)} extents, not 1 to 4")
    if min(given) < 0:
        raise InvalidArgument(f"[new_tensor] ne = {given} has a negative extent")
    return new_node("none", kind, (*given, 1, 1, 1)[:4], (), NO_PARAMS, _cut(name) if name else "")  # type: ignore[arg-type]


def new_node(
    op: str,
    dtype: DType,
    ne: Extents,
    src: tuple[Tensor | None, ...],
    op_params: bytes = NO_PARAMS,
    name: str = "",
) -> Tensor:
    """Make a tensor with storage of its own; for builders, which have checked all but the size.

    Raises:
        InvalidArgument: ``ne[0]`` is not a multiple of the block, or the tensor is too large.
    """
    n0, n1, n2, n3 = ne
    nb0 = dtype.type_size
    block = dtype.blck_size
    if block == 1:
        nb1 = n0 * nb0
    elif n0 % block:
        raise InvalidArgument(
            f"[{op if src else 'new_tensor'}] ne[0] = {n0} is not a multiple of the block of "
            f"{block} of {dtype.type_name}"
        )
    else:
        nb1 = n0 // block * nb0
    nb2 = nb1 * n1
    nb3 = nb2 * n2
    nbytes = nb3 * n3
    if not 0 < nbytes <= MAX_BYTES:
        _check_size(op if src else "new_tensor", dtype, ne)
    self = _new(Tensor)
    self.dtype = dtype
    self.ne = ne
    self.nb = (nb0, nb1, nb2, nb3)
    self.nbytes = nbytes
    self.op = op
    self.op_params = op_params
    self.src = src
    self.view_src = None
    self.view_offs = 0
    self.name = name
    self.placement = None
    self._span = None
    self._flags = 0
    self._frozen = False
    return self


def new_view(
    op: str,
    a: Tensor,
    ne: Extents,
    nb: Extents,
    offset: int,
    src: tuple[Tensor | None, ...],
    op_params: bytes = NO_PARAMS,
    name: str = "",
) -> Tensor:
    """Make a tensor over the bytes of ``a``, from ``offset`` bytes after its first element on.

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
        _check_view(op, a, ne, nb, offset)
        nbytes = span(dtype, ne, nb)
        if start + nbytes > root.nbytes:
            raise OutOfBounds(
                f"[{op}] ne {list(ne)} with nb {list(nb)} at byte {start} takes {nbytes} bytes, "
                f"the storage of {describe(a)} has {root.nbytes}"
            )
    else:
        nbytes = a.nbytes
    return _view(op, a, ne, nb, nbytes, start, src, op_params, name)


def new_permuted(
    op: str, a: Tensor, ne: Extents, nb: Extents, src: tuple[Tensor], op_params: bytes, name: str
) -> Tensor:
    """Make a tensor that shows all bytes of ``a`` in another order or with other extents.

    No check is needed: the span stays the same.
    """
    return _view(op, a, ne, nb, a.nbytes, a.view_offs, src, op_params, name)


def _view(
    op: str,
    a: Tensor,
    ne: Extents,
    nb: Extents,
    nbytes: int,
    start: int,
    src: tuple[Tensor | None, ...],
    op_params: bytes,
    name: str,
) -> Tensor:
    self = _new(Tensor)
    self.dtype = a.dtype
    self.ne = ne
    self.nb = nb
    self.nbytes = nbytes
    self.op = op
    self.op_params = op_params
    self.src = src
    self.view_src = a.view_src or a
    self.view_offs = start
    self.name = name if len(name) <= MAX_NAME // 4 else _cut(name)
    self.placement = None
    self._span = None
    self._flags = 0
    self._frozen = False
    return self


_new = object.__new__


# -- layout


def fresh_strides(dtype: DType, ne: Extents) -> Extents:
    """Strides of a tensor without gaps, in bytes (semantics of ``ggml_new_tensor``)."""
    nb1 = ne[0] // dtype.blck_size * dtype.type_size
    nb2 = nb1 * ne[1]
    return (dtype.type_size, nb1, nb2, nb2 * ne[2])


def span(dtype: DType, ne: Extents, nb: Extents) -> int:
    """Bytes from the first to the end of the last element (``ggml_nbytes``); 0 if there is none."""
    n0, n1, n2, n3 = ne
    if not (n0 and n1 and n2 and n3):
        return 0
    outer = (n1 - 1) * nb[1] + (n2 - 1) * nb[2] + (n3 - 1) * nb[3]
    if dtype.blck_size == 1:
        return dtype.type_size + (n0 - 1) * nb[0] + outer
    return n0 * nb[0] // dtype.blck_size + outer


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether type, extents and strides are equal (``ggml_are_same_layout``)."""
    return a.dtype is b.dtype and a.ne == b.ne and a.nb == b.nb


def can_repeat(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` fills ``b`` if repeated whole times per dimension (``ggml_can_repeat``)."""
    if a.ne == b.ne:
        return True
    if 0 in a.ne:
        return 0 in b.ne
    return not any(m % n for m, n in zip(b.ne, a.ne, strict=True))


def describe(a: Tensor) -> str:
    """Name, type and extents of a tensor for messages: ``w q4_0 [4096, 32]``."""
    ne = list(a.ne[: a.n_dims])
    return f"{a.name} {a.dtype.type_name} {ne}" if a.name else f"{a.dtype.type_name} {ne}"


def _check_size(op: str, dtype: DType, ne: Extents) -> None:
    # Empty tensors count as if 0 were 1, so that no stride and no product of extents grows out of
    # 63 bits.
    size = math.prod(n or 1 for n in ne) * dtype.type_size
    if size > MAX_BYTES:
        raise InvalidArgument(f"[{op}] {dtype.type_name} of ne {list(ne)} is more than any memory")


def _check_view(op: str, a: Tensor, ne: Extents, nb: Extents, offset: int) -> None:
    dtype = a.dtype
    n0, n1, n2, n3 = ne
    _, s1, s2, s3 = nb
    if n0 < 0 or n1 < 0 or n2 < 0 or n3 < 0:
        raise InvalidArgument(f"[{op}] ne {list(ne)} has a negative extent")
    if s1 < 0 or s2 < 0 or s3 < 0 or offset < 0:
        raise InvalidArgument(f"[{op}] nb {list(nb)} at offset {offset}: negative")
    if n0 % dtype.blck_size:
        raise InvalidArgument(
            f"[{op}] ne[0] = {n0} is not a multiple of the block of {dtype.blck_size} of "
            f"{describe(a)}"
        )
    size = dtype.type_size
    if size > 1 and (s1 % size or s2 % size or s3 % size or offset % size):
        raise Misaligned(
            f"[{op}] nb {list(nb)} at offset {offset}: not all multiples of the {size} bytes that "
            f"{describe(a)} has per {'block' if dtype.is_quantized else 'element'}"
        )
    if max(s1, s2, s3) > MAX_BYTES:
        raise OutOfBounds(f"[{op}] nb {list(nb)} is beyond the storage of {describe(a)}")
    _check_size(op, dtype, ne)


def _cut(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidHandle(f"[Tensor.set_name] {name!r} is no text")
    raw = name.encode("utf-8", "replace")
    return name if len(raw) <= MAX_NAME else raw[:MAX_NAME].decode("utf-8", "ignore")
