"""The graph of some texts through an encoder, and the masks that keep texts apart.

Here, too: `Nodes`, the layers that encoders of texts and of audio share. Not here: how texts are
packed into rows (packing.py), running the graph (encoder.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, Tensor, ops
from aggml.models.blocks.scope import Scope, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from aggml.models.encoder.description import EncoderDescription, EncoderLayer
    from aggml.models.encoder.packing import PackingShape

__all__ = ["Kind", "Nodes", "Program", "build", "mask_of"]

NETS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "joined gelu": ops.geglu_erf,
    "joined silu": ops.swiglu,
}


GATED: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "gated gelu": ops.geglu_erf_split,
    "gated tanh": ops.geglu_split,
    "gated silu": ops.swiglu_split,
}

Kind = Literal["unit", "pooled", "rank", "tokens", "terms", "weights", "multi"]
LEAST: Final = 1e30  # taken from the numbers of padding, so that no maximum is one of them
SHORTEST: Final = 1e-12  # a vector that is shorter is divided by this instead of its length


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program:
    """A graph for one shape and its inputs; an input that the graph does not use is None.

    Attributes:
        ids, positions, types: i32 [tokens of all rows].
        masks: f16 [tokens, tokens, 1, rows], by the window of the layers that use it.
        member: f32 [segments, tokens, rows], 1 where a token belongs to that text of its row.
        chosen: i32 [segments * rows], the token whose vector is the text's vector.
        vectors: [width, segments * rows]; for all tokens [width, tokens of all rows].
    """

    graph: Graph
    ids: Tensor
    positions: Tensor | None
    masks: Mapping[int | None, Tensor]
    member: Tensor | None
    chosen: Tensor | None
    vectors: Tensor
    types: Tensor | None = None


def mask_of(
    segments: npt.NDArray[np.int32], window: int | None, *, distances: bool
) -> npt.NDArray[np.float16]:
    """(rows, 1, tokens, tokens): 0 between tokens of one text, -inf elsewhere.

    A token of padding sees itself, so that no row consists of -inf alone.

    Args:
        segments: (rows, tokens), the number of each token's text within the row; -1 for padding.
        window: tokens further apart than half of it do not see each other; None: no limit.
        distances: whether the mask has minus the distance instead of 0, for ALiBi.
    """
    n = segments.shape[1]
    apart = np.abs(np.arange(n)[:, None] - np.arange(n))
    same = segments[:, :, None] == segments[:, None, :]
    same &= (segments >= 0)[:, :, None]
    if window is not None:
        same &= apart <= window // 2
    same |= apart == 0
    seen = -apart.astype(np.float16) if distances else np.float16(0)
    return np.where(same, seen, np.float16(-np.inf))[:, None]


async def build(
    model: EncoderDescription,
    weights: Mapping[str, Tensor],
    shape: PackingShape,
    kind: Kind = "pooled",
    *,
    narrow: bool = False,
    typed: bool = False,
) -> Program:
    """The graph of a part of a batch.

    Args:
        model: the description of the model.
        weights: by their names in the file.
        shape: rows, tokens of a row, segments of a row.
        kind: "pooled": a vector of each text; "unit": the same with length 1; "rank": the rank
            head's output for the first token of each text; "tokens": the vectors of all tokens;
            "terms": for each text a number of each word in the vocabulary, by the head that
            predicts masked words: each row is one text; "weights": a number of each token; "multi":
            a vector of each, by a head for that.
        narrow: whether keys and values are bf16.
        typed: whether the types of tokens are given; else all are of type 0.
    """
    rows, tokens, segments = shape.rows, shape.tokens, shape.segments
    total = rows * tokens

    def new_input(name: str, dtype: DType, *ne: int) -> Tensor:
        return aggml.new_tensor(dtype, ne=ne, name=name).set_input()

    ids = new_input("ids", DType.I32, total)
    positions = new_input("positions", DType.I32, total) if model.ordered else None
    pooled = kind in ("unit", "pooled")
    mean = pooled and model.pooling == "mean"
    masks: dict[int | None, Tensor | None] = {}
    inputs: dict[int | None, Tensor] = {}
    member = None
    for window in sorted({layer.window for layer in model.layers}, key=lambda w: w or 0):
        limited = window is not None and tokens - 1 > window // 2
        if limited or model.distance_bias > 0:
            inputs[window] = new_input("mask", DType.F16, tokens, tokens, 1, rows)
            masks[window] = inputs[window]
        elif shape.masked:
            member = member or new_input("member", DType.F32, segments, tokens, rows)
            masks[window] = masks[None] if None in masks else _mask(member, shape)
            masks.setdefault(None, masks[window])
        else:
            masks[window] = None
    if (mean or kind == "terms") and shape.masked:
        member = member or new_input("member", DType.F32, segments, tokens, rows)
    part = Nodes(model, weights, masks, positions, shape, narrow=narrow)
    types = new_input("types", DType.I32, total) if typed else None
    x = part.embed(ids, types)
    for i, layer in enumerate(model.layers):
        x = part.layer(i, layer, x)
        await checkpoint()
    if model.layers[-1].norms_first:
        x = part.norm(model.last_norm, x)
    chosen = None
    if mean:
        x = part.means(x, member)
    elif kind == "terms":
        x = part.terms(x, member)
    elif kind == "weights":
        x = ops.relu(part.linear("sparse", x))
    elif kind == "multi":
        x = part.linear("multi", x)
    elif kind != "tokens":
        chosen = new_input("chosen", DType.I32, segments * rows)
        x = ops.get_rows(x, chosen)
        if kind == "rank":
            x = part.rank(x)
    if pooled:
        for name in ("dense_2", "dense_3"):
            x = part.linear(name, x) if f"{name}.weight" in weights else x
    if kind == "unit":
        x = ops.l2_norm(x, SHORTEST)
    return Program(Graph(x.set_output()), ids, positions, inputs, member, chosen, x, types)


def _mask(member: Tensor, shape: PackingShape) -> Tensor:
    """[tokens, tokens, 1, rows] f16: 0 between two tokens of one text, else -60000.

    It is finite because a token of padding belongs to no text: its row would be all -inf. After
    soft_max, -60000 gives 0 just as -inf does.
    """
    same = ops.mul_mat(member, member)  # 1 or 0
    mask = ops.cast(ops.scale_bias(same, 60000.0, -60000.0), DType.F16)
    return ops.reshape_4d(mask, shape.tokens, shape.tokens, 1, shape.rows)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Builds the nodes of one graph.

    Attributes:
        model: the description of the model.
        weights: by their names in the file.
        masks: of attention, by the window of the layers that use it; None: no mask.
        positions: of the tokens; None: the model uses none.
        shape: rows and tokens.
        prefix: the beginning of the names of layers, such as "enc.".
        narrow: whether keys and values are bf16: processors with tile units (AMX) then need half
            the time for attention.
    """

    model: EncoderDescription
    weights: Mapping[str, Tensor]
    masks: Mapping[int | None, Tensor | None]
    positions: Tensor | None
    shape: PackingShape
    prefix: str = ""
    narrow: bool = False

    def norm(self, name: str, x: Tensor) -> Tensor:
        """LayerNorm or RMS norm of each row, times the weight, plus a bias if any."""
        y = ops.rms_norm(x, self.model.eps) if self.model.rms else ops.norm(x, self.model.eps)
        y = ops.mul(y, self.weights[f"{name}.weight"])
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """A matrix times ``x``, plus the bias if there is one."""
        y = ops.mul_mat(self.weights[f"{name}.weight"], x)
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Embed tokens, their types and positions, as far as the model has them."""
        w = self.weights
        x = ops.get_rows(w["token_embd.weight"], ids)
        kinds = w.get("token_types.weight")
        if kinds is not None and types is not None:
            x = ops.add(x, ops.get_rows(kinds, types))
        elif kinds is not None:
            x = ops.add(x, ops.view_1d(kinds, self.model.width, 0))
        if self.model.positions:
            assert self.positions is not None
            x = ops.add(x, ops.get_rows(w["position_embd.weight"], self.positions))
        if self.model.embedding_scale != 1.0:
            x = ops.scale(x, self.model.embedding_scale)
        return self.norm("token_embd_norm", x) if self.model.embedding_norm else x

    def means(self, x: Tensor, member: Tensor | None) -> Tensor:
        """[width, tokens of all rows] -> [width, segments * rows]: the mean of each text's tokens.

        Args:
            x: the vectors of all tokens.
            member: 1 where a token belongs to that text of its row; None: each row is one text.
        """
        shape, width = self.shape, self.model.width
        turned = ops.cont(ops.transpose(ops.reshape_3d(x, width, shape.tokens, shape.rows)))
        if member is None:
            return ops.reshape_2d(ops.mean(turned), width, shape.rows)
        of = ops.cont(ops.transpose(member))  # [tokens, segments, rows]
        count = ops.clamp(ops.sum_rows(of), 1.0, float(shape.tokens))  # a segment may be empty
        found = ops.div(ops.mul_mat(turned, of), count)
        return ops.reshape_2d(found, width, shape.segments * shape.rows)

    def rank(self, x: Tensor) -> Tensor:
        """[width, texts] -> [ranks, texts]."""
        w = self.weights
        if "cls.output.weight" not in w:
            return self.linear("cls", x)
        if "cls.weight" in w:
            act = ops.gelu_erf if "cls.norm.weight" in w else ops.tanh
            x = act(self.linear("cls", x))
        if "cls.norm.weight" in w:
            x = self.norm("cls.norm", x)
        return self.linear("cls.output", x)

    def terms(self, x: Tensor, member: Tensor | None) -> Tensor:
        """[width, tokens of all rows] -> [vocabulary, rows]: the largest number, or the sum.

        The largest number is as the head gives it; what is summed are logarithms.

        Args:
            x: the vectors of all tokens.
            member: 1 where a token belongs to the text of its row; None: everywhere.
        """
        shape, weight = self.shape, self.weights.get("mlm.output.weight")
        y = self.norm("mlm.norm", ops.gelu_erf(self.linear("mlm.dense", x)))
        y = ops.mul_mat(self.weights["token_embd.weight"] if weight is None else weight, y)
        bias = self.weights.get("mlm.output.bias")
        y = y if bias is None else ops.add(y, bias)
        y = ops.reshape_3d(y, y.ne[0], shape.tokens, shape.rows)
        largest = self.model.term_pooling == "max"
        if largest and member is not None:
            y = ops.add(y, ops.scale_bias(member, LEAST, -LEAST))
        if not largest:
            y = ops.relu(y)
            for _ in range(self.model.term_logs):
                y = ops.log(ops.scale_bias(y, 1.0, 1.0))
            y = y if member is None else ops.mul(y, member)
        n = shape.tokens
        y = ops.pool_2d(y, "max" if largest else "avg", 1, n, 1, n, 0, 0)
        y = y if largest else ops.scale(y, float(n))
        return ops.reshape_2d(y, y.ne[0], shape.rows)

    def layer(self, i: int, layer: EncoderLayer, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens]."""
        at = f"{self.prefix}blk.{i}."
        if layer.norms_first:
            first = self.norm(f"{at}attn_norm", x) if f"{at}attn_norm.weight" in self.weights else x
            y = self.attention(at, layer, first)
            x = ops.add(self.norm(f"{at}post_attention_norm", y) if layer.norms_after else y, x)
            y = self.net(at, layer, self.norm(f"{at}ffn_norm", x))
            return ops.add(self.norm(f"{at}post_ffw_norm", y) if layer.norms_after else y, x)
        y = self.norm(f"{at}attn_output_norm", ops.add(self.attention(at, layer, x), x))
        if f"{at}attn_norm_2.weight" in self.weights:
            y = self.norm(f"{at}attn_norm_2", ops.add(y, x))
        return self.norm(f"{at}layer_output_norm", ops.add(self.net(at, layer, y), y))

    def net(self, at: str, layer: EncoderLayer, x: Tensor) -> Tensor:
        """The feed-forward net of a layer, or its experts."""
        if layer.experts is not None:
            return layer.experts.build(self._scope(at), x)
        up = self.linear(f"{at}ffn_up", x)
        if layer.net == "gelu":
            inner = ops.gelu_erf(up)
        elif layer.net in NETS:
            inner = NETS[layer.net](up)
        else:
            gate = self.linear(f"{at}ffn_gate", x)
            inner = GATED[layer.net](gate, up)
        return self.linear(f"{at}ffn_down", inner)

    def _scope(self, at: str) -> Scope:
        """What blocks of decoders need, of which experts use the weights."""
        none: Any = None
        eps, centred = self.model.eps, not self.model.rms
        return Scope(self.weights, at, eps, {}, none, {}, none, 0, Turns((), (), ()), centred)

    def attention(self, at: str, layer: EncoderLayer, x: Tensor) -> Tensor:
        """Attention of all tokens of a row to each other."""
        model, shape = self.model, self.shape
        q, k, v = self.products(at, layer, x)
        if layer.rope is not None:
            q, k = self.rotate(layer, q), self.rotate(layer, k)
        if self.narrow:
            k, v = (y if y.dtype is DType.BF16 else ops.cast(y, DType.BF16) for y in (k, v))

        def heads(y: Tensor) -> Tensor:
            row, head = y.nb[2], y.nb[1]
            split = ops.view_4d(
                y, model.head, y.ne[1], shape.tokens, shape.rows,
                head, row, row * shape.tokens, 0,
            )  # fmt: skip
            return ops.permute(split, 0, 2, 1, 3)

        y = ops.flash_attn_ext(
            heads(q), heads(k), heads(v), self.masks[layer.window],
            1 / math.sqrt(model.head), model.distance_bias, 0.0,
        )  # fmt: skip
        y = ops.reshape_2d(y, model.head * model.heads, shape.rows * shape.tokens)
        return self.linear(f"{at}attn_output", y)

    def products(self, at: str, layer: EncoderLayer, x: Tensor) -> list[Tensor]:
        """Queries, keys and values [head, heads, tokens], from one matrix or three."""
        w, n = self.weights, self.model.width
        name = f"{at}attn_qkv"
        if f"{name}.weight" not in w:
            found = [self.linear(f"{at}attn_{part}", x) for part in "qkv"]
            heads = self.model.heads, self.model.keys, self.model.keys
            if layer.head_norms:
                found = [self.split(y, 0, n) for y, n in zip(found, heads, strict=True)]
            for i, part in enumerate("qk"):
                if f"{at}attn_{part}_norm.weight" in w:
                    found[i] = self.norm(f"{at}attn_{part}_norm", found[i])
            if layer.head_norms:
                return found
            return [self.split(y, 0, n) for y, n in zip(found, heads, strict=True)]
        if not self.narrow or layer.rope is not None:
            whole = self.linear(name, x)
            return [self.split(whole, i) for i in range(3)]
        weight, bias = w[f"{name}.weight"], w.get(f"{name}.bias")

        def product(first: int, rows: int) -> Tensor:
            y = ops.mul_mat(ops.view_2d(weight, n, rows, weight.nb[1], weight.nb[1] * first), x)
            return y if bias is None else ops.add(y, ops.view_1d(bias, rows, bias.nb[0] * first))

        # The product writes bf16 itself, because its f32 result is used by the cast alone.
        kv = ops.cast(product(n, 2 * n), DType.BF16)
        return [self.split(product(0, n), 0), self.split(kv, 0), self.split(kv, 1)]

    def split(self, y: Tensor, part: int, heads: int = 0) -> Tensor:
        """One of several results in each row, as heads: [head, heads, tokens].

        Args:
            y: [any, tokens].
            part: which one of the results.
            heads: of the only result; 0: each has the heads of queries.
        """
        model, size = self.model, y.nb[0]
        return ops.view_3d(
            y, model.head, heads or model.heads, y.ne[1], size * model.head, y.nb[1],
            size * model.head * model.heads * part,
        )  # fmt: skip

    def rotate(self, layer: EncoderLayer, x: Tensor) -> Tensor:
        """Give queries or keys rotary positions."""
        rope: Any = layer.rope
        assert self.positions is not None
        factors = None if rope.factors is None else self.weights.get(rope.factors)
        return ops.rope_ext(
            x, self.positions, factors, rope.dims, mode=rope.mode, n_ctx_orig=rope.original_context,
            freq_base=rope.base, freq_scale=rope.scale, ext_factor=rope.extrapolation,
            attn_factor=rope.attention_factor, beta_fast=rope.beta_fast, beta_slow=rope.beta_slow,
        )  # fmt: skip
