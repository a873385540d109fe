"""internvl: InternVL. A large picture is seen in square pieces, and then as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType, ops
from aggml.models.errors import ModelError
from aggml.models.vision.projector import Projector, Views, mlp_forms
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

__all__ = ["InternVL"]

MOST_PIECES: Final = 64  # of a picture
EPS: Final = 1e-5  # of the norm before the projector's matrices
#: Layers and width of the tower of 6 billion weights, which is built in another way.
LARGE: Final = (45, 3200)


@dataclass(frozen=True, slots=True)
class InternVL(Projector):
    """The projector: patches that lie in a square become one token, then a norm and two matrices.

    Attributes:
        tower: the transformer; a class token stands beside the patches.
        merged: patches of a side of such a square.
        grids: columns and rows of pieces that a picture may be cut into.
    """

    tower: Tower
    merged: int
    grids: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> InternVL:
        """As a file describes it."""
        tower = tower_of(hp, rms=False, biased=True, embeds_biased=True, norms="")
        tower = replace(tower, further=("ls1", "ls2"))
        if (tower.layers, tower.width) == LARGE:
            raise ModelError(
                f"clip.vision.block_count is {tower.layers} and clip.vision.embedding_length is "
                f"{tower.width}: the tower of 6 billion weights is not supported"
            )
        merged = merged_of(hp, tower, default=1, least=2)
        least = hp.integer("vision.preproc_min_tiles", 1, least=1, most=MOST_PIECES)
        most = hp.integer("vision.preproc_max_tiles", 12, least=least, most=MOST_PIECES)
        # Neither side has fewer pieces than the least number of all (as llama.cpp reads files).
        grids = [
            (x, y)
            for x in range(least, most + 1)
            for y in range(least, most + 1)
            if least <= x * y <= most
        ]
        if not grids:
            raise ModelError(
                f"clip.vision.preproc_min_tiles is {least} and clip.vision.preproc_max_tiles is "
                f"{most}: no picture can be cut into so many pieces"
            )
        return cls(tower, merged, tuple(grids))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, n = self.tower, (self.tower.side // self.tower.patch) ** 2
        size = tower.width * self.merged**2
        found: dict[str, tuple[int, ...]] = {
            "v.class_embd": (tower.width,), "v.position_embd.weight": (tower.width, n + 1),
            "mm.model.mlp.0.weight": (size,), "mm.model.mlp.0.bias": (size,),
        }  # fmt: skip
        return found | mlp_forms(tensors, "mm.model.mlp.1", "mm.model.mlp.3", size, tower.out)

    def views(self, rgb: U8) -> Views:
        """Pieces, row by row, and the whole; a picture not larger than a piece is one view."""
        side = self.tower.side
        height, width = rgb.shape[:2]
        pixels: list[U8] = []
        if max(height, width) > side:
            columns, rows = self._grid(width, height)
            fine = resize_padded(rgb, columns * side, rows * side, "bicubic")
            pixels = cut(fine, side)
        pixels.append(resize(rgb, side, side, "bicubic"))
        return Views(pixels, ["<img>", *range(len(pixels)), "</img>"])

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """The columns and rows of pieces that keep most of a picture's pixels and waste least.

        The sums are those of f32, as llama.cpp has them, so that grids at an edge are the same.
        """
        one, side = np.float32, self.tower.side
        best, kept, wasted = self.grids[0], 0, 0
        for columns, rows in self.grids:
            wide, tall = columns * side, rows * side
            scale = min(one(wide) / one(width), one(tall) / one(height))
            shown = min(int(one(width) * scale) * int(one(height) * scale), width * height)
            waste = wide * tall - shown
            if shown > kept or (shown == kept and waste < wasted):
                best, kept, wasted = (columns, rows), shown, waste
        return best

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        width, n = self.tower.width, at.grid.n
        table = at.weights["v.position_embd.weight"]
        # The first place is that of the class token. llama.cpp 0.3.36 takes the last one for it, so
        # that each patch has the place before its own; transformers does not.
        places = ops.view_2d(table, width, n, table.nb[1], table.nb[1])
        x = ops.add(at.embed(patches), ops.get_rows(places, inputs["order"]))
        token = ops.reshape_2d(at.weights["v.class_embd"], width, 1)
        place = ops.view_2d(table, width, 1, table.nb[1], 0)
        place = place if table.dtype is DType.F32 else ops.cast(place, DType.F32)
        x = at.all(ops.concat(x, ops.add(token, place), 1))
        # Patches come square by square, so that each square is one row behind the layers.
        size = self.merged**2
        x = ops.cont(ops.view_2d(x, width, n, x.nb[1], 0))
        x = at.layer_norm("mm.model.mlp.0", ops.reshape_2d(x, width * size, n // size), EPS)
        return at.mlp("mm.model.mlp.1", "mm.model.mlp.3", x)
