"""Checks arrays that are set or got against their tensors, before anything is queued.

Here: element types, shapes, byte ranges, read-only outputs; each error says what was given and what
was expected. Not here: moving the bytes (stream/stream.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from aggml.dtype import DType
from aggml.errors import InvalidArgument, InvalidHandle, LayoutMismatch, OutOfBounds
from aggml.tensor.tensor import Tensor

__all__ = [
    "array_dtype",
    "array_of",
    "array_shape",
    "byte",
    "byte_range",
    "bytes_of",
    "check_out",
    "check_shape",
    "full_shape",
    "incoming",
    "integer",
    "outgoing",
    "outgoing_bytes",
    "pieces",
    "shape_of",
    "spec_of",
]

Array = np.ndarray[Any, Any]


def array_of(x: object, what: str) -> Array:
    """``x`` as an array without copying: numpy, DLPack, buffer protocol; also numbers and lists.

    Raises:
        InvalidHandle: ``x`` cannot be read as an array.
    """
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Tensor):  # its memory would be read out of order
        raise InvalidHandle(
            f"[{what}] {x!r} is a tensor, not an array: copy() copies between tensors"
        )
    try:
        if isinstance(x, bytes):  # to numpy a string, and not its bytes
            return np.frombuffer(x, np.uint8)
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(cast("Any", x))
        return np.asarray(x)
    except Exception as error:
        raise InvalidHandle(
            f"[{what}] {type(x).__name__} cannot be read as an array: {error}"
        ) from error


def integer(value: object, name: str, what: str) -> int:
    """``value`` as an int.

    Raises:
        InvalidHandle: it is none, nor an integer of numpy.
    """
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        raise InvalidHandle(f"[{what}] {name}={value!r} is no integer") from None


def byte(value: object, what: str) -> int:
    """``value`` as an int within 0..255.

    Raises:
        InvalidHandle, InvalidArgument: it is none.
    """
    number = integer(value, "value", what)
    if not 0 <= number <= 255:
        raise InvalidArgument(f"[{what}] value={number} is not within 0..255")
    return number


def array_shape(tensor: Tensor) -> tuple[int, ...]:
    """Shape of the array that holds a tensor, in numpy order; quantized: bytes in the last axis."""
    shape = tensor.shape
    return (
        (*shape[:-1], tensor.dtype.row_size(tensor.ne[0])) if tensor.dtype.is_quantized else shape
    )


def array_dtype(tensor: Tensor) -> np.dtype[Any]:
    """Element type of that array: uint8 for quantized types."""
    return np.dtype(np.uint8) if tensor.dtype.is_quantized else np.dtype(tensor.dtype.numpy)


def spec_of(tensor: Tensor) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """(element type, shape) of the tensor's array; kept with it, as each `run` asks for it."""
    spec = tensor._array
    if spec is None:
        spec = tensor._array = (array_dtype(tensor), array_shape(tensor))
    return spec


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """`array_shape` with all four axes."""
    shape = array_shape(tensor)
    return (1,) * (4 - len(shape)) + shape


def _check_dtype(array: Array, tensor: Tensor, what: str, given: object = None) -> None:
    """Refuse other elements; ``given`` is the object that the array was made of."""
    wanted = array_dtype(tensor)
    if array.dtype == wanted or (tensor.dtype is DType.BF16 and array.dtype == np.uint16):
        return
    if tensor.dtype.is_quantized:
        cure = (
            f"pass uint8 blocks, as aggml.quantize(x, {str(tensor.dtype.type_name)!r}) gives them"
        )
    elif tensor.dtype is DType.BF16:
        cure = "convert with .astype(ml_dtypes.bfloat16), or pass the bits as uint16"
    else:
        cure = f"convert with .astype(numpy.{wanted.name})"
    name = f"{'ml_dtypes' if wanted.kind == 'V' else 'numpy'}.{wanted.name}"
    holds = f"the array holds {array.dtype}"
    if given is None and array.dtype.hasobject:
        holds = "None is no array"
        cure = "a leaf that is to keep its value is left out"
    elif isinstance(given, bytes | bytearray | memoryview):
        holds = f"a {type(given).__name__} is read as {array.dtype}"
        cure = f"pass numpy.frombuffer(x, {name})" if not tensor.dtype.is_quantized else cure
    elif isinstance(given, str):
        holds, cure = "a str is no array of numbers", f"pass numpy.asarray(x, {name})"
    elif given is not None and not hasattr(given, "astype") and not tensor.dtype.is_quantized:
        # A list or a number: what numpy makes of it (float64, int64) is not the caller's choice.
        holds = f"numpy makes {array.dtype} of a {type(given).__name__}"
        cure = f"pass numpy.asarray(x, {name})"
    raise LayoutMismatch(f"[{what}] {tensor!r} takes {wanted.name}, {holds}: {cure}")


