"""paddleocr: PaddleOCR-VL. One view of any size, whose tokens have rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml import ops
from aggml.models.vision.projector import Projector, Views, mlp_forms
from aggml.models.vision.tower import (
    ACTIVATIONS,
    PatchGrid,
    Tower,
    pixels_of,
    square_of_positions,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import U8

__all__ = ["PaddleOcr"]

MERGED: Final = 2  # patches of a side of a square
EPS: Final = 1e-5  # of the norm before the projector's matrices


@dataclass(frozen=True, slots=True)
class PaddleOcr(Projector):
    """The projector: a norm, four patches of a square as one token, two matrices.

    Attributes:
        tower: the transformer, with learned positions beside the rotary ones.
        least, most: pixels of a view.
        merged: patches of a side of a square.
    """

    tower: Tower
    least: int
    most: int
    merged: int = MERGED

    @property
    def placed(self) -> bool:
        """Its tokens have rotary positions of rows and columns in the text model."""
        return True

    @classmethod
    def read(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> PaddleOcr:
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
        return cls(tower, *pixels_of(hp, (tower.patch * MERGED) ** 2))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, size = self.tower, self.tower.width * MERGED**2
        return {
            "v.position_embd.weight": (tower.width, square_of_positions(tensors)),
            "mm.input_norm.weight": (tower.width,), "mm.input_norm.bias": (tower.width,),
            **mlp_forms(tensors, "mm.1", "mm.2", size, tower.out),
        }  # fmt: skip

    def views(self, rgb: U8) -> Views:
        """One view."""
        return self.fit_view(rgb, self.least, self.most, "<|IMAGE_START|>", "<|IMAGE_END|>")

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Rows and columns of the patches."""
        return {"places": self.places(grid)}

    def largest(self) -> PatchGrid:
        """A square of as many pixels as a view has at most."""
        return self.square(self.most // self.pixels(1))

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, n = self.tower, MERGED**2
        # Patches come square by square, so that each square is one row behind the layers.
        places = ops.get_rows(at.resized_positions("bilinear|antialias"), inputs["order"])
        x = at.all(ops.add(at.embed(patches), places), at.rotate_by(inputs["places"]))
        x = at.layer_norm("mm.input_norm", x, EPS)
        x = at.linear("mm.1", ops.reshape_2d(x, tower.width * n, at.grid.n // n))
        return at.linear("mm.2", ACTIVATIONS[tower.activation](x))
