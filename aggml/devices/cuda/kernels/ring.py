"""Products whose tiles come by a ring of stages in shared memory: which, and how deep it is.

Here: bytes of a stage, stages, shared memory. Not here: the launches (mul_mat.py), the kernels
(ring.cuh, mul_mat_q_ring.cu, mul_mat_f_ring.cu).

By count (docs/cuda.md), an H100 needs 23 KB under way on each multiprocessor. Tiles that come by
registers have 7 KB, a ring has two stages or three of 4 to 19 KB on each of three blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aggml.dtype import DType

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Gpu

__all__ = ["Ring", "ring"]

_ROWS = 64  # of a tile
_ACT = 48  # bytes for 32 elements of a column
_CODES = 4 * 32 * 80  # of four warps
#: Columns up to which a ring gains. Quantized: with more of them, what is read of the columns in
#: shared memory bounds both kernels alike.
_QUANTIZED_COLUMNS = 32
_LEAST, _MOST = 2, 4  # stages
#: What a GPU of any kind has for two blocks or three of a multiprocessor.
_SMALL = 48 * 1024


class Ring(NamedTuple):
    """``step``: 32s of the depth of a stage; ``shared``: bytes of a block for all stages."""

    step: int
    stages: int
    shared: int


def _quantized(dtype: DType, wide: int) -> tuple[int, int]:
    """32s of a stage, and its bytes (Stage of mul_mat_q_ring.cu)."""
    per_block = dtype.blck_size // 32
    step = max(per_block, 4)
    vectors = (step // per_block * dtype.type_size + 30) // 16 | 1
    return step, _ROWS * 16 * vectors + wide * (step * _ACT + 16)


def _plain(wide: int) -> tuple[int, int]:
    """The same of f16 and bf16 (Stage of mul_mat_f_ring.cu): rows of 64, of columns f32."""
    return 2, _ROWS * (2 * 64 + 16) + wide * (4 * 64 + 32)


def ring(dtype: DType, wide: int, gpu: Gpu) -> Ring | None:
    """The ring of a tile of ``wide`` columns: as deep as leaves room for three blocks."""
    if dtype == DType.F32 or (dtype.is_quantized and wide > _QUANTIZED_COLUMNS):
        return None
    step, size = _quantized(dtype, wide) if dtype.is_quantized else _plain(wide)
    beside = _CODES if dtype.is_quantized else 0
    room = max(_SMALL, gpu.shared // 3)
    stages = max(_LEAST, min(_MOST, (room - beside) // size))
    shared = beside + stages * size
    return Ring(step, stages, shared) if shared <= gpu.shared else None
