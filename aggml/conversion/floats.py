"""convert: rows between f32 and the 16-bit floats, and to i32, natively.

Here: arrays in, arrays out. Not here: quantized blocks (quant.py), types as operands (ops/).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument, InvalidHandle, LayoutMismatch, Unsupported
from aggml.native import _native, cpu_mask
from aggml.tensor.spans import bits_of

__all__ = ["convert"]

Array = np.ndarray[Any, Any]
_FROM_F32 = {DType.F32, DType.F16, DType.BF16, DType.I32}
_TO_F32 = {DType.F32, DType.F16, DType.BF16}


def convert(
    x: Array | np.generic, dtype: DTypeLike, *, out: Array | None = None, isa: str | None = None
) -> Array:
    """Convert numbers as ggml's row functions do, without the GIL.

    f16 and bf16 become f32 exactly. f32 becomes f16 or bf16 to nearest, ties to even, subnormals
    kept; i32 toward zero, out of range saturates, NaN is 0.

    Args:
        x: an array of f32, f16 or bf16 (`ml_dtypes.bfloat16`), of any shape.
        dtype: "f32" from any of these; "f16", "bf16" or "i32" from f32.
        out: C-contiguous, of that type and the shape of ``x``; a new array if not given.
        isa: "scalar" for the rules of ggml's scalar functions, by which every NaN becomes f16's
            7E00 and its sign; the fastest otherwise, where a NaN may keep its payload.

    Returns:
        ``out``.

    Raises:
        InvalidHandle: ``x`` or ``out`` is no array.
        LayoutMismatch: ``out`` has another type or shape, or is not contiguous.
        InvalidArgument: ``out`` is read-only; no such ``isa``.
        Unsupported: there is no such conversion.
    """
    if not isinstance(x, np.ndarray | np.generic):
        raise InvalidHandle(f"[convert] x is a {type(x).__name__}, not a numpy array")
    target = DType.parse(dtype)
    try:
        source = DType.parse(x.dtype)
    except InvalidArgument:
        source = None
    reading = target is DType.F32 and source in _TO_F32
    if not reading and not (source is DType.F32 and target in _FROM_F32):
        raise Unsupported(
            f"[convert] there is no conversion from {x.dtype} to {target}, only from f32 and to f32"
        )
    element = source if reading else target
    assert element is not None
    x = np.asarray(x, order="C")  # unlike ascontiguousarray it keeps 0 axes
    if out is None:
        out = np.empty(x.shape, target.numpy)
    elif not isinstance(out, np.ndarray):
        raise InvalidHandle(f"[convert] out is a {type(out).__name__}, not a numpy array")
    elif out.dtype != target.numpy or out.shape != x.shape or not out.flags.c_contiguous:
        raise LayoutMismatch(
            f"[convert] out is {out.dtype} of {out.shape}, needed is a contiguous one of "
            f"{target.numpy} and {x.shape}"
        )
    elif not out.flags.writeable:
        raise InvalidArgument("[convert] out is read-only")
    cpu = cpu_mask(isa)
    if x.size:
        _native.convert(element.value, cpu, reading, bits_of(x), bits_of(out))
    return out
