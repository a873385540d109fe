"""gemma3: one view, whose patches are averaged; its positions in a prompt see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.vision.projector import Projector, Views
from aggml.models.vision.resizing import resize_padded
from aggml.models.vision.tower import (
    PatchGrid,
    Tower,
    merged_of,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import I32, U8

__all__ = ["Gemma3Pictures"]


@dataclass(frozen=True, slots=True)
class Gemma3Pictures(Projector):
    """The projector: the mean of the patches of each square, a norm, a matrix.

    Attributes:
        tower: the transformer.
        merged: patches of a side of a square.
    """

    tower: Tower
    merged: int

    @property
    def whole(self) -> bool:
        """Whether positions of a picture in a prompt see each other also where they come later."""
        return True

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Gemma3Pictures:
        """As a file describes it."""
        tower = tower_of(hp, rms=False, biased=True, embeds_biased=True, norms="v.post_ln")
        return cls(tower, merged_of(hp, tower, default=4, least=1))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, n = self.tower, (self.tower.side // self.tower.patch) ** 2
        return {
            "v.position_embd.weight": (tower.width, n),
            "mm.input_projection.weight": (tower.out, tower.width),
            "mm.soft_emb_norm.weight": (tower.width,),
        }

    def views(self, rgb: U8) -> Views:
        """One view."""
        side = self.tower.side
        pixels = resize_padded(rgb, side, side, "bilinear")
        return Views([pixels], ["<start_of_image>", 0, "<end_of_image>"])

    def order(self, grid: PatchGrid) -> I32 | None:
        """Row by row."""
        return None

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        grid, n = at.grid, self.merged
        x = at.all(at.positions(at.embed(patches)))
        x = ops.cont_4d(ops.transpose(x), grid.columns, grid.rows, self.tower.width, 1)
        x = ops.pool_2d(x, "avg", n, n, n, n, 0, 0)
        x = ops.reshape_2d(x, grid.n // n**2, self.tower.width)
        x = at.norm("mm.soft_emb_norm", ops.cont(ops.transpose(x)), rms=True)
        weight = at.weights["mm.input_projection.weight"]
        return ops.mul_mat(ops.cont(ops.transpose(weight)), x)
