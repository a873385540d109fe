"""pixtral and lightonocr: one view of any size, rotary positions in two dimensions.

Pixtral has a token behind each row. A picture of LightOnOCR always has the same longer side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType, ops
from aggml.models.vision.projector import Projector, Views
from aggml.models.vision.resizing import resize_padded
from aggml.models.vision.sizes import longest_size
from aggml.models.vision.tower import (
    MOST_PATCHES,
    PatchGrid,
    Tower,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import I32, U8

__all__ = ["Pixtral"]

BASE: Final = 10000.0  # of the frequencies
LEAST: Final = 8  # tokens of a picture
MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class Pixtral(Projector):
    """The projector: perhaps patches of a square as one token, then two matrices.

    Attributes:
        tower: the transformer.
        merged: patches of a side of a square; 1: each patch is a token.
        longest: pixels to which the longer side is brought; 0: a picture has a number of tokens
            within bounds.
    """

    tower: Tower
    merged: int
    longest: int = 0

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Pixtral:
        """As a file describes it."""
        return cls(_tower(hp), hp.integer("vision.spatial_merge_size", 1, least=1, most=16))

    @classmethod
    def read_lighton(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Pixtral:
        """As a file of LightOnOCR describes it."""
        tower = _tower(hp)
        merged = hp.integer("vision.spatial_merge_size", 1, least=1, most=16)
        most = math.isqrt(MOST_PATCHES) * tower.patch
        longest = hp.integer("vision.preproc_image_size", tower.side, least=1, most=most)
        return cls(tower, merged, longest)

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower = self.tower
        inner = tensors["mm.1.weight"].ne[1] if "mm.1.weight" in tensors else tower.out
        found: dict[str, tuple[int, ...]] = {
            "mm.1.weight": (tower.width, inner), "mm.2.weight": (inner, tower.out),
        }  # fmt: skip
        if not self.longest:
            found["v.token_embd.img_break"] = (tower.out,)
        if "mm.1.bias" in tensors or "mm.2.bias" in tensors:
            found |= {"mm.1.bias": (inner,), "mm.2.bias": (tower.out,)}
        if self.merged > 1:
            found["mm.input_norm.weight"] = (tower.width,)
            found["mm.patch_merger.weight"] = (tower.width * self.merged**2, tower.width)
        return found

    def views(self, rgb: U8) -> Views:
        """One view."""
        if self.longest:
            unit = self.tower.patch * self.merged
            size = longest_size(rgb.shape[1], rgb.shape[0], unit=unit, side=self.longest)
            pixels = resize_padded(rgb, *size, "bicubic")
            return Views([pixels], ["<|im_start|>", 0, "<|im_end|>"])
        return self.fit_view(rgb, self.pixels(LEAST), self.pixels(MOST), "", "[IMG_END]")

    def inputs(self, grid: PatchGrid) -> dict[str, I32]:
        """The row and the column of each patch."""
        rows, columns = self.rows_and_columns(grid)
        return {"rows": rows, "columns": columns}

    def largest(self) -> PatchGrid:
        """A square of as many tokens as a picture has at most."""
        if not self.longest:
            return self.square(MOST)
        return self.square((-(-self.longest // (self.tower.patch * self.merged))) ** 2)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, half = self.tower, self.tower.head // 2

        def rotate(x: Tensor) -> Tensor:
            x = ops.rope_ext(x, inputs["rows"], None, half, mode="normal", freq_base=BASE)
            second = ops.rope_ext(
                x, inputs["columns"], None, half, mode="normal", freq_base=BASE,
                freq_scale=float(np.float32(BASE) ** np.float32(-2 / tower.head)),
            )  # fmt: skip
            return ops.rope_set_offset(second, half)

        x = at.all(at.embed(patches), rotate)
        n = self.merged
        columns, rows = at.grid.columns // n, at.grid.rows // n
        if n > 1:
            x = at.norm("mm.input_norm", x, rms=True)
            # The matrix takes all of one element of the patches, then all of the next one.
            x = ops.reshape_3d(x, tower.width, n * n, columns * rows)
            x = ops.cont(ops.permute(x, 1, 0, 2, 3))
            x = at.linear("mm.patch_merger", ops.reshape_2d(x, tower.width * n * n, columns * rows))
        x = at.mlp("mm.1", "mm.2", x)
        if self.longest:
            return x
        end = at.weights["v.token_embd.img_break"]
        end = end if end.dtype is DType.F32 else ops.cast(end, DType.F32)
        ends = ops.repeat_4d(ops.reshape_3d(end, tower.out, 1, 1), tower.out, 1, rows, 1)
        x = ops.concat(ops.reshape_3d(x, tower.out, columns, rows), ends, 1)
        total = columns * rows + rows - 1  # the last row has none behind it
        return ops.cont(ops.view_2d(x, tower.out, total, x.nb[1], 0))


def _tower(hp: Hyperparameters) -> Tower:
    return tower_of(hp, rms=True, biased=False, embeds_biased=False, norms="v.pre_ln", rotary=True)
