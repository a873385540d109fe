"""Products whose tiles are loaded into a ring of stages in shared memory, some stages ahead.

Here: which products, the number of stages, their bytes. Not here: the launches (mul_mat.py), the
kernels (ring.cuh, mul_mat_q_ring.cu, mul_mat_f_ring.cu).

By count (docs/cuda.md), an H100 needs 23 KB under way on each multiprocessor. Tiles that are loaded
through registers have 7 KB under way; a ring has two or three stages of 4 to 19 KB in each of three
blocks.
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
#: Most columns of a quantized product for which a ring is faster. With more, reading the columns
#: from shared memory takes the most time, with and without a ring.
_QUANTIZED_COLUMNS = 32
_LEAST, _MOST = 2, 4  # stages
#: Bytes of shared memory that every GPU has for each of two or three blocks on a multiprocessor.
_SMALL = 48 * 1024


class Ring(NamedTuple):
    """A ring.

    Attributes:
        step: depth of a stage, in units of 32.
        stages: how many stages it has.
        shared: bytes of shared memory of a block.
    """

    step: int
    stages: int
    shared: int


def _quantized_stage(dtype: DType, wide: int) -> tuple[int, int]:
    """Depth of a stage in units of 32, and its bytes (Stage of mul_mat_q_ring.cu)."""
    per_block = dtype.blck_size // 32
    step = max(per_block, 4)
    vectors = (step // per_block * dtype.type_size + 30) // 16 | 1
    return step, _ROWS * 16 * vectors + wide * (step * _ACT + 16)


def _plain(wide: int) -> tuple[int, int]:
    """The same for f16 and bf16 (Stage of mul_mat_f_ring.cu), where columns are f32."""
    return 2, _ROWS * (2 * 64 + 16) + wide * (4 * 64 + 32)


def ring(dtype: DType, wide: int, gpu: Gpu) -> Ring | None:
    """The ring for tiles of ``wide`` columns, with as many stages as let three blocks fit."""
    if dtype == DType.F32 or (dtype.is_quantized and wide > _QUANTIZED_COLUMNS):
        return None
    step, size = _quantized_stage(dtype, wide) if dtype.is_quantized else _plain(wide)
    beside = _CODES if dtype.is_quantized else 0
    room = max(_SMALL, gpu.shared // 3)
    stages = max(_LEAST, min(_MOST, (room - beside) // size))
    shared = beside + stages * size
    return Ring(step, stages, shared) if shared <= gpu.shared else None
