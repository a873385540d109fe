"""Aligning: the attention of a window's tokens to its audio, for the times of words.

The decoder's own graph is built once more, for all tokens of some windows at once. Its attention to
the audio also brings the weights of some heads. Not here: times from these weights (words.py).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np

from aggml import DType, ops
from aggml.models.blocks import CrossAttention
from aggml.models.blocks.attention import heads_of, queries_of
from aggml.models.decoder.step import Builder
from aggml.models.speech.prompts import prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.decoder.batch import Batch, Part, Shape
    from aggml.models.decoder.decoder import Decoder
    from aggml.models.decoder.step import Step

    F32 = npt.NDArray[np.float32]

__all__ = ["Aligner", "alignment_heads"]

#: (layers, heads of a layer, multilingual) -> (layer, head) of the heads that follow the speech.
KNOWN: Final[dict[tuple[int, int, bool], tuple[tuple[int, int], ...]]] = {
    (4, 6, False): ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    (4, 6, True): ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
    (6, 8, False): ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
    (6, 8, True): ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
}
KEPT: Final = 24  # graphs
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
    """Attention that also brings the weights of some heads: [frames, tokens, sequences] each.

    They are those of the first rows alone, so no sequence whose weights are wanted has more.
    """

    chosen: tuple[int, ...] = ()
    brought_rows: int = 0  # the first frames, whose weights are computed
    brought: list[Tensor] = field(default_factory=list, compare=False)

    def build(self, at: Scope, x: Tensor) -> Tensor:
        q = at.linear("cross_attn_q", x)
        q = ops.reshape_3d(q, self.head, self.heads, at.shape.tokens)
        (part,) = at.shape.parts
        queries = queries_of(q, part, 0)
        seen, n = self.brought_rows, part.sequences
        keys = heads_of(at.caches["cross_k"], self.head, self.heads, part, seen, self.rows)
        for k in self.chosen:
            one = ops.view_3d(keys, self.head, seen, n, keys.nb[1], keys.nb[3], k * keys.nb[2])
            ask = ops.view_3d(
                queries, self.head, part.tokens, n, queries.nb[1], queries.nb[3],
                k * queries.nb[2],
            )  # fmt: skip
            if one.dtype is not DType.F32:
                one = ops.cast(ops.cont(one), DType.F32)
            scores = ops.mul_mat(one, ops.cont(ask))
            mask = self._mask_of_scores(at, part)
            weights = ops.soft_max_ext(scores, mask, 1 / math.sqrt(self.head), 0.0)
            self.brought.append(weights.set_output())
            at.kept.append(weights)
        return CrossAttention.build(self, at, x)

    def _mask_of_scores(self, at: Scope, part: Part) -> Tensor:
        """The rows that tokens see, of the first ones: f16 [frames, tokens, sequences]."""
        mask = at.passed.get("mask of scores")
        if mask is None:
            n, whole = part.sequences, self.mask_of(at, 0, part)
            row, plane = whole.nb[1], whole.nb[3]
            mask = ops.view_3d(whole, self.brought_rows, part.tokens, n, row, plane, 0)
            mask = at.passed["mask of scores"] = ops.cont(mask)
        return mask


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _AlignedStep:
    """A step of a decoder, and the tensors of its weights of attention."""

    step: Step
    brought: list[Tensor]


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
        self._rows = cross.rows
        self._heads = alignment_heads(len(model.layers), cross.heads, multilingual=multilingual)
        self._steps: OrderedDict[tuple[Shape, int], _AlignedStep] = OrderedDict()

    def clear(self) -> None:
        """Free the graphs."""
        for kept in self._steps.values():
            self._decoder.site.forget(kept.step.graph)
        self._steps.clear()

    async def attention(self, slot: int, ids: Sequence[int]) -> F32:
        """The weights of all tokens of a window in sequence ``slot``: (heads, tokens, frames).

        The sequence's keys and values of text are written anew.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        return (await self.attention_of(slot, [ids], self._rows))[0]

    async def attention_of(
        self, slot: int, texts: Sequence[Sequence[int]], frames: int
    ) -> list[F32]:
        """The weights of windows in the sequences ``slot``, ``slot`` + 1, ...

        Args:
            slot: the first sequence.
            texts: the tokens of each window.
            frames: of how many of the first frames the weights are wanted: no window may have more.

        Returns:
            Of each window (heads, tokens, frames). Frames that it does not have weigh nothing.

        Cancellation: aborts the computation; the sequences are undefined.
        """
        decoder = self._decoder
        with decoder.lifetime.use("Aligner"):
            batch = prompts(decoder, slot, [(ids, 0) for ids in texts], [range(1) for _ in texts])
            kept = await self._step(batch, frames)
            found = await decoder.site.run(kept.step.graph, kept.step.inputs(batch), kept.brought)

        def of_each() -> list[F32]:
            heads = [np.asarray(x).reshape(len(texts), -1, frames) for x in found]
            return [np.stack([x[i, : len(ids)] for x in heads]) for i, ids in enumerate(texts)]

        # Copying some 10 MB takes longer than other tasks of the loop should wait.
        return await anyio.to_thread.run_sync(of_each)

    async def _step(self, batch: Batch, frames: int) -> _AlignedStep:
        """The step of a batch; its graph is kept for the next batch of that shape."""
        decoder = self._decoder
        shape = batch.shape(0)
        kept = self._steps.get((shape, frames))
        if kept is not None:
            self._steps.move_to_end((shape, frames))
            return kept
        brought: list[Tensor] = []
        layers = []
        for i, layer in enumerate(decoder.model.layers):
            cross = layer.cross
            assert isinstance(cross, CrossAttention)
            chosen = tuple(head for at, head in self._heads if at == i)
            aligned = _Aligned(cross.heads, cross.head, cross.rows, chosen, frames, brought)
            layers.append(replace(layer, cross=aligned))
        model = replace(decoder.model, layers=tuple(layers))
        builder = Builder(model, decoder.weights, decoder.caches, decoder.ctx)
        kept = _AlignedStep(await builder.build(shape), brought)
        await decoder.site.prepare(kept.step.graph)
        self._steps[shape, frames] = kept
        if len(self._steps) > KEPT:
            decoder.site.forget(self._steps.popitem(last=False)[1].step.graph)
        return kept
