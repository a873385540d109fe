"""idefics3: SmolVLM. A picture is seen in square pieces, and once more as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.errors import ModelError
from aggml.models.vision.resizing import resize, resize_padded
from aggml.models.vision.tower import PatchGrid, Tower, TowerLayers, Views, squares, tower_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.tower import I32, U8

__all__ = ["Idefics3"]


@dataclass(frozen=True, slots=True)
class Idefics3:
    """The projector: patches that lie in a square become one token, then a matrix.

    Attributes:
        tower: the transformer.
        merged: patches of a side of such a square.
        longest: pixels to which the longer side is brought before the pieces are cut; 0: each side
            is rounded to whole pieces.
        whole: as of `Projector`.
    """

    tower: Tower
    merged: int
    longest: int
    whole: bool = False
    deepstack: int = 0

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> Idefics3:
        """As a file describes it."""
        tower = tower_of(hp, rms=False, biased=True, embeds_biased=True, norms="v.post_ln")
        merged = hp.integer("vision.projector.scale_factor", 1, least=2, most=64)
        if (tower.side // tower.patch) % merged:
            raise ModelError(
                f"clip.vision.projector.scale_factor is {merged}, which does not divide the "
                f"{tower.side // tower.patch} patches of a side"
            )
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
        pixels: list[U8] = []
        written: list[str | int] = []
        around = "<fake_token_around_image>"
        for y in range(rows):
            for x in range(columns):
                written += [f"{around}<row_{y + 1}_col_{x + 1}>", len(pixels)]
                pixels.append(fine[y * side : (y + 1) * side, x * side : (x + 1) * side])
            if y + 1 < rows:
                written.append("\n")
        written += ["\n\n", around, "<global-img>", len(pixels), around]
        return Views([*pixels, whole], written)

    def tokens(self, grid: PatchGrid) -> tuple[int, int] | None:
        """Its tokens have no places of their own."""
        return None

    def inputs(self, grid: PatchGrid) -> dict[str, I32]:
        """Further inputs: none."""
        return {}

    def input_shapes(self, grid: PatchGrid) -> dict[str, tuple[int, ...]]:
        """As of `Projector`."""
        return {}

    def largest(self) -> PatchGrid:
        """All views have one size."""
        n = self.tower.side // self.tower.patch
        return PatchGrid(n, n)

    def order(self, grid: PatchGrid) -> I32 | None:
        """Squares one after the other, each row by row."""
        return squares(grid, self.merged)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        x = at.embed(patches)
        # Patches come square by square, so that each square is one row behind the layers.
        x = ops.add(x, ops.get_rows(at.weights["v.position_embd.weight"], inputs["order"]))
        x = at.all(x)
        size = self.merged**2
        x = ops.reshape_2d(x, self.tower.width * size, at.grid.n // size)
        return at.linear("mm.model.fc", x)
