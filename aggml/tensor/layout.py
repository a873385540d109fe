"""The arithmetic of extents and strides: spans, equal layouts, what may be a view.

Here: plain functions. Not here: the predicates of a single tensor, which are its properties
(tensor.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from aggml.errors import InvalidArgument, InvalidHandle, Misaligned, OutOfBounds

if TYPE_CHECKING:
    from aggml.dtype import DType

__all__ = [
    "MAX_BYTES",
    "MAX_DIMS",
    "MAX_NAME",
    "ONES",
    "Extents",
    "Shaped",
    "can_repeat",
    "check_size",
    "check_view",
    "checked_name",
    "cut",
    "describe",
    "fresh_strides",
    "least_ndim",
    "same_layout",
    "span",
]

MAX_DIMS: Final = 4
MAX_NAME: Final = 63  # bytes; ggml's 64 hold a terminator
MAX_BYTES: Final = (
    1 << 48
)  # more than any machine has; keeps sums and products of C far from 63 bits

Extents = tuple[int, int, int, int]

# By rank: what the extents beyond it are.
ONES: Final[tuple[tuple[int, ...], ...]] = ((1,) * 4, (1,) * 3, (1,) * 2, (1,), ())


class Shaped(Protocol):
    """What is known here of a tensor: type, extents and strides, and its name for messages."""

    @property
    def dtype(self) -> DType:
        """Its element type."""
        ...

    @property
    def ne(self) -> Extents:
        """Extents, innermost first."""
        ...

    @property
    def nb(self) -> Extents:
        """Strides in bytes."""
        ...

    @property
    def ndim(self) -> int:
        """The rank that was built."""
        ...

    @property
    def name(self) -> str:
        """Its name, or nothing."""
        ...


def least_ndim(ne: Extents) -> int:
    """Axes up to the last whose extent is not 1, at least one (``ggml_n_dims``)."""
    n = MAX_DIMS
    while n > 1 and ne[n - 1] == 1:
        n -= 1
    return n


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


def same_layout(a: Shaped, b: Shaped) -> bool:
    """Whether type, extents and strides are equal (``ggml_are_same_layout``)."""
    return a.dtype is b.dtype and a.ne == b.ne and a.nb == b.nb


def can_repeat(a: Shaped, b: Shaped) -> bool:
    """Whether ``a`` fills ``b`` if repeated whole times per dimension (``ggml_can_repeat``)."""
    if a.ne == b.ne:
        return True
    if 0 in a.ne:
        return 0 in b.ne
    return not any(m % n for m, n in zip(b.ne, a.ne, strict=True))


def describe(a: Shaped) -> str:
    """Name, type and extents of a tensor for messages: ``w q4_0 [4096, 32]``."""
    ne = list(a.ne[: a.ndim])
    return f"{a.name} {a.dtype.type_name} {ne}" if a.name else f"{a.dtype.type_name} {ne}"


def check_size(op: str, dtype: DType, ne: Extents) -> None:
    """Refuse more bytes than any machine has (InvalidArgument)."""
    # Empty tensors count as if 0 were 1, so that no stride and no product of extents grows out of
    # 63 bits.
    size = math.prod(n or 1 for n in ne) * dtype.type_size
    if size > MAX_BYTES:
        raise InvalidArgument(
            f"[{op}] {dtype.type_name} of ne {list(ne)} would not fit into any memory"
        )


def check_view(op: str, a: Shaped, ne: Extents, nb: Extents, offset: int) -> None:
    """Refuse what cannot be a view, whatever the storage (errors as `new_view`)."""
    dtype = a.dtype
    n0, n1, n2, n3 = ne
    _, s1, s2, s3 = nb
    if n0 < 0 or n1 < 0 or n2 < 0 or n3 < 0:
        raise InvalidArgument(f"[{op}] ne {list(ne)} has a negative extent")
    if s1 < 0 or s2 < 0 or s3 < 0 or offset < 0:
        raise InvalidArgument(f"[{op}] nb {list(nb)} at offset {offset}: none may be negative")
    if n0 % dtype.blck_size:
        raise InvalidArgument(
            f"[{op}] ne[0] = {n0} is not a multiple of the block of {dtype.blck_size} of "
            f"{describe(a)}"
        )
    size = dtype.type_size
    if size > 1 and (s1 % size or s2 % size or s3 % size or offset % size):
        raise Misaligned(
            f"[{op}] nb {list(nb)} at offset {offset}: all must be multiples of the {size} bytes "
            f"that {describe(a)} has per {'block' if dtype.is_quantized else 'element'}"
        )
    if max(s1, s2, s3) > MAX_BYTES:
        raise OutOfBounds(f"[{op}] nb {list(nb)} is beyond the storage of {describe(a)}")
    check_size(op, dtype, ne)


def checked_name(name: str, what: str) -> str:
    """``name``, which a user gave: text of at most 63 bytes of UTF-8.

    Raises:
        InvalidArgument: it is longer. ggml would cut it, and two names might become one.
        InvalidHandle: it is no text.
    """
    if not isinstance(name, str):
        raise InvalidHandle(f"[{what}] name={name!r} is no text")
    if len(name) > MAX_NAME // 4 and len(name.encode("utf-8", "replace")) > MAX_NAME:
        size = len(name.encode("utf-8", "replace"))
        raise InvalidArgument(
            f"[{what}] name={name!r} has {size} bytes of UTF-8, a tensor's name has at most "
            f"{MAX_NAME}"
        )
    return name


def cut(name: str) -> str:
    """``name``, which is made of others, without what is beyond 63 bytes of UTF-8."""
    raw = name.encode("utf-8", "replace")
    return name if len(raw) <= MAX_NAME else raw[:MAX_NAME].decode("utf-8", "ignore")
