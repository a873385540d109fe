"""Encoder: from token ids of texts to vectors.

Here: batches, a bounded cache of graphs. Not here: the graph (graph.py), text (encoder_model.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from anyio.lowlevel import checkpoint

from aggml import InvalidArgument
from aggml.models.encoder.graph import Program, build, mask_of
from aggml.models.encoder.packing import F32, Ids, Packing, Shape, fill, pack
from aggml.models.errors import ModelError
from aggml.models.lifetime import Lifetime, closed_error
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, free_with, site_of, unplace
from aggml.stream.slot_pool import SlotPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Backend, Scheduler, Tensor
    from aggml.models.encoder.description import EncoderDescription

__all__ = ["Encoder"]

BATCH_TOKENS: Final = 4096  # the most tokens in a batch; a single text may be longer


class Encoder:
    """A model like BERT on a backend; tasks of any event loop and thread may use it.

    Args:
        backend: where to compute; must stay open while the model is used.
        model: the description of the model.
        weights: by their names in the file, where `load_weights` has put them.
        max_graphs: how many graphs are kept.

    Attributes:
        vocabulary: how many tokens there are.
        ranks: whether the file has a rank head.
    """

    def __init__(
        self,
        backend: Backend | Scheduler,
        model: EncoderDescription,
        weights: Mapping[str, Tensor],
        *,
        max_graphs: int = 32,
    ) -> None:
        self.site = site_of(backend)
        self.model = model
        self.weights = weights
        self.vocabulary = weights["token_embd.weight"].ne[1]
        self.ranks = "cls.output.weight" in weights or "cls.weight" in weights
        self._max_graphs = max_graphs
        self._programs: OrderedDict[tuple[Shape, int, bool], Program] = OrderedDict()
        self._turn = SlotPool(1)  # a graph's inputs hold one batch at a time
        self.lifetime = Lifetime(self._free)

    def close(self) -> None:
        """Free graphs and weights; later batches raise InvalidState.

        If a batch is running, all memory is freed when it ends.
        """
        self.lifetime.close()

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return Parts(self.site, self.weights.values())

    def _free(self) -> None:
        for program in self._programs.values():
            self.site.forget(program.graph)
        self._programs.clear()
        unplace(self.weights.values())
        self.weights = {}
        self.site = CLOSED  # the backend has scratch memory

    async def vectors(self, texts: Sequence[Ids]) -> F32:
        """The pooled vector of each text, not normalised: (len(texts), width) float32.

        Raises:
            InvalidArgument: a text without tokens, an id that is not in the vocabulary.
            ModelError: a text longer than the model's context.

        Cancellation: aborts the computation.
        """
        return await self._all(texts, rank=False)

    async def _all(self, texts: Sequence[Ids], *, rank: bool) -> F32:
        """Vectors or ranks, computed in one batch after the other."""
        for ids in texts:
            self._check(ids)
        found = np.empty((len(texts), 1 if rank else self.model.width), np.float32)
        at = 0
        while at < len(texts):
            end, tokens = at + 1, len(texts[at])
            while end < len(texts) and tokens + len(texts[end]) <= BATCH_TOKENS:
                tokens += len(texts[end])
                end += 1
            found[at:end] = await self._batch(texts[at:end], rank=rank)
            at = end
        return found

    async def scores(self, pairs: Sequence[Ids]) -> F32:
        """The rank of each pair of texts, by the head of a reranker: (len(pairs),) float32.

        Raises:
            ModelError: the file has no such head.

        Cancellation: aborts the computation.
        """
        if not self.ranks:
            raise ModelError("the file has no rank head (cls.weight, cls.output.weight)")
        return (await self._all(pairs, rank=True))[:, 0]

    def _check(self, ids: Ids) -> None:
        if not len(ids):
            raise InvalidArgument("[Encoder] a text has no tokens: give one that is not empty")
        if len(ids) > self.model.context_length:
            raise ModelError(
                f"a text has {len(ids)} tokens, but this model takes at most "
                f"{self.model.context_length}"
            )
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise InvalidArgument(
                f"[Encoder] token ids are 0 to {self.vocabulary - 1}, "
                f"given were {min(ids)} to {max(ids)}"
            )

    async def _batch(self, texts: Sequence[Ids], *, rank: bool) -> F32:
        packing = pack([len(x) for x in texts])
        shape = packing.shape
        async with self._turn.slot():
            with self.lifetime.use("Encoder"):
                program = await self._program(shape, len(texts), rank=rank)
                ids, positions, member = fill(packing, texts)
                await checkpoint()
                inputs: dict[Tensor, Any] = {program.ids: ids.reshape(-1)}
                if self.model.ordered:
                    inputs[program.positions] = positions.reshape(-1)
                segments = np.where(member.any(axis=2), member.argmax(axis=2), -1).astype(np.int32)
                alibi = self.model.distance_bias > 0
                for window, mask in program.masks.items():
                    inputs[mask] = mask_of(segments, window, distances=alibi)
                    await checkpoint()
                row, _, segment = (np.array(x) for x in zip(*packing.places, strict=True))
                if program.member is not None:
                    inputs[program.member] = member / np.maximum(
                        member.sum(axis=1, keepdims=True), 1
                    )
                if program.chosen is not None:
                    inputs[program.chosen] = self._chosen(packing, texts, rank=rank)
                got = await (await self.site.submit(program.graph, inputs, program.vectors))
        if program.chosen is not None:
            found: F32 = np.asarray(got).reshape(len(texts), -1)
            return found[:, :1] if rank else found
        vectors: F32 = np.asarray(got).reshape(shape.rows, shape.segments, -1)[row, segment]
        return vectors

    def _chosen(self, packing: Packing, texts: Sequence[Ids], *, rank: bool) -> Ids:
        """The token whose vector is the text's vector, counted over all rows; one for each text."""
        row, start, _ = np.array(packing.places).T
        at = row * packing.shape.tokens + start
        if self.model.pooling == "last" and not rank:
            at = at + np.array([len(x) for x in texts]) - 1
        found: Ids = at.astype(np.int32)
        return found

    async def _program(self, shape: Shape, texts: int, *, rank: bool) -> Program:
        chosen = rank or self.model.pooling != "mean"
        key = shape, texts if chosen else 0, rank
        program = self._programs.get(key)
        if program is None:
            program = await build(self.model, self.weights, shape, texts, rank=rank)
            if self.lifetime.closed:
                raise closed_error("Encoder")
            await self.site.prepare(program.graph)
            free_with(program, program.graph)
            self._programs[key] = program
            if len(self._programs) > self._max_graphs:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(key)
        return program
