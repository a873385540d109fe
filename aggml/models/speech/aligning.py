"""Aligning: the attention of a window's tokens to its audio, for the times of words.

The decoder's own graph is built once more, for all tokens of a window at once. Its attention to the
audio also brings the weights of some heads. Not here: times from these weights (words.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType, ops
from aggml.models.blocks import CrossAttention
from aggml.models.blocks.attention import heads_of, queries_of
from aggml.models.decoder.batch import piece
from aggml.models.decoder.step import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.decoder.decoder import Decoder

    F32 = npt.NDArray[np.float32]

__all__ = ["Aligner", "alignment_heads"]

#: (layers, heads of a layer, multilingual) -> (layer, head) of the heads that follow the speech.
KNOWN: Final[dict[tuple[int, int, bool], tuple[tuple[int, int], ...]]] = {
    (4, 6, False): ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    (4, 6, True): ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
    (6, 8, False): ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
    (6, 8, True): ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
}
MOST: Final = 24  # heads of other models: 1,500 frames of 200 tokens are 1.2 MB of each


def alignment_heads(layers: int, heads: int, *, multilingual: bool) -> list[tuple[int, int]]:
    """The heads, as (layer, head). Of unknown models, some of the upper half of the layers."""
    known = KNOWN.get((layers, heads, multilingual))
    if known is not None:
        return [*known]
    upper = [(i, k) for i in range(layers // 2, layers) for k in range(heads)]
    return upper[:: -(-len(upper) // MOST)]


@dataclass(frozen=True, slots=True)
class _Aligned(CrossAttention):
    """Attention that also brings the weights of some heads: [frames, tokens, heads]."""

    chosen: tuple[int, ...] = ()
    brought: list[Tensor] = field(default_factory=list, compare=False)

    def build(self, at: Scope, x: Tensor) -> Tensor:
        q = at.linear("cross_attn_q", x)
        q = ops.reshape_3d(q, self.head, self.heads, at.shape.tokens)
        (part,) = at.shape.parts
        queries = queries_of(q, part, 0)
        keys = heads_of(at.caches["cross_k"], self.head, self.heads, (part, self.rows, self.rows))
        for k in self.chosen:
            one = ops.view_2d(keys, self.head, self.rows, keys.nb[1], k * keys.nb[2])
            ask = ops.view_2d(queries, self.head, part.tokens, queries.nb[1], k * queries.nb[2])
            if one.dtype is not DType.F32:
                one = ops.cast(ops.cont(one), DType.F32)
            scores = ops.mul_mat(one, ops.cont(ask))
            weights = ops.soft_max_ext(scores, None, 1 / math.sqrt(self.head), 0.0)
            self.brought.append(weights.set_output())
            at.kept.append(weights)
        return CrossAttention.build(self, at, x)


class Aligner:
    """Brings weights of attention from a decoder.

    Args:
        decoder: its caches hold the audio of the windows.
        multilingual: whether the model knows other languages than English.
    """

    def __init__(self, decoder: Decoder, *, multilingual: bool) -> None:
        self._decoder = decoder
        model = decoder.model
        cross = model.layers[0].cross
        assert isinstance(cross, CrossAttention)
        self._heads = alignment_heads(len(model.layers), cross.heads, multilingual=multilingual)

    async def attention(self, slot: int, ids: Sequence[int]) -> F32:
        """The weights of all tokens of a window in sequence ``slot``: (heads, tokens, frames).

        The sequence's keys and values of text are written anew.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        decoder = self._decoder
        brought: list[Tensor] = []
        layers = []
        for i, layer in enumerate(decoder.model.layers):
            cross = layer.cross
            assert isinstance(cross, CrossAttention)
            chosen = tuple(head for at, head in self._heads if at == i)
            aligned = _Aligned(cross.heads, cross.head, cross.rows, chosen, brought)
            layers.append(replace(layer, cross=aligned))
        with decoder.lifetime.use("Aligner"):
            model = replace(decoder.model, layers=tuple(layers))
            builder = Builder(model, decoder.weights, decoder.caches, decoder.ctx)
            rows = np.array([slot * decoder.ctx], np.int32)
            batch = piece(ids, 0, rows, slot, decoder.seen(len(ids) - 1), every=False)
            step = await builder.build(batch.shape(0))
            await decoder.site.prepare(step.graph)
            try:
                found = await decoder.site.run(step.graph, step.inputs(batch), brought)
            finally:
                decoder.site.forget(step.graph)
        shape = (len(ids), brought[0].ne[0])
        return np.stack([np.asarray(x).reshape(shape) for x in found])
