"""quantize and dequantize: rows of floats to blocks of an element type and back.

Here: arrays in, arrays out, now or as a Future. Not here: the conversions, which are C
(native/formats/quant*.c), types as operands (ops/).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument, LayoutMismatch, Unsupported
from aggml.native import _native, cpu_mask
from aggml.ops.table import NUMBERS
from aggml.stream import Stream
from aggml.stream.future import Future
from aggml.stream.observe import submit

__all__ = ["dequantize", "dequantize_async", "quantize", "quantize_async"]

T = TypeVar("T")
Array: TypeAlias = np.ndarray[Any, Any]
Blocks: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

# From this many elements on, worker threads save more than building and handing over a plan costs
# (50 us).
_MANY = 1 << 15


def quantize(x: Array, dtype: DTypeLike, imatrix: Array | None = None) -> Blocks:
    """Convert rows of floats to blocks, bit for bit as ggml_quantize_chunk does.

    Large arrays are divided among the worker threads; the calling thread waits without the GIL.

    Args:
        x: float32 of any shape; the last axis is a multiple of the type's block. An array with gaps
            is copied first.
        dtype: the target type. This includes q8_1 and q8_K, which ggml uses only inside products.
        imatrix: one weight per column, float32. q8_0, the ternary types, fp4, q1_0 and q2_0 ignore
            it; iq2_xxs, iq2_xs and iq1_s need it.

    Returns:
        uint8, the shape of ``x`` with the bytes of a row in the last axis. f16 and bf16 are bytes
        as well; every NaN becomes 0x7e00 in f16, with its sign.

    Raises:
        LayoutMismatch: ``x`` is not float32, or its rows are no multiple of the block.
        InvalidArgument: ``imatrix`` is missing or is not one weight per column; a number of ``x``
            is NaN or infinite, which blocks do not have, or one of ``imatrix`` is, or
            is negative.
        Unsupported: there is no quantizer for the type.
    """
    job = _Quantize("quantize", x, dtype, imatrix)
    return job.now() if job.size < _MANY else _result(job.queue())


def quantize_async(x: Array, dtype: DTypeLike, imatrix: Array | None = None) -> Future[Blocks]:
    """Do what `quantize` does on the worker threads, off the event loop; to be awaited.

    Arguments, result and errors are those of `quantize`; wrong arguments raise at the call. ``x``
    and ``imatrix`` are borrowed until the Future is done, unless they had to be copied.

    Cancellation: when the last task that awaits it is cancelled, the work is aborted at its next
    chunk (10 us to some ms). The Future then raises `Aborted`. See `Future.shield`.
    """
    return _Quantize("quantize_async", x, dtype, imatrix).queue()


def dequantize(
    blocks: Array, dtype: DTypeLike, ne: SupportsIndex | Iterable[SupportsIndex] | None = None
) -> Floats:
    """Convert blocks back to float32, exactly: ``dequantize(quantize(x, t), t)`` has ``x``'s shape.

    Large arrays are divided among the worker threads; the calling thread waits without the GIL.

    Args:
        blocks: uint8, the bytes of a row in the last axis, contiguous or not. Of f16 and bf16 also
            elements of two bytes, of f32 also floats.
        dtype: the type of the blocks.
        ne: another shape with the same number of elements: extents in ggml order, ``ne[0]``
            innermost and a multiple of the type's block; an integer makes one row. ``blocks`` may
            then have any shape.

    Returns:
        float32, the shape of ``blocks`` with the elements of a row in the last axis; of shape
        reversed ``ne`` if that is given.

    Raises:
        LayoutMismatch: the number of bytes or the type of the elements does not fit, or rows are no
            whole number of blocks.
        InvalidArgument: ``ne`` is no shape of this type, or holds no integers.
        Unsupported: there is no conversion from the type.
    """
    job = _Dequantize("dequantize", blocks, dtype, ne)
    return job.now() if job.size < _MANY else _result(job.queue())


def dequantize_async(
    blocks: Array, dtype: DTypeLike, ne: SupportsIndex | Iterable[SupportsIndex] | None = None
) -> Future[Floats]:
    """Do what `dequantize` does on the worker threads, off the event loop; to be awaited.

    Arguments, result and errors are those of `dequantize`; wrong arguments raise at the call.
    ``blocks`` are borrowed until the Future is done, unless they had to be copied.

    Cancellation: as for `quantize_async`.
    """
    return _Dequantize("dequantize_async", blocks, dtype, ne).queue()


class _Quantize:
    """One call of `quantize`: checked arguments and the array for the result."""

    def __init__(self, what: str, x: Array, dtype: DTypeLike, imatrix: Array | None) -> None:
        self.what = what
        self.element = element = DType.parse(dtype)
        x = np.asarray(x)
        if x.dtype != np.float32:
            raise LayoutMismatch(f"[{what}] x holds {x.dtype}: convert with .astype(numpy.float32)")
        if x.ndim == 0 or x.shape[-1] % element.blck_size:
            raise LayoutMismatch(
                f"[{what}] the last extent of {x.shape} must be a multiple of "
                f"{element.blck_size}, the block of {element.type_name}"
            )
        self.x = np.require(x, requirements=["C", "A"])
        self.size = x.size
        self.imatrix = _weights(what, imatrix, x.shape[-1])
        problem = _native.quantize_problem(element.value, self.imatrix is not None)
        if problem is not None:
            raise (Unsupported if problem[0] else InvalidArgument)(f"[{what}] {problem[1]}")
        self.out: Blocks = np.empty((*x.shape[:-1], element.row_size(x.shape[-1])), np.uint8)

    def now(self) -> Blocks:
        if self.size:
            n = self.x.shape[-1]
            if self.element.is_quantized and not np.isfinite(self.x).all():
                at = int(np.flatnonzero(~np.isfinite(self.x.reshape(-1)))[0])
                raise InvalidArgument(
                    f"[{self.what}] x is {self.x.flat[at]} in row {at // n}, column {at % n}: "
                    "blocks hold finite numbers"
                )
            _native.quantize(self.element.value, self.x, self.out, n, self.imatrix)
        return self.out

    def queue(self) -> Future[Blocks]:
        n = self.x.shape[-1]
        rows = (n, self.size // n if n else 0)
        weights = None if self.imatrix is None else _operand(DType.F32, self.imatrix, (n, 1))
        srcs = (_operand(DType.F32, self.x, rows), weights)
        dst = _operand(self.element, self.out, rows)
        return _submit(self.what, "quantize", dst, srcs, self.out, (self.x, self.imatrix))


class _Dequantize:
    """One call of `dequantize`."""

    def __init__(
        self,
        what: str,
        blocks: Array,
        dtype: DTypeLike,
        ne: SupportsIndex | Iterable[SupportsIndex] | None,
    ) -> None:
        self.what = what
        self.element = element = DType.parse(dtype)
        if not _native.has_to_float(element.value):
            raise Unsupported(
                f"[{what}] there is no conversion from {element.type_name}: give a quantized type "
                "or a type of floats"
            )
        blocks = np.asarray(blocks)
        if blocks.dtype not in _element_types(element):
            known = " or ".join(map(str, _element_types(element)))
            raise LayoutMismatch(
                f"[{what}] the blocks of {element.type_name} are {blocks.dtype}, expected {known}"
            )
        extents = _extents(what, element, ne) if ne is not None else _rows_of(what, element, blocks)
        blocks = np.ascontiguousarray(blocks)
        self.blocks = blocks if _address(blocks) % 4 == 0 else blocks.copy()
        wanted = element.row_size(extents[0]) * math.prod(extents[1:])
        if blocks.nbytes != wanted:
            raise LayoutMismatch(
                f"[{what}] ne={extents} of {element.type_name} take {wanted} bytes, "
                f"got {blocks.nbytes}"
            )
        self.out: Floats = np.empty(extents[::-1], np.float32)
        self.size = self.out.size

    def now(self) -> Floats:
        if self.size:
            _native.to_float(self.element.value, self.blocks.view(np.uint8).reshape(-1), self.out)
        return self.out

    def queue(self) -> Future[Floats]:
        n = self.out.shape[-1]
        rows = (n, self.size // n if n else 0)
        src, dst = _operand(self.element, self.blocks, rows), _operand(DType.F32, self.out, rows)
        return _submit(self.what, "cpy", dst, (src,), self.out, (self.blocks,))


def _extents(
    what: str, element: DType, ne: SupportsIndex | Iterable[SupportsIndex]
) -> tuple[int, ...]:
    """``ne`` as given, checked."""
    try:
        extents = tuple(map(index, ne)) if isinstance(ne, Iterable) else (index(ne),)
    except TypeError:
        raise InvalidArgument(f"[{what}] ne={ne!r} is no integer and no list of integers") from None
    if not extents or any(n < 0 for n in extents) or extents[0] % element.blck_size:
        raise InvalidArgument(
            f"[{what}] ne={extents}: extents of {element.type_name} must be 0 or more, and the "
            f"first a multiple of {element.blck_size}"
        )
    return extents


def _rows_of(what: str, element: DType, blocks: Array) -> tuple[int, ...]:
    """The extents that the shape of ``blocks`` tells, innermost first."""
    row = blocks.shape[-1] * blocks.itemsize if blocks.ndim else 0
    if not blocks.ndim or row % element.type_size:
        raise LayoutMismatch(
            f"[{what}] rows of {blocks.shape} are no whole number of {element.type_name} blocks of "
            f"{element.type_size} bytes; pass the extents as ne= if the array has another shape"
        )
    return (row // element.type_size * element.blck_size, *blocks.shape[-2::-1])


def _element_types(element: DType) -> tuple[np.dtype[Any], ...]:
    """The numpy types that an array of such blocks may have."""
    plain = () if element.numpy is None else (element.numpy,)
    return (np.dtype(np.uint8), *plain, *((np.dtype(np.uint16),) if element.type_size == 2 else ()))


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _weights(what: str, imatrix: Array | None, columns: int) -> Floats | None:
    if imatrix is None:
        return None
    try:
        weights: Floats = np.ascontiguousarray(imatrix, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"[{what}] imatrix holds no numbers: {error}") from error
    if np.shape(imatrix) != (columns,):
        raise InvalidArgument(
            f"[{what}] imatrix has shape {np.shape(imatrix)}; give a weight for each column: "
            f"({columns},)"
        )
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InvalidArgument(
            f"[{what}] imatrix is {weights[at]} in column {at}, expected were finite numbers from "
            "0 on"
        )
    return weights


_Extents: TypeAlias = tuple[int, int, int, int]
_Operand: TypeAlias = tuple[int, int, bool, _Extents, _Extents, int]


def _operand(element: DType, array: Array, rows: tuple[int, int]) -> _Operand:
    """A contiguous array as an operand of a plan, ``rows`` = (elements of a row, how many)."""
    step = element.row_size(rows[0])
    end = step * rows[1]
    strides = (element.type_size, step, end, end)
    return (element.value, _address(array), False, (*rows, 1, 1), strides, end)


def _submit(
    what: str,
    op: str,
    dst: _Operand,
    srcs: tuple[_Operand | None, ...],
    out: npt.NDArray[Any],
    keep: tuple[object, ...],
) -> Future[Any]:
    plan = _native.Plan(cpu_mask(None), 0)
    problem = plan.add(NUMBERS[op], "", dst, srcs, bytes(64), -1)
    if problem is not None:  # a problem that the checks above do not cover
        raise InvalidArgument(f"[{what}] {problem[1]}")
    plan.seal((), (), ())
    # Each conversion has its own stream: it runs in parallel with other conversions and backends.
    stream = Stream(what)
    (ops,) = submit([(stream.native, [_native.run_plan(plan, 0, what, (*keep, out))])])
    return Future(tuple(ops), out, what, abortable=True)


def _result(future: Future[T]) -> T:
    try:
        future.wait()
    except BaseException:  # Ctrl-C: nobody will look at the result
        future.abort()
        raise
    return future.result()
