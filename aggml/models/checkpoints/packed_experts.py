"""Recipes for the experts of gpt-oss: blocks of mxfp4, or transposed matrices.

Gate and up are the even and the odd rows of one matrix. Not here: other experts (recipes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType
from aggml.models.checkpoints.recipes import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape

__all__ = ["regroup_blocks", "transpose_experts"]

BLOCK: Final = 32  # elements, in 16 bytes
EVERY: Final = slice(None)


def _rows(which: int | None) -> slice:
    return EVERY if which is None else slice(which, None, 2)


def regroup_blocks(source: str, which: int | None = None) -> Recipe:
    """Make blocks of ggml of ``source``_blocks [experts, rows, blocks, 16] and ``source``_scales.

    In the folder a byte has two neighbouring elements, the first one in its low half. In ggml's
    blocks the two elements of a byte are 16 apart.

    Args:
        source: name in the folder.
        which: 0: the even rows, 1: the odd ones, None: all.
    """

    def make(arrays: Sequence[Array], _: Config) -> Array:
        packed, scales = (x[:, _rows(which)] for x in arrays)
        low, high = packed & 15, packed >> 4
        values = np.stack([low, high], axis=-1).reshape(*packed.shape[:-1], BLOCK)
        bytes_ = values[..., : BLOCK // 2] | values[..., BLOCK // 2 :] << 4
        whole = np.concatenate([scales[..., None], bytes_], axis=-1)
        return whole.reshape(*whole.shape[:2], -1)

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        experts, rows, n, _half = shapes[0]
        return experts, rows if which is None else rows // 2, n * BLOCK

    return Recipe((f"{source}_blocks", f"{source}_scales"), make, shape, DType.MXFP4)


def transpose_experts(source: str, which: int | None = None) -> Recipe:
    """Transpose matrices [experts, columns, rows] to [experts, rows, columns].

    Args:
        source: name in the folder.
        which: 0: the even rows, 1: the odd ones, None: all.
    """

    def make(arrays: Sequence[Array], _: Config) -> Array:
        return arrays[0].swapaxes(1, 2)[:, _rows(which)]

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        experts, columns, rows = shapes[0]
        return experts, rows if which is None else rows // 2, columns

    return Recipe((source,), make, shape)
