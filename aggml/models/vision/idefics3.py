"""idefics3: SmolVLM. A picture is seen in square pieces, and once more as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.errors import ModelError
from aggml.models.vision.projector import Projector, Views
from aggml.models.vision.resizing import cut, resize, resize_padded
from aggml.models.vision.tower import (
    Tower,
    merged_of,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import U8

__all__ = ["Idefics3"]


@dataclass(frozen=True, slots=True)
class Idefics3(Projector):
    """The projector: patches that lie in a square become one token, then a matrix.

    Attributes:
        tower: the transformer.
        merged: patches of a side of such a square.
        longest: pixels to which the longer side is brought before the pieces are cut; 0: each side
            is rounded to whole pieces.
    """

    tower: Tower
    merged: int
    longest: int

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Idefics3:
        """As a file describes it."""
        tower = tower_of(hp, rms=False, biased=True, embeds_biased=True, norms="v.post_ln")
        merged = merged_of(hp, tower, default=1, least=2)
        longest = hp.integer("vision.preproc_image_size", 0)
        if longest > 16 * tower.side:
            raise ModelError(
                f"clip.vision.preproc_image_size is {longest}, at most 16 pieces of {tower.side} "
                "pixels are taken on a side"
            )
        return cls(tower, merged, longest)

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, n = self.tower, (self.tower.side // self.tower.patch) ** 2
        return {
            "v.position_embd.weight": (tower.width, n),
            "mm.model.fc.weight": (tower.width * self.merged**2, tower.out),
        }

    def views(self, rgb: U8) -> Views:
        """Pieces, row by row, and the whole."""
        side = self.tower.side
        height, width = rgb.shape[:2]
        if self.longest:
            ratio = width / height
            if width >= height:
                wide, tall = self.longest, int(self.longest / ratio)
                tall += tall % 2
            else:
                wide, tall = int(self.longest * ratio), self.longest
                wide += wide % 2
            wide, tall = max(wide, 1), max(tall, 1)
            columns, rows = -(-wide // side), -(-tall // side)
            fine = resize(rgb, wide, tall, "lanczos")
            fine = resize(fine, columns * side, rows * side, "lanczos")
            whole = resize(fine, side, side, "lanczos")
        else:
            columns = min(max(1, math.floor(width / side + 0.5)), 16)
            rows = min(max(1, math.floor(height / side + 0.5)), 16)
            fine = resize_padded(rgb, columns * side, rows * side, "bicubic")
            whole = resize(rgb, side, side, "bicubic")
        written: list[str | int] = []
        around = "<fake_token_around_image>"
        for y in range(rows):
            for x in range(columns):
                written += [f"{around}<row_{y + 1}_col_{x + 1}>", y * columns + x]
            if y + 1 < rows:
                written.append("\n")
        written += ["\n\n", around, "<global-img>", rows * columns, around]
        return Views([*cut(fine, side), whole], written)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        x = at.embed(patches)
        # Patches come square by square, so that each square is one row behind the layers.
        x = ops.add(x, ops.get_rows(at.weights["v.position_embd.weight"], inputs["order"]))
        x = at.all(x)
        size = self.merged**2
        x = ops.reshape_2d(x, self.tower.width * size, at.grid.n // size)
        return at.linear("mm.model.fc", x)
