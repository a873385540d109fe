"""The bytes of a tensor for a file, in pieces: as they are, converted or quantized.

Not here: writing them (writer.py), the conversions themselves (quant.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np

from aggml.conversion.quant import quantize
from aggml.dtype import DType
from aggml.errors import AggmlError, InvalidArgument, InvalidHandle, LayoutMismatch
from aggml.tensor import MAX_DIMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Pieces"]

PIECE: Final = 16 << 20  # bytes of an array that are gathered, or converted, at once
_FLOATS: Final = (DType.F32, DType.F16, DType.BF16, DType.F64)
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pieces:
    """A tensor on its way to a file: iterate for its bytes, at most some 16 MB at a time.

    Attributes:
        dtype: its type in the file.
        ne: extents in ggml order, as many as it has axes.
    """

    dtype: DType
    ne: tuple[int, ...]
    _array: Array  # of one axis or more
    _convert: bool  # the floats have another type and are converted to ``dtype``, in rows of ne[0]
    _what: str  # begins messages

    @classmethod
    def of(
        cls,
        what: str,
        array: Any,  # noqa: ANN401 whatever numpy takes for an array
        dtype: DType | str | None,
        ne: Sequence[int] | None,
    ) -> Self:
        """Check an array and choose its type and shape in the file; messages begin with ``what``.

        Raises:
            InvalidArgument, InvalidHandle, LayoutMismatch, Unsupported: as `GGUFWriter.add_tensor`.
        """
        array = _array(what, array)
        own = _own(array)
        if dtype is None and own is None:
            raise InvalidArgument(
                f"{what}: ggml has no type for numpy's {array.dtype}; for blocks name their type, "
                'for example dtype="q8_0"'
            )
        element = own if dtype is None else DType.parse(dtype)
        assert element is not None
        convert = False
        shape: tuple[int, ...] = array.shape
        if own is None:
            shape = _shape_of_blocks(what, array, element, flat=ne is not None)
        elif own is not element:
            _check_conversion(what, own, element)
            convert = True
        if ne is not None:
            shape = _fit_shape(what, math.prod(shape), ne)
        if len(shape) > MAX_DIMS:
            raise LayoutMismatch(f"{what} has {len(shape)} axes, at most {MAX_DIMS} are possible")
        if shape[-1] % element.blck_size:
            raise LayoutMismatch(
                f"{what}: rows of {shape[-1]} elements are no multiple of the {element.blck_size} "
                f"in a block of {element.type_name}"
            )
        if convert:
            array = array.reshape(shape)
        return cls(element, shape[::-1], array, convert, what)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the bytes of the tensor, from first to last."""
        for part in _parts(self._array):
            try:
                made = _convert_floats(part, self.dtype) if self._convert else part
            except InvalidArgument as error:  # a number that is not finite
                raise InvalidArgument(f"{self._what}: {error}") from error
            whole = np.ascontiguousarray(made, made.dtype.newbyteorder("<"))
            if whole.size:
                yield whole.reshape(-1).view(np.uint8).data


def _array(what: str, given: Any) -> Array:  # noqa: ANN401 as above
    """The array that was given, of one axis or more."""
    if isinstance(given, (bytes, bytearray)):
        return np.frombuffer(given, np.uint8)
    if not isinstance(given, (np.ndarray, np.generic, memoryview)) and not hasattr(
        given, "__array__"
    ):
        raise InvalidHandle(
            f"{what}: {type(given).__name__} is no array: give one of numpy's, or the bytes of "
            "blocks (of a placed tensor, what `await backend.get(tensor)` returns)"
        )
    array = np.asarray(given)
    return array.reshape(1) if array.ndim == 0 else array


def _own(array: Array) -> DType | None:
    """The type whose elements an array holds; None: ggml has no such type."""
    return _PLAIN.get(array.dtype.newbyteorder("="))


_PLAIN: Final = {dtype.numpy: dtype for dtype in DType if dtype.numpy is not None}


def _shape_of_blocks(what: str, array: Array, element: DType, *, flat: bool) -> tuple[int, ...]:
    """The shape in elements of an array that holds a type's bytes, or its bits as uint16."""
    if array.dtype.newbyteorder("=") == np.uint16 and (element.type_size, element.blck_size) == (
        2,
        1,
    ):
        return tuple(array.shape)
    if array.dtype != np.uint8:
        raise LayoutMismatch(f"{what}: numpy's {array.dtype} holds no {element.type_name}")
    size: int = array.size if flat else array.shape[-1]
    if size % element.type_size:
        raise LayoutMismatch(
            f"{what}: {'' if flat else 'rows of '}{size} bytes are no multiple of the "
            f"{element.type_size} of a block of {element.type_name}"
        )
    n = size // element.type_size * element.blck_size
    return (n,) if flat else (*array.shape[:-1], n)


def _check_conversion(what: str, own: DType, element: DType) -> None:
    if own not in _FLOATS or not (element in _FLOATS or element.is_quantized):
        raise LayoutMismatch(
            f"{what}: {own.type_name} elements cannot be written as {element.type_name}; convert "
            "the array first, for example with .astype"
        )
    if element.is_quantized:
        try:
            quantize(np.zeros(element.blck_size, np.float32), element)
        except AggmlError as error:  # there is no quantizer, or it needs an importance matrix
            raise type(error)(f"{what}: {error}; give blocks that are quantized already") from error


def _fit_shape(what: str, size: int, ne: Sequence[int]) -> tuple[int, ...]:
    try:
        extents = tuple([index(n) for n in ne])
    except TypeError as error:
        raise InvalidArgument(f"{what}: ne={ne!r} are no extents: {error}") from error
    if not extents or min(extents) < 0 or math.prod(extents) != size:
        raise LayoutMismatch(
            f"{what}: ne={list(ne)} does not have the {size} elements of the array"
        )
    return extents[::-1]


def _parts(array: Array) -> Iterator[Array]:
    """The array cut along its first axes into parts of at most PIECE bytes, rows left whole."""
    first = math.prod(array.shape[1:]) * array.itemsize  # bytes of one item of the first axis
    if array.ndim == 1 or array.nbytes <= PIECE:
        n = array.shape[0] if array.ndim > 1 else max(1, PIECE // array.itemsize)
        yield from (array[at : at + n] for at in range(0, array.shape[0], max(n, 1)))
    elif first > PIECE:
        for item in array:
            yield from _parts(item)
    else:
        n = PIECE // first
        yield from (array[at : at + n] for at in range(0, array.shape[0], n))


def _convert_floats(part: Array, element: DType) -> Array:
    """Floats as another type: elements, or the bytes of blocks."""
    with np.errstate(over="ignore"):  # values beyond the range of f32 become infinite, as in C
        if element is DType.F64:
            return part.astype(np.float64)
        floats = np.ascontiguousarray(part, np.float32)
    return floats if element is DType.F32 else quantize(floats, element)
