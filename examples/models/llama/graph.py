"""The graph of one step over a KV cache.

Not here: what a step takes in (batch.py), the cache itself, who runs it (model.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, Tensor, ops
from models.llama.batch import joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from models.llama.batch import Batch, Part, Shape
    from models.llama.file import Config


@dataclass(frozen=True, slots=True)
class Step:
    """A graph and its inputs, all i32 but the masks: [kv, tokens, 1, sequences] f16, 0 or -inf."""

    graph: Graph
    tokens: Tensor
    positions: Tensor
    rows: Tensor  # where in the cache
    staged: Tensor | None  # where the last part is written as well
    masks: tuple[Tensor, ...]  # one for each part
    last: Tensor | None  # which rows go on after the last attention; None: all
    logits: Tensor | None  # [vocabulary, ends] f32; of the best: [1, best, ends]; None: chained
    best: Tensor | None  # [best, ends] i32; chained: [ends], which are `tokens` from then on
    every: Tensor | None = None  # [vocabulary, ends] f32, beside the best

    def inputs(self, batch: Batch) -> dict[Tensor, Any]:
        """The arrays of a batch, each for its tensor."""
        groups = batch.groups
        inputs: dict[Tensor, Any] = {
            self.tokens: joined([group.ids for group in groups]),
            self.positions: joined([group.positions for group in groups]),
            self.rows: joined([group.rows for group in groups]),
        }
        inputs.update(zip(self.masks, (group.seen for group in groups), strict=True))
        if self.staged is not None:
            inputs[self.staged] = batch.staged
        if self.last is not None:
            inputs[self.last] = batch.last
        return inputs


@dataclass(frozen=True, slots=True)
class Places:
    """Inputs of every attention, as `Step` has them."""

    positions: Tensor
    rows: Tensor
    staged: Tensor | None
    masks: tuple[Tensor, ...]


class Builder:
    """Builds the graphs of a model's steps.

    Args:
        config, weights: of the model.
        k, v: the cache: [head * heads, ctx * sequences] of each layer.
        ctx: rows of a sequence.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        ctx: int,
    ) -> None:
        self._config = config
        self._w = weights
        self._k, self._v = k, v
        self._ctx = ctx

    async def build(self, shape: Shape, chosen: Tensor | None = None) -> Step:
        """The graph of a step.

        Args:
            shape: of what it takes in.
            chosen: if that is chained, where tokens come from and go to.
        """
        w, c = self._w, self._config

        def given(name: str, n: int) -> Tensor:
            return aggml.new_tensor(DType.I32, ne=n, name=name).set_input()

        positions, rows = (given(name, shape.tokens) for name in ("positions", "rows"))
        tokens = given("tokens", shape.tokens) if chosen is None else chosen
        copied = shape.parts[-1]
        staged = given("staged", copied.sequences * copied.tokens) if shape.staged else None
        last = given("last", shape.ends) if shape.ends else None
        masks = tuple(
            aggml.new_tensor(
                DType.F16, ne=(part.kv, part.tokens, 1, part.sequences), name="mask"
            ).set_input()
            for part in shape.parts
        )
        places = Places(positions, rows, staged, masks)
        x = ops.get_rows(w["token_embd.weight"], tokens)
        for i in range(c.block_count):
            h = ops.mul(ops.rms_norm(x, c.rms_eps), w[f"blk.{i}.attn_norm.weight"])
            y = self._attention(i, h, places, shape)
            if last is not None and i == c.block_count - 1:
                x, y = ops.get_rows(x, last), ops.get_rows(y, last)
            x = ops.add(self._linear(f"blk.{i}.attn_output", y), x)
            h = ops.mul(ops.rms_norm(x, c.rms_eps), w[f"blk.{i}.ffn_norm.weight"])
            gate, up = (self._linear(f"blk.{i}.ffn_{part}", h) for part in ("gate", "up"))
            x = ops.add(self._linear(f"blk.{i}.ffn_down", ops.swiglu_split(gate, up)), x)
            await checkpoint()
        x = ops.mul(ops.rms_norm(x, c.rms_eps), w["output_norm.weight"])
        head = w.get("output.weight", w["token_embd.weight"])
        logits = ops.mul_mat(head, x)
        if chosen is not None:  # top_k, since of equal ones argmax takes the last
            best = ops.reshape_1d(ops.top_k(logits, 1), shape.logits)
            best = ops.cpy(best, tokens).set_output()
            return Step(Graph(best), tokens, positions, rows, staged, masks, last, None, best)
        if not shape.best:
            graph = Graph(logits.set_output())
            return Step(graph, tokens, positions, rows, staged, masks, last, logits, None)
        best = ops.top_k(logits, shape.best).set_output()
        every = logits.set_output() if shape.every else None
        each = ops.reshape_3d(logits, 1, w["token_embd.weight"].ne[1], shape.logits)
        logits = ops.get_rows(each, best).set_output()
        graph = Graph(best, logits, *([] if every is None else [every]))
        return Step(graph, tokens, positions, rows, staged, masks, last, logits, best, every)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = ops.mul_mat(self._w[f"{name}.weight"], x)
        bias = self._w.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def _attention(self, i: int, h: Tensor, places: Places, shape: Shape) -> Tensor:
        """[width, n] -> [value_length * head_count, n]."""
        c, total = self._config, shape.tokens
        q = ops.reshape_3d(self._linear(f"blk.{i}.attn_q", h), c.key_length, c.head_count, total)
        k = ops.reshape_3d(self._linear(f"blk.{i}.attn_k", h), c.key_length, c.head_count_kv, total)
        v = self._linear(f"blk.{i}.attn_v", h)
        q, k = (self._placed(i, part, x, places.positions) for part, x in (("q", q), ("k", k)))
        # Written, then read: what set_rows returns is the cache with the new rows in it.
        new_k, new_v = ops.reshape_2d(k, self._k[i].ne[0], total), v
        k, v = (
            ops.set_rows(cache, new, places.rows)
            for cache, new in ((self._k[i], new_k), (self._v[i], new_v))
        )
        if places.staged is not None:
            n = places.staged.ne[0]
            k, v = (
                ops.set_rows(cache, _columns(new, total - n, n), places.staged)
                for cache, new in ((k, new_k), (v, new_v))
            )
        found, first = None, 0
        for part, mask in zip(shape.parts, places.masks, strict=True):
            n = part.sequences * part.tokens
            mine = ops.view_4d(
                q, c.key_length, c.head_count, part.tokens, part.sequences,
                q.nb[1], q.nb[2], part.tokens * q.nb[2], first * q.nb[2],
            )  # fmt: skip
            keys, values = self._seen(k, c.key_length, part), self._seen(v, c.value_length, part)
            scale = 1 / math.sqrt(c.key_length)
            mine = ops.permute(mine, 0, 2, 1, 3)
            y = ops.flash_attn_ext(mine, keys, values, mask, scale, 0.0, 0.0)
            y = ops.reshape_2d(y, c.value_length * c.head_count, n)
            found = y if found is None else ops.concat(found, y, 1)
            first += n
        assert found is not None
        return found

    def _placed(self, i: int, part: str, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys, [key_length, heads, n], turned by their positions."""
        c = self._config
        norm = self._w.get(f"blk.{i}.attn_{part}_norm.weight")
        if norm is not None:
            x = ops.mul(ops.rms_norm(x, c.rms_eps), norm)
        return ops.rope_ext(
            x,
            positions,
            self._w.get("rope_freqs.weight"),
            c.rope_dims,
            mode="normal" if c.architecture == "llama" else "neox",
            n_ctx_orig=c.original_context,
            freq_base=c.rope_base,
            freq_scale=c.rope_scale,
            ext_factor=c.yarn,
        )

    def _seen(self, cache: Tensor, head: int, part: Part) -> Tensor:
        """[head, kv, heads, sequences] of a cache."""
        row, size = cache.nb[1], cache.dtype.type_size
        return ops.permute(
            ops.view_4d(
                cache, head, self._config.head_count_kv, part.kv, part.sequences,
                head * size, row, self._ctx * row, part.slot * self._ctx * row,
            ),
            0, 2, 1, 3,
        )  # fmt: skip


def _columns(x: Tensor, first: int, n: int) -> Tensor:
    """``n`` columns of a matrix, without a copy."""
    return ops.view_2d(x, x.ne[0], n, x.nb[1], first * x.nb[1])
