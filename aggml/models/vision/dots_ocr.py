"""dots_ocr: dots.ocr. One view of any size; rotary positions of rows and columns in the tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml import ops
from aggml.models.vision.projector import Projector, Views, mlp_forms
from aggml.models.vision.tower import (
    PatchGrid,
    Tower,
    pixels_of,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import U8

__all__ = ["DotsOcr"]

EPS: Final = 1e-6  # of the norm before the projector's matrices


@dataclass(frozen=True, slots=True)
class DotsOcr(Projector):
    """The projector: two norms, patches of a square as one token, two matrices.

    Attributes:
        tower: the transformer.
        merged: patches of a side of a square.
        least, most: pixels of a view.
    """

    tower: Tower
    merged: int
    least: int
    most: int

    @classmethod
    def read(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> DotsOcr:
        """As a file describes it."""
        tower = tower_of(
            hp,
            rms=True,
            biased=False,
            embeds_biased=True,
            norms="v.pre_ln",
            sized=False,
            rotary=True,
        )
        merged = hp.integer("vision.projector.scale_factor", least=2, most=64)
        return cls(tower, merged, *pixels_of(hp, (tower.patch * merged) ** 2))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, size = self.tower, self.tower.width * self.merged**2
        return {
            "mm.post_norm.weight": (tower.width,),
            "mm.input_norm.weight": (tower.width,), "mm.input_norm.bias": (tower.width,),
            **mlp_forms(tensors, "mm.0", "mm.2", size, tower.out),
        }  # fmt: skip

    def views(self, rgb: U8) -> Views:
        """One view."""
        return self.fit_view(rgb, self.least, self.most, "<|img|>", "<|endofimg|>")

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Rows and columns of the patches."""
        return {"places": self.places(grid)}

    def largest(self) -> PatchGrid:
        """A square of as many pixels as a view has at most."""
        return self.square(self.most // self.pixels(1))

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, n = self.tower, self.merged**2
        # Patches come square by square, so that each square is one row behind the layers.
        x = at.all(at.embed(patches), at.rotate_by(inputs["places"]))
        x = at.layer_norm("mm.input_norm", at.norm("mm.post_norm", x), EPS)
        x = at.linear("mm.0", ops.reshape_2d(x, tower.width * n, at.grid.n // n))
        return at.linear("mm.2", ops.gelu_erf(x))
