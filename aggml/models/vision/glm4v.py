"""glm4v: GLM-4.1V to 4.6V, GLM-OCR. One view of any size, whose tokens have rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from aggml import ops
from aggml.models.vision.projector import Projector, Views
from aggml.models.vision.tower import (
    HEAD_NORMS,
    PatchGrid,
    Tower,
    check_merged,
    square_of_positions,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import U8

__all__ = ["Glm4Pictures"]

MERGED: Final = 2  # patches of a side of a square
LEAST: Final = 8  # tokens of a picture
MOST: Final = 4096
EPS: Final = 1e-5  # of the norm within the projector


@dataclass(frozen=True, slots=True)
class Glm4Pictures(Projector):
    """The projector: four patches of a square as one token by a matrix, another, a norm, a net.

    Attributes:
        tower: the transformer.
        learned: whether there are learned positions, beside the rotary ones, and a norm of patches;
            GLM-OCR has neither.
        merged: patches of a side of a square.
    """

    tower: Tower
    learned: bool
    merged: int = MERGED

    @property
    def placed(self) -> bool:
        """Its tokens have rotary positions of rows and columns in the text model."""
        return True

    @classmethod
    def read(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> Glm4Pictures:
        """As a file describes it."""
        tower = tower_of(
            hp,
            rms=True,
            biased=False,
            embeds_biased=True,
            norms="v.post_ln",
            sized=False,
            rotary=True,
        )
        check_merged(hp, MERGED)
        square_of_positions(tensors)
        learned = any(x in tensors for x in ("v.position_embd.weight", "v.norm_embd.weight"))
        return cls(replace(tower, optional=HEAD_NORMS), learned)

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, out = self.tower, self.tower.out
        inner = tensors["mm.up.weight"].ne[1] if "mm.up.weight" in tensors else out
        found: dict[str, tuple[int, ...]] = {
            "v.patch_embd.weight.1": (tower.patch, tower.patch, 3, tower.width),
            "mm.patch_merger.weight": (MERGED, MERGED, tower.width, out),
            "mm.patch_merger.bias": (out,), "mm.model.fc.weight": (out, out),
            "mm.post_norm.weight": (out,), "mm.post_norm.bias": (out,),
            "mm.gate.weight": (out, inner), "mm.up.weight": (out, inner),
            "mm.down.weight": (inner, out),
        }  # fmt: skip
        if self.learned:
            found["v.position_embd.weight"] = (tower.width, square_of_positions(tensors))
            found["v.norm_embd.weight"] = (tower.width,)
        return found

    def views(self, rgb: U8) -> Views:
        """One view."""
        least, most = self.pixels(LEAST), self.pixels(MOST)
        return self.fit_view(rgb, least, most, "<|begin_of_image|>", "<|end_of_image|>")

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Rows and columns of the patches."""
        return {"places": self.places(grid)}

    def largest(self) -> PatchGrid:
        """A square of as many tokens as a picture has at most."""
        return self.square(MOST)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, n = self.tower, at.grid.n // MERGED**2
        x = at.embed_still(patches)
        if self.learned:
            x = at.norm("v.norm_embd", x)
            x = ops.add(x, ops.get_rows(at.resized_positions("bicubic"), inputs["order"]))
        x = at.all(x, at.rotate_by(inputs["places"]))
        # The matrix takes all of one element of the patches, then all of the next one.
        size = tower.width * MERGED**2
        x = ops.reshape_4d(x, tower.width, MERGED, MERGED, n)
        x = ops.reshape_2d(ops.cont(ops.permute(x, 2, 0, 1, 3)), size, n)
        weight = ops.reshape_2d(at.weights["mm.patch_merger.weight"], size, tower.out)
        x = ops.add(ops.mul_mat(weight, x), at.weights["mm.patch_merger.bias"])
        x = at.layer_norm("mm.post_norm", at.linear("mm.model.fc", x), EPS)
        return at.net("mm.", ops.gelu_erf(x))