def _matches(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    def strip(s: tuple[int, ...]) -> tuple[int, ...]:
        i = 0
        while i < len(s) and s[i] == 1:
            i += 1
        return s[i:]

    return strip(shape) == strip(wanted) or (len(shape) == 1 and shape[0] == math.prod(wanted))


def incoming(x: object, tensor: Tensor, what: str) -> Array:
    """``x`` viewed with the axes of ``tensor``; it is to be written to all elements.

    Raises:
        InvalidHandle: ``x`` cannot be read as an array.
        LayoutMismatch: its element type or shape is another.
    """
    dtype, shape = spec_of(tensor)
    if type(x) is np.ndarray and x.dtype == dtype and x.shape == shape:
        return x
    array = array_of(x, what)
    _check_dtype(array, tensor, what, x)
    wanted = array_shape(tensor)
    if not _matches(array.shape, wanted):
        raise LayoutMismatch(
            f"[{what}] {tensor!r} takes an array of shape {wanted} "
            f"(or flat, {math.prod(wanted)}), got {array.shape}"
        )
    return array.reshape(full_shape(tensor))


def shape_of(shape: object, what: str) -> tuple[int, ...]:
    """What was given as ``shape=``, as integers.

    Raises:
        InvalidHandle: it holds no integers.
        InvalidArgument: a negative extent.
    """
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise InvalidHandle(f"[{what}] shape={shape!r} is no tuple of integers")
    extents = tuple([integer(n, "an extent of shape", what) for n in shape])
    if any(n < 0 for n in extents):
        raise InvalidArgument(f"[{what}] shape={extents} has a negative extent")
    return extents


def check_shape(tensor: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Refuse another number of elements than the tensor's (LayoutMismatch)."""
    wanted = array_shape(tensor)
    if math.prod(shape) != math.prod(wanted):
        raise LayoutMismatch(
            f"[{what}] {tensor!r} has shape {wanted}, which has another size than shape={shape}"
        )


def check_out(out: object, what: str) -> None:
    """Refuse what cannot be written to: InvalidHandle, InvalidArgument."""
    if not isinstance(out, np.ndarray):
        raise InvalidHandle(f"[{what}] out is a {type(out).__name__}, not a numpy array")
    if not out.flags.writeable:
        raise InvalidArgument(f"[{what}] out is read-only")


def outgoing(
    tensor: Tensor, out: Array | None, shape: tuple[int, ...] | None, what: str
) -> tuple[Array, Array]:
    """(result, the same viewed with the tensor's axes) for reading all elements of ``tensor``.

    Raises:
        InvalidHandle, InvalidArgument: ``out`` is no numpy array, or read-only.
        LayoutMismatch: ``out`` or ``shape`` do not fit.
    """
    if out is None and shape is None:
        dtype, wanted = spec_of(tensor)
        result = np.empty(wanted, dtype)
        return result, result
    wanted = array_shape(tensor)
    if shape is not None:
        shape = shape_of(shape, what)
    if out is None:
        assert shape is not None
        check_shape(tensor, shape, what)
        result = np.empty(shape, array_dtype(tensor))
        return result, result.reshape(full_shape(tensor))
    check_out(out, what)
    _check_dtype(out, tensor, what, out)
    if shape is not None and shape != out.shape:
        raise LayoutMismatch(f"[{what}] shape={shape} differs from the shape of out, {out.shape}")
    if not (_matches(out.shape, wanted) or (shape is not None and out.size == math.prod(wanted))):
        raise LayoutMismatch(f"[{what}] {tensor!r} needs out of shape {wanted}, got {out.shape}")
    view = out.reshape(full_shape(tensor))
    if view.size and not np.shares_memory(view, out):
        raise LayoutMismatch(
            f"[{what}] out of strides {out.strides} cannot take shape {wanted} in place"
        )
    return out, view


def byte_range(tensor: Tensor, offset: int | None, size: int | None, what: str) -> tuple[int, int]:
    """(offset, size) in bytes of the tensor's span; ``size`` left out means to its end.

    Raises:
        InvalidHandle: not integers.
        OutOfBounds: some of the bytes are outside.
    """
    start = 0 if offset is None else integer(offset, "offset", what)
    n = tensor.nbytes - start if size is None else integer(size, "size", what)
    if start < 0 or n < 0 or start + n > tensor.nbytes:
        raise OutOfBounds(
            f"[{what}] bytes {start} to {start + n} are outside {tensor!r} of {tensor.nbytes} bytes"
        )
    return start, n


def bytes_of(x: object, what: str) -> Array:
    """The bytes of a C-contiguous array, as uint8 without copying.

    Raises:
        InvalidHandle: ``x`` cannot be read as an array.
        LayoutMismatch: it is not contiguous, or its elements are no numbers.
    """
    array = array_of(x, what)
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject:
        raise LayoutMismatch(f"[{what}] an array of {array.dtype} holds no numbers")
    if not array.flags.c_contiguous:
        raise LayoutMismatch(f"[{what}] with offset or size the array has to be contiguous")
    return array.reshape(-1).view(np.uint8)


def pieces(
    tensor: Tensor,
    data: Array,
    size: object,
    n_copies: object,
    stride_tensor: object,
    stride_data: object,
    offset: object,
    what: str,
    *,
    to_tensor: bool,
) -> list[tuple[int, Array]]:
    """(offset in the span, bytes of ``data``) of pieces at regular distances in both.

    Pieces may overlap where they are read: with a distance of 0 one piece is written many times.

    Raises:
        InvalidHandle: not integers.
        InvalidArgument: negative ones; pieces that overlap where they are written.
        OutOfBounds: a piece ends outside.
    """
    n, length = integer(n_copies, "n_copies", what), integer(size, "size", what)
    here = integer(stride_tensor, "stride_tensor", what)
    there = integer(stride_data, "stride_data", what)
    start = integer(offset, "offset", what)
    if min(n, length, here, there, start) < 0:
        raise InvalidArgument(
            f"[{what}] size={length}, n_copies={n}, stride_tensor={here}, stride_data={there}, "
            f"offset={start}: all must be 0 or more"
        )
    if not n or not length:
        return []
    if n > 1 and (here if to_tensor else there) < length:
        name = f"stride_tensor={here}" if to_tensor else f"stride_data={there}"
        raise InvalidArgument(
            f"[{what}] {n} pieces of {length} bytes would overwrite each other: {name}"
        )
    for name, end, room in (
        (repr(tensor), start + (n - 1) * here + length, tensor.nbytes),
        ("the array", (n - 1) * there + length, data.nbytes),
    ):
        if end > room:
            raise OutOfBounds(f"[{what}] the last piece ends at byte {end}, but {name} has {room}")
    return [(start + i * here, data[i * there : i * there + length]) for i in range(n)]


def outgoing_bytes(out: Array | None, n: int, what: str) -> Array:
    """``out`` viewed as ``n`` bytes, or a new uint8 array.

    Raises:
        InvalidHandle, InvalidArgument: ``out`` is no numpy array, or read-only.
        LayoutMismatch: ``out`` is not contiguous, or of another size.
    """
    if out is None:
        return np.empty(n, np.uint8)
    check_out(out, what)
    view = bytes_of(out, what)
    if view.nbytes != n:
        raise LayoutMismatch(f"[{what}] out has {view.nbytes} bytes, but {n} are to be read")
    return view
