"""gemma4v: Gemma 4. One view of any size, whose patches are averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from aggml import ops
from aggml.models.errors import ModelError
from aggml.models.vision.projector import Projector, Views
from aggml.models.vision.tower import (
    BOUNDS,
    HEAD_NORMS,
    PatchGrid,
    Tower,
    is_of_pictures,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.vision.layers import TowerLayers
    from aggml.models.vision.projector import I32, U8

__all__ = ["Gemma4Pictures"]

BASE: Final = 100.0  # of the frequencies
LEAST: Final = 70  # tokens of a picture
MOST: Final = 1120
NORMS: Final = (*HEAD_NORMS, "attn_post_norm", "ffn_post_norm")
#: Widths of the text models (E2B, E4B) in which positions of a picture do not see later ones.
CAUSAL: Final = (1536, 2560)


@dataclass(frozen=True, slots=True)
class Gemma4Pictures(Projector):
    """The projector: the mean of the patches of each square, a norm, a matrix.

    Attributes:
        tower: the transformer; patches have learned and rotary positions of rows and of columns.
        merged: patches of a side of a square.
        rows: places of rows, and of columns, that have a learned position.
    """

    tower: Tower
    merged: int
    rows: int

    @property
    def whole(self) -> bool:
        """Whether positions of a picture in a prompt see each other also where they come later."""
        return self.tower.out not in CAUSAL

    @classmethod
    def read(cls, hp: Hyperparameters, tensors: Mapping[str, Tensor]) -> Gemma4Pictures:
        """As a file describes it."""
        tower = tower_of(
            hp, rms=True, biased=False, embeds_biased=False, norms="", sized=False, rotary=True
        )
        merged = hp.integer("vision.projector.scale_factor", 3, least=1, most=64)
        tower = replace(tower, scale=1.0, value_norm=True, further=NORMS, optional=("out_scale",))
        if not (hp.flag("use_gelu", False) or hp.flag("use_silu", False)):
            # Files do not name the activation of the published models, which is GELU by tanh.
            tower = replace(tower, activation="gelu")
        table = tensors.get("v.position_embd.weight")
        rows = merged if table is None else table.ne[1]
        if rows < merged:
            raise ModelError(
                f"tensor 'v.position_embd.weight' has {rows} places, expected at least {merged}, "
                "the patches of a square"
            )
        return cls(tower, merged, rows)

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Extents of the tensors that it needs beside those of the tower's layers."""
        tower = self.tower
        found: dict[str, tuple[int, ...]] = {
            "v.position_embd.weight": (tower.width, self.rows, 2),
            "mm.input_projection.weight": (tower.width, tower.out),
        }
        if "v.std_bias" in tensors or "v.std_scale" in tensors:
            found |= {"v.std_bias": (tower.width,), "v.std_scale": (tower.width,)}
        return found | {x: (1,) for x in tensors if x.endswith(BOUNDS) and is_of_pictures(x)}

    def views(self, rgb: U8) -> Views:
        """One view."""
        least, most = self.pixels(LEAST), self.pixels(MOST)
        longest = self.rows // self.merged
        return self.fit_view(rgb, least, most, "<|image>", "<image|>", longest)

    def inputs(self, grid: PatchGrid) -> dict[str, Any]:
        """The row and the column of each patch."""
        rows, columns = self.rows_and_columns(grid)
        return {"rows": rows, "columns": columns}

    def largest(self) -> PatchGrid:
        """A view of as many tokens as a picture has at most."""
        longest = self.rows // self.merged
        rows = min(math.isqrt(MOST), longest)
        return PatchGrid(min(MOST // rows, longest) * self.merged, rows * self.merged)

    def order(self, grid: PatchGrid) -> I32 | None:
        """Row by row."""
        return None

    def build(self, at: TowerLayers, patches: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of a view."""
        tower, grid, n = self.tower, at.grid, self.merged
        half = tower.head // 2

        def rotate(x: Tensor) -> Tensor:
            x = ops.rope_ext(x, inputs["columns"], None, half, mode="neox", freq_base=BASE)
            second = ops.rope_ext(x, inputs["rows"], None, half, mode="neox", freq_base=BASE)
            return ops.rope_set_offset(second, half)

        x = at.embed(ops.scale_bias(patches, 2.0, -1.0))
        table = at.weights["v.position_embd.weight"]
        for i, name in enumerate(("columns", "rows")):
            places = ops.view_2d(table, tower.width, table.ne[1], table.nb[1], i * table.nb[2])
            x = ops.add(x, ops.get_rows(places, inputs[name]))
        x = at.all(x, rotate)
        x = ops.cont_4d(ops.transpose(x), grid.columns, grid.rows, tower.width, 1)
        x = ops.pool_2d(x, "avg", n, n, n, n, 0, 0)
        x = ops.cont(ops.transpose(ops.reshape_2d(x, grid.n // n**2, tower.width)))
        x = ops.scale(x, math.sqrt(tower.width))
        if "v.std_bias" in at.weights:
            x = ops.mul(ops.sub(x, at.weights["v.std_bias"]), at.weights["v.std_scale"])
        return at.linear("mm.input_projection", ops.rms_norm(x, tower.eps))
