"""kimivl: Kimi-VL. One view of any size; learned and rotary positions in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml import ops
from aggml.models.vision.projector import Projector, Views, mlp_forms
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
    from aggml.models.vision.projector import I32, U8

__all__ = ["KimiVL"]

BASE: Final = 10000.0  # of the frequencies
LEAST: Final = 8  # tokens of a picture
MOST: Final = 1024
EPS: Final = 1e-5  # of the norm before the projector's matrices


@dataclass(frozen=True, slots=True)
class KimiVL(Projector):
    """The projector: a norm, patches of a square as one token, two matrices.

    Attributes:
        tower: the transformer.
        merged: patches of a side of a square.
    """

    tower: Tower
    merged: int

    @classmethod
    def read(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> KimiVL:
        """As a file describes it."""
        tower = tower_of(
            hp,
            rms=False,
            biased=True,
            embeds_biased=True,
            norms="v.post_ln",
            sized=False,
            rotary=True,
        )
        square_of_positions(tensors)
        return cls(tower, hp.integer("vision.projector.scale_factor", 1, least=2, most=64))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, size = self.tower, self.tower.width * self.merged**2
        return {
            "v.position_embd.weight": (tower.width, square_of_positions(tensors)),
            "mm.input_norm.weight": (tower.width,), "mm.input_norm.bias": (tower.width,),
            **mlp_forms(tensors, "mm.1", "mm.2", size, tower.out),
        }  # fmt: skip

    def views(self, rgb: U8) -> Views:
        """One view."""
        least, most = self.pixels(LEAST), self.pixels(MOST)
        return self.fit_view(rgb, least, most, "<|media_start|>", "<|media_end|>")

    def inputs(self, grid: PatchGrid) -> dict[str, I32]:
        """The row and the column of each patch."""
        rows, columns = self.rows_and_columns(grid)
        return {"rows": rows, "columns": columns}

    def largest(self) -> PatchGrid:
        """A square of as many tokens as a picture has at most."""
        return self.square(MOST)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, half, n = self.tower, self.tower.head // 2, self.merged**2

        def rotate(x: Tensor) -> Tensor:
            x = ops.rope_ext(x, inputs["columns"], None, half, mode="normal", freq_base=BASE)
            second = ops.rope_ext(x, inputs["rows"], None, half, mode="normal", freq_base=BASE)
            return ops.rope_set_offset(second, half)

        # Patches come square by square, so that each square is one row behind the layers.
        places = ops.get_rows(at.resized_positions("bilinear|antialias"), inputs["order"])
        x = at.all(ops.add(at.embed(patches), places), rotate)
        x = at.layer_norm("mm.input_norm", x, EPS)
        return at.mlp("mm.1", "mm.2", ops.reshape_2d(x, tower.width * n, at.grid.n // n))
