"""lfm2: LFM2-VL. One view of any size; a large picture is seen in pieces, and then as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import ops
from aggml.models.errors import ModelError
from aggml.models.vision.projector import Projector, Views, mlp_forms
from aggml.models.vision.resizing import cut, resize, resize_padded
from aggml.models.vision.sizes import fitting_size
from aggml.models.vision.tower import (
    PatchGrid,
    Tower,
    square_of_positions,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import U8

__all__ = ["Lfm2Pictures"]

LEAST: Final = 64  # tokens of a view
MOST: Final = 256
TOLERANCE: Final = 2.0  # a picture of so many times the pixels of a view is cut
PIECE: Final = 512  # pixels of a side
FEWEST_PIECES: Final = 2
MOST_PIECES: Final = 10
EPS: Final = 1e-5  # of the norm before the projector's matrices
#: Columns and rows of pieces, by their number.
GRIDS: Final = sorted(
    (
        (x, y)
        for x in range(1, MOST_PIECES + 1)
        for y in range(1, MOST_PIECES + 1)
        if FEWEST_PIECES <= x * y <= MOST_PIECES
    ),
    key=math.prod,
)


@dataclass(frozen=True, slots=True)
class Lfm2Pictures(Projector):
    """The projector: patches that lie in a square become one token, perhaps a norm, two matrices.

    Attributes:
        tower: the transformer.
        merged: patches of a side of such a square.
    """

    tower: Tower
    merged: int

    @classmethod
    def read(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> Lfm2Pictures:
        """As a file describes it."""
        tower = tower_of(
            hp, rms=False, biased=True, embeds_biased=True, norms="v.post_ln", sized=False
        )
        merged = hp.integer("vision.projector.scale_factor", 1, least=2, most=64)
        if PIECE % (tower.patch * merged):
            raise ModelError(
                f"clip.vision.patch_size is {tower.patch} and clip.vision.projector.scale_factor "
                f"is {merged}: squares of so many pixels do not fit into pieces of {PIECE}"
            )
        square_of_positions(tensors)
        return cls(tower, merged)

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, size = self.tower, self.tower.width * self.merged**2
        found: dict[str, tuple[int, ...]] = {
            "v.position_embd.weight": (tower.width, square_of_positions(tensors)),
            **mlp_forms(tensors, "mm.1", "mm.2", size, tower.out),
        }  # fmt: skip
        if "mm.input_norm.weight" in tensors or "mm.input_norm.bias" in tensors:
            found |= {"mm.input_norm.weight": (size,), "mm.input_norm.bias": (size,)}
        return found

    def views(self, rgb: U8) -> Views:
        """One view; of a large picture pieces, row by row, and the whole."""
        height, width = rgb.shape[:2]
        unit = self.tower.patch * self.merged
        most = MOST * unit**2
        size = fitting_size(width, height, unit=unit, least=LEAST * unit**2, most=most)
        whole = resize(rgb, *size, "bilinear")
        begin, end = "<|image_start|>", "<|image_end|>"
        near = [max(self.tower.patch, round(x / unit) * unit) for x in (width, height)]
        if math.prod(near) <= most * TOLERANCE:
            return Views([whole], [begin, 0, end])
        columns, rows = _grid(width, height)
        fine = resize_padded(rgb, columns * PIECE, rows * PIECE, "bilinear")
        written: list[str | int] = [begin]
        for y in range(rows):
            for x in range(columns):
                written += [f"<|img_row_{y + 1}_col_{x + 1}|>", y * columns + x]
        written += ["<|img_thumbnail|>", rows * columns, end]
        return Views([*cut(fine, PIECE), whole], written)

    def largest(self) -> PatchGrid:
        """A piece, or a square of as many tokens as a view has at most."""
        n = max(PIECE // self.tower.patch, math.isqrt(MOST) * self.merged)
        return PatchGrid(n, n)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        # Patches come square by square, so that each square is one row behind the layers.
        places = ops.get_rows(at.resized_positions("bilinear|antialias"), inputs["order"])
        x = at.all(ops.add(at.embed(patches), places))
        size = self.merged**2
        x = ops.reshape_2d(x, self.tower.width * size, at.grid.n // size)
        if "mm.input_norm.weight" in at.weights:
            x = at.layer_norm("mm.input_norm", x, EPS)
        return at.mlp("mm.1", "mm.2", x)


def _grid(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of pieces: the grid whose ratio is nearest to that of the picture.

    Of two equally near ones the larger is taken if the picture fills more than half of it. The sums
    are those of f32, as llama.cpp has them.
    """
    one = np.float32
    ratio = one(width) / one(height)
    best, nearest = (1, 1), one(np.inf)
    for grid in GRIDS:
        far = abs(ratio - one(grid[0]) / one(grid[1]))
        fills = one(width * height) > one(0.5) * one(PIECE * PIECE * math.prod(grid))
        if far < nearest or (far == nearest and fills):
            best, nearest = grid, far
    return best
