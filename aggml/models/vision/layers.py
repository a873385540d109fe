"""TowerLayers: the nodes of a tower and of the parts around it that several kinds share.

Not here: which of them a kind has, and in which order (its own file in this room).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aggml import DType, ops
from aggml.models.vision.tower import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aggml import Tensor
    from aggml.models.vision.tower import PatchGrid, Tower

__all__ = ["TowerLayers"]


class TowerLayers:
    """The nodes of a tower, for one grid.

    Args:
        tower: the transformer.
        weights: by their names in the file.
        grid: of the view.
        bounds: numbers that bound what matrices take and give, by the names of their tensors, such
            as "v.blk.0.attn_q.input_max".
    """

    def __init__(
        self,
        tower: Tower,
        weights: Mapping[str, Tensor],
        grid: PatchGrid,
        bounds: Mapping[str, float] | None = None,
    ) -> None:
        self.tower = tower
        self.weights = weights
        self.grid = grid
        self._bounds = bounds or {}

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``NAME.weight`` times ``x``, plus ``NAME.bias`` where the file has one."""
        y = ops.mul_mat(self.weights[f"{name}.weight"], self._bound(f"{name}.input", x))
        bias = self.weights.get(f"{name}.bias")
        return self._bound(f"{name}.output", y if bias is None else ops.add(y, bias))

    def _bound(self, name: str, x: Tensor) -> Tensor:
        """``x`` within the bounds of this name, if there are any."""
        least, most = (self._bounds.get(f"{name}_{end}") for end in ("min", "max"))
        if least is None and most is None:
            return x
        return ops.clamp(
            x, -math.inf if least is None else least, math.inf if most is None else most
        )

    def norm(self, name: str, x: Tensor, *, rms: bool | None = None) -> Tensor:
        """The rows of ``x`` normalised, times ``NAME.weight``, plus ``NAME.bias``."""
        tower = self.tower
        rms = tower.rms if rms is None else rms
        y = ops.rms_norm(x, tower.eps) if rms else ops.norm(x, tower.eps)
        y = ops.mul(y, self.weights[f"{name}.weight"])
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def embed(self, patches: Tensor, name: str = "v.patch_embd.weight") -> Tensor:
        """[3 * patch * patch, n] -> [width, n]."""
        weight = self.weights[name]
        size = 3 * self.tower.patch**2
        x = ops.mul_mat(ops.reshape_2d(weight, size, self.tower.width), patches)
        bias = self.weights.get("v.patch_embd.bias")
        return x if bias is None else ops.add(x, bias)

    def embed_still(self, patches: Tensor) -> Tensor:
        """As `embed`, of files with a second matrix for the next picture of a film.

        A still picture is taken twice.
        """
        second = self.weights["v.patch_embd.weight.1"]
        second = ops.reshape_2d(second, 3 * self.tower.patch**2, self.tower.width)
        return ops.add(self.embed(patches), ops.mul_mat(second, patches))

    def rotate_by(self, places: Tensor) -> Callable[[Tensor], Tensor]:
        """Rotary positions of rows and columns, as Qwen2-VL has them, for `all`.

        Args:
            places: i32 [4 * n]: the row of each patch, the column, and both once more.
        """
        head = self.tower.head

        def rotate(x: Tensor) -> Tensor:
            return ops.rope_multi(
                x, places, None, head // 2, [head // 4] * 4, mode="vision", n_ctx_orig=32768,
                freq_base=10000.0,
            )  # fmt: skip

        return rotate

    def layer_norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        """A norm outside of the layers that subtracts the mean, with a bias."""
        y = ops.mul(ops.norm(x, eps), self.weights[f"{name}.weight"])
        return ops.add(y, self.weights[f"{name}.bias"])

    def positions(self, x: Tensor) -> Tensor:
        """``x`` with the learned embeddings of the places of patches."""
        table = self.weights["v.position_embd.weight"]
        return ops.add(x, table if table.dtype is DType.F32 else ops.cast(table, DType.F32))

    def resized_positions(self, mode: str) -> Tensor:
        """The learned embeddings of the places of all patches, row by row: [width, n].

        Args:
            mode: of `aggml.ops.interpolate`, by which the file's square of places becomes the
                view's grid.
        """
        width, grid = self.tower.width, self.grid
        table = self.weights["v.position_embd.weight"]
        side = math.isqrt(table.ne[1])
        if (grid.columns, grid.rows) == (side, side):
            return table
        table = table if table.dtype is DType.F32 else ops.cast(table, DType.F32)
        table = ops.cont(ops.permute(ops.reshape_3d(table, width, side, side), 2, 0, 1, 3))
        table = ops.interpolate(table, grid.columns, grid.rows, width, 1, mode)
        return ops.cont_2d(ops.permute(table, 1, 2, 0, 3), width, grid.n)

    def all(
        self,
        x: Tensor,
        rotate: Callable[[Tensor], Tensor] | None = None,
        mask: Callable[[int], Tensor | None] = lambda _: None,
        each: Callable[[int, Tensor], None] = lambda _i, _x: None,
    ) -> Tensor:
        """All layers, with the norms before and behind them if the file has these.

        Args:
            x: [width, n].
            rotate: gives queries and keys, [head, heads, n], rotary positions.
            mask: of attention, for the number of a layer; None: all patches see each other.
            each: is told the output of each layer.
        """
        if "v.pre_ln.weight" in self.weights:
            x = self.norm("v.pre_ln", x)
        for i in range(self.tower.layers):
            at = f"v.blk.{i}."
            y = self._attention(at, self.norm(f"{at}ln1", x), rotate, mask(i))
            y = self._norm_if(f"{at}attn_post_norm", self._times(f"{at}ls1", y))
            x = ops.add(y, x)
            y = self.net(f"{at}ffn_", self.norm(f"{at}ln2", x))
            y = self._norm_if(f"{at}ffn_post_norm", self._times(f"{at}ls2", y))
            x = self._times(f"{at}out_scale", ops.add(x, y))
            each(i, x)
        return self.norm("v.post_ln", x) if "v.post_ln.weight" in self.weights else x

    def _times(self, name: str, x: Tensor) -> Tensor:
        """``x`` times ``NAME.weight``, if the file has it."""
        factor = self.weights.get(f"{name}.weight")
        return x if factor is None else ops.mul(x, factor)

    def _norm_if(self, name: str, x: Tensor) -> Tensor:
        """``x``, or the norm of this name of it if the file has that."""
        return self.norm(name, x) if f"{name}.weight" in self.weights else x

    def _attention(
        self, at: str, x: Tensor, rotate: Callable[[Tensor], Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        tower, n = self.tower, x.ne[1]
        head, heads = tower.head, tower.heads
        if f"{at}attn_qkv.weight" in self.weights:
            whole = self.linear(f"{at}attn_qkv", x)
            size, row = head * whole.nb[0], whole.nb[1]
            q, k, v = (
                ops.cont(ops.view_3d(whole, head, heads, n, size, row, i * heads * size))
                for i in range(3)
            )
        else:
            q, k, v = (
                ops.reshape_3d(self.linear(f"{at}attn_{part}", x), head, heads, n) for part in "qkv"
            )
        q, k = self._norm_if(f"{at}attn_q_norm", q), self._norm_if(f"{at}attn_k_norm", k)
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        v = ops.rms_norm(v, tower.eps) if tower.value_norm else v
        q, k, v = (ops.permute(y, 0, 2, 1, 3) for y in (q, k, v))
        scale = 1 / math.sqrt(head) if tower.scale is None else tower.scale
        y = ops.flash_attn_ext(q, k, v, mask, scale, 0.0, 0.0)
        return self.linear(f"{at}attn_out", ops.reshape_2d(y, tower.width, n))

    def net(self, at: str, x: Tensor) -> Tensor:
        """A feed-forward net, with a gate if the file has one; ``at`` begins the tensors' names."""
        act = ACTIVATIONS[self.tower.activation]
        up = self.linear(f"{at}up", x)
        if f"{at}gate.weight" in self.weights:
            up = ops.mul(act(self.linear(f"{at}gate", x)), up)
        else:
            up = act(up)
        return self.linear(f"{at}down", up)

    def mlp(self, first: str, second: str, x: Tensor) -> Tensor:
        """Two matrices with GELU between them."""
        return self.linear(second, ops.gelu(self.linear(first, x)))
