"""qwen2vl_merger to qwen3vl_merger: one view of any size, whose tokens have rows and columns.

Four patches of a square are one token. Qwen2.5-VL has windows in most layers; Qwen3-VL has learned
positions, and gives the first layers of the text model something of their own (deepstack).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import ops
from aggml.models.errors import ModelError
from aggml.models.vision.projector import Projector, Views, squares
from aggml.models.vision.tower import (
    PatchGrid,
    Tower,
    check_merged,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import I32, U8

__all__ = ["QwenVision"]

MERGED: Final = 2  # patches of a side of a square
LEAST: Final = 8  # tokens of a picture
MOST: Final = 4096
WINDOW: Final = 112  # pixels of a side


@dataclass(frozen=True, slots=True)
class QwenVision(Projector):
    """The projector: two matrices over the patches of a square.

    Attributes:
        tower: the transformer.
        full: each so many-th layer sees all patches, the others a window; 0: all layers see all.
        window: tokens of a side of a window.
        learned: whether there are learned positions, beside the rotary ones.
        stacked: layers whose output the text model gets, too.
        merged: patches of a side of a square.
    """

    tower: Tower
    full: int = 0
    window: int = 0
    learned: bool = False
    stacked: tuple[int, ...] = ()
    merged: int = MERGED

    @property
    def placed(self) -> bool:
        """Its tokens have rotary positions of rows and columns in the text model."""
        return True

    @property
    def deepstack(self) -> int:
        """How many layers of the text model get something of their own."""
        return len(self.stacked)

    @classmethod
    def read_2(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> QwenVision:
        """As a file of Qwen2-VL describes it."""
        return cls(_tower(hp, rms=False, embeds_biased=False))

    @classmethod
    def read_2_5(cls, hp: Hyperparameters, _: Mapping[str, Tensor]) -> QwenVision:
        """As a file of Qwen2.5-VL describes it."""
        tower = _tower(hp, rms=True, embeds_biased=False)
        window = WINDOW // tower.patch // MERGED
        if window < 1:
            raise ModelError(
                f"clip.vision.patch_size is {tower.patch}, but two patches must fit into a window "
                f"of {WINDOW} pixels"
            )
        return cls(tower, hp.integer("vision.n_wa_pattern", least=0), window)

    @classmethod
    def read_3(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> QwenVision:
        """As a file of Qwen3-VL describes it."""
        tower = _tower(hp, rms=False, embeds_biased=True)
        stacked = [
            i for i in range(tower.layers)
            if any(x.startswith(f"v.deepstack.{i}.") for x in tensors)
        ]  # fmt: skip
        return cls(tower, learned=True, stacked=tuple(stacked))

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower, size = self.tower, self.tower.width * MERGED**2
        found: dict[str, tuple[int, ...]] = {
            "v.patch_embd.weight.1": (tower.patch, tower.patch, 3, tower.width),
            "mm.0.weight": (size, size), "mm.0.bias": (size,),
            "mm.2.weight": (size, tower.out), "mm.2.bias": (tower.out,),
        }  # fmt: skip
        if self.learned:
            n = (tower.side // tower.patch) ** 2
            found |= {"v.position_embd.weight": (tower.width, n)}
        for i in self.stacked:
            at = f"v.deepstack.{i}."
            found |= {
                f"{at}norm.weight": (size,), f"{at}norm.bias": (size,),
                f"{at}fc1.weight": (size, size), f"{at}fc1.bias": (size,),
                f"{at}fc2.weight": (size, tower.out), f"{at}fc2.bias": (tower.out,),
            }  # fmt: skip
        return found

    def views(self, rgb: U8) -> Views:
        """One view."""
        least, most = self.pixels(LEAST), self.pixels(MOST)
        return self.fit_view(rgb, least, most, "<|vision_start|>", "<|vision_end|>")

    def _windows(self, grid: PatchGrid) -> tuple[I32, I32]:
        """The squares window by window, and the number of each one's window."""
        columns, rows = grid.columns // MERGED, grid.rows // MERGED
        y, x = np.divmod(np.arange(columns * rows, dtype=np.int32), np.int32(columns))
        across = -(-columns // self.window)
        number = (y // self.window) * across + x // self.window
        order = np.argsort(number, kind="stable").astype(np.int32)
        return order, number[order].astype(np.int32)

    def order(self, grid: PatchGrid) -> I32 | None:
        """Squares one after the other; with windows those of a window."""
        found = squares(grid, MERGED)
        if not self.full:
            return found
        return np.ascontiguousarray(found.reshape(-1, MERGED**2)[self._windows(grid)[0]]).reshape(
            -1
        )

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """Rows and columns of the patches; with windows the mask, and the way back."""
        found: dict[str, Any] = {"places": self.places(grid)}
        if self.full:
            squares_, numbers = self._windows(grid)
            each = np.repeat(numbers, MERGED**2)
            same = each[:, None] == each[None]
            found["mask"] = np.where(same, np.float16(0), np.float16(-np.inf))
            found["back"] = np.argsort(squares_).astype(np.int32)
        return found

    def input_shapes(self, grid: PatchGrid) -> dict[str, tuple[int, ...]]:
        """The shapes of `inputs`; for the largest view the mask takes 512 MiB."""
        found: dict[str, tuple[int, ...]] = {"places": (4 * grid.n,)}
        if self.full:
            found |= {"mask": (grid.n, grid.n), "back": (grid.n // MERGED**2,)}
        return found

    def largest(self) -> PatchGrid:
        """A square of as many tokens as a picture has at most."""
        return self.square(MOST)

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view; with deepstack the further ones behind each."""
        size, n = self.tower.width * MERGED**2, at.grid.n // MERGED**2
        x = at.embed_still(patches)
        if self.learned:
            places = at.resized_positions("bilinear|align_corners")
            x = ops.add(x, ops.get_rows(places, inputs["order"]))

        def mask(i: int) -> Tensor | None:
            return inputs["mask"] if self.full and (i + 1) % self.full else None

        more: list[Tensor] = []

        def each(i: int, y: Tensor) -> None:
            if i in self.stacked:
                name = f"v.deepstack.{i}."
                y = at.norm(f"{name}norm", ops.reshape_2d(y, size, n))
                more.append(at.mlp(f"{name}fc1", f"{name}fc2", y))

        x = at.all(x, at.rotate_by(inputs["places"]), mask, each)
        x = at.mlp("mm.0", "mm.2", ops.reshape_2d(x, size, n))
        for y in more:
            x = ops.concat(x, y, 0)
        return ops.get_rows(x, inputs["back"]) if self.full else x


def _tower(hp: Hyperparameters, *, rms: bool, embeds_biased: bool) -> Tower:
    check_merged(hp, MERGED)
    return tower_of(
        hp, rms=rms, biased=True, embeds_biased=embeds_biased, norms="v.post_ln", rotary=True
    )
