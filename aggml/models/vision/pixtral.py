"""pixtral: one view of any size, rotary positions in two dimensions, a token behind each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType, ops
from aggml.models.vision.resizing import resize_padded
from aggml.models.vision.sizes import fitting_size
from aggml.models.vision.tower import PatchGrid, Tower, TowerLayers, Views, squares, tower_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.tower import I32, U8

__all__ = ["Pixtral"]

BASE: Final = 10000.0  # of the frequencies
LEAST: Final = 8  # tokens of a picture
MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class Pixtral:
    """The projector: perhaps patches of a square as one token, then two matrices.

    Attributes:
        tower: the transformer.
        merged: patches of a side of a square; 1: each patch is a token.
        whole: as of `Projector`.
    """

    tower: Tower
    merged: int
    whole: bool = False
    deepstack: int = 0

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Pixtral:
        """As a file describes it."""
        tower = tower_of(hp, rms=True, biased=False, embeds_biased=False, norms="v.pre_ln")
        return cls(tower, hp.integer("vision.spatial_merge_size", 1, least=1, most=16))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower = self.tower
        inner = tensors["mm.1.weight"].ne[1] if "mm.1.weight" in tensors else tower.out
        found: dict[str, tuple[int, ...]] = {
            "mm.1.weight": (tower.width, inner), "mm.2.weight": (inner, tower.out),
            "v.token_embd.img_break": (tower.out,),
        }  # fmt: skip
        if "mm.1.bias" in tensors or "mm.2.bias" in tensors:
            found |= {"mm.1.bias": (inner,), "mm.2.bias": (tower.out,)}
        if self.merged > 1:
            found["mm.input_norm.weight"] = (tower.width,)
            found["mm.patch_merger.weight"] = (tower.width * self.merged**2, tower.width)
        return found

    def views(self, rgb: U8) -> Views:
        """One view."""
        unit = self.tower.patch * self.merged
        width, height = fitting_size(
            rgb.shape[1], rgb.shape[0], unit=unit, least=LEAST * unit**2, most=MOST * unit**2
        )
        return Views([resize_padded(rgb, width, height, "bicubic")], [0, "[IMG_END]"])

    def tokens(self, grid: PatchGrid) -> tuple[int, int] | None:
        """Its tokens have no places of their own."""
        return None

    def inputs(self, grid: PatchGrid) -> dict[str, I32]:
        """The row and the column of each patch."""
        order = self.order(grid)
        at = np.arange(grid.n, dtype=np.int32) if order is None else order
        return {"rows": at // np.int32(grid.columns), "columns": at % np.int32(grid.columns)}

    def input_shapes(self, grid: PatchGrid) -> dict[str, tuple[int, ...]]:
        """As of `Projector`."""
        return {"rows": (grid.n,), "columns": (grid.n,)}

    def largest(self) -> PatchGrid:
        """A square of as many tokens as a picture has at most."""
        n = math.isqrt(MOST) * self.merged
        return PatchGrid(n, n)

    def order(self, grid: PatchGrid) -> I32 | None:
        """Squares one after the other, each row by row."""
        return None if self.merged == 1 else squares(grid, self.merged)

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
        end = at.weights["v.token_embd.img_break"]
        end = end if end.dtype is DType.F32 else ops.cast(end, DType.F32)
        ends = ops.repeat_4d(ops.reshape_3d(end, tower.out, 1, 1), tower.out, 1, rows, 1)
        x = ops.concat(ops.reshape_3d(x, tower.out, columns, rows), ends, 1)
        total = columns * rows + rows - 1  # the last row has none behind it
        return ops.cont(ops.view_2d(x, tower.out, total, x.nb[1], 0))
