"""Decoder: a model that continues text, with its caches, any number of sequences together.

Here: the running of steps. Not here: the inputs of a step (batch.py), its graph (step.py), the
weights (../weights.py), text and tokens (../tokenizers/), the choice of a token (sampling.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from anyio.lowlevel import checkpoint

from aggml import DType, Future, Graph, Tensor
from aggml.models.decoder.ahead import Ahead
from aggml.models.decoder.batch import F32, Batch, check, piece, some_of_each
from aggml.models.decoder.drawing import can_draw
from aggml.models.decoder.step import Builder
from aggml.models.decoder.steps import Steps
from aggml.models.errors import ModelError
from aggml.models.kv.caches import CHUNK, Caches, sizes
from aggml.models.kv.reached import Reached
from aggml.models.kv.rows import round_up
from aggml.models.kv.state_rows import Rewind
from aggml.models.kv.written import Written
from aggml.models.lifetime import Lifetime
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, Site, site_of, unplace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Backend, Scheduler
    from aggml.models.adapters.stacks import Adapters
    from aggml.models.decoder.batch import Group, Shape
    from aggml.models.decoder.drawing import Draws
    from aggml.models.decoder.step import Step
    from aggml.models.description import Description

__all__ = ["CHUNK", "F32", "Decoder"]

PIECE: Final = 1 << 24  # logits that `Decoder.logits_at` brings here at a time: 64 MiB


class Decoder:
    """A model on a backend, and the caches of ``sequences`` sequences of up to ``ctx`` positions.

    `prefill` each sequence, then `decode` them together as often as wanted. The caller awaits each
    step before it asks for the next one. Only steps queued by `run_step` may overlap. Tasks of
    other event loops and threads may use other sequences at the same time.

    Args:
        backend: where to compute; must stay open while the model is used. A scheduler computes each
            layer on the backend that holds its weights; the layer's caches lie there, too.
        model: the description of the model.
        weights: by their names in the file, where `load_weights` has put them.
        ctx: positions of each sequence, rounded up to a multiple of 256.
        sequences: how many there may be at a time.
        cache: element type of the caches.
        max_graphs: how many graphs of steps are kept; None: `graphs`.
        adapters: adapters and control vectors, where `AdapterArrays.place` has put them.
        owns_weights: whether the weights are freed with it; another decoder may have them, too.
        rewind: how far the states of sequences can go back.

    Raises:
        ModelError: a head is no whole number of blocks of the cache's type.
    """

    ring: ClassVar[bool] = True  # whether layers with a window keep only its rows, in a ring
    graphs: ClassVar[int] = 32  # how many graphs of steps are kept
    saves: ClassVar[bool] = False  # whether keys, values and states can be taken out of the caches

    def __init__(
        self,
        backend: Backend | Scheduler | Site,
        model: Description,
        weights: Mapping[str, Tensor],
        *,
        ctx: int,
        sequences: int = 1,
        cache: DType | str = DType.F16,
        max_graphs: int | None = None,
        adapters: Adapters | None = None,
        owns_weights: bool = True,
        rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
    ) -> None:
        self.site: Site = backend if isinstance(backend, Site) else site_of(backend)
        self._owns_weights = owns_weights
        self.model = model
        self.ctx: int = round_up(ctx)
        self.sequences = sequences
        self.weights: Mapping[str, Tensor] = weights
        self.adapters = adapters
        embeddings = weights.get("token_embd.weight")  # a stage may have none
        self._vocabulary = 0 if embeddings is None else embeddings.ne[1]
        self._first_rows = (np.arange(sequences, dtype=np.int32) * self.ctx)[:, None]
        self._ahead = Ahead(sequences + 1)
        element = DType.parse(cache)
        self.caches: Caches = Caches(
            model, element, self.ctx, sequences, ring=self.ring, rewind=rewind
        )  # fmt: skip
        states = self.caches.state_rows
        self._reached = Reached(sequences, states) if self.caches.states else None
        self._written = Written() if self.saves else None
        self._memory = self._allocate()
        builder = Builder(model, weights, self.caches, self.ctx, adapters)
        self._steps = Steps(self.site, builder, self.graphs if max_graphs is None else max_graphs)
        self.lifetime: Lifetime = Lifetime(self._free)
        self.draws: bool = can_draw(self.site)

    @classmethod
    def sizes(
        cls,
        model: Description,
        *,
        ctx: int,
        sequences: int,
        cache: DType | str,
        rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
    ) -> list[int]:
        """Bytes of the caches of each layer, with these arguments."""
        element = DType.parse(cache)
        return sizes(model, element, round_up(ctx), sequences, ring=cls.ring, rewind=rewind)

    def _allocate(self) -> object:
        """Allocate the caches, filled with zeros: rows that a mask hides must be finite, too."""
        return [backend.alloc(caches) for backend, caches in self._homes()]

    def _homes(self) -> list[tuple[Backend, list[Tensor]]]:
        """The caches of each backend: a layer's caches lie where its weights lie."""
        weights: dict[str, Tensor] = {}  # one of each layer
        for name, weight in self.weights.items():
            if name.startswith("blk."):
                weights.setdefault(name.split(".", 2)[1], weight)
        found: dict[Backend, list[Tensor]] = {}
        for i, of in enumerate(self.caches.layers, self.model.first):
            found.setdefault(self.site.beside(weights.get(str(i))), []).extend(of.values())
        return [*found.items()]

    def close(self) -> None:
        """Free caches, graphs and weights; later steps raise InvalidState.

        The memory that a running step uses is freed when that step ends. If another task is
        building or queueing a step, all memory is freed when that is done.
        """
        self._steps.closed = True
        self.lifetime.close()

    def _free(self) -> None:
        self._steps.close()
        self._ahead.clear()
        self._memory = ()
        unplace(self.caches.all)
        if self._owns_weights:
            unplace(self.weights.values())
        if self.adapters is not None:
            unplace(self.adapters.tensors)
        self.caches.clear()
        self.weights = {}
        self.site = CLOSED  # the backend has scratch memory

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        more = [] if self.adapters is None else self.adapters.tensors
        own = self.weights.values() if self._owns_weights else ()
        return Parts(self.site, [*own, *more], self.caches.all)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._vocabulary

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """Process ``ids`` at positions ``start ..`` of sequence ``slot``.

        Returns:
            The logits after the last token, (vocabulary,) float32.

        Cancellation: aborts the computation; positions from ``start`` on are undefined.
        """
        self._check(ids, start)
        logits = np.empty((1, 0), np.float32)
        for at in range(0, len(ids), CHUNK):
            logits = await self._run(slot, ids[at : at + CHUNK], start + at)
        result: F32 = logits[0]
        return result

    async def logits(self, ids: Sequence[int], slot: int = 0) -> F32:
        """Process ``ids`` from position 0 of sequence ``slot`` on.

        Returns:
            The logits after each token, (len(ids), vocabulary) float32.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        self._check(ids, 0)
        pieces = [
            await self._run(slot, ids[at : at + CHUNK], at, every=True)
            for at in range(0, len(ids), CHUNK)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _check(self, ids: Sequence[int], start: int) -> None:
        check(ids, start, self.ctx, self.vocabulary)

    async def decode(self, ids: Sequence[int], positions: Sequence[int], slot: int = 0) -> F32:
        """Process one more token of each of the sequences ``slot``, ``slot`` + 1, ...

        Args:
            ids: the token of each sequence.
            positions: the position of each token.
            slot: the first of the sequences.

        Returns:
            The logits after each token, (sequences, vocabulary) float32.

        Cancellation: aborts the computation; these positions are undefined.
        """
        with self.lifetime.use("Decoder"):
            kind = slot, len(positions)
            found = self._ahead.take(kind, positions)
            step, inputs, more = found or (*await self._first(positions, slot), False)
            inputs[step.tokens] = np.array(ids, np.int32)
            taken = _one_of_each(slot, positions)
            future = await self._submit(step, inputs, step.result, taken)
            if self._written is not None:
                self._written.note(future, lambda: taken)
            if not more:
                self._ahead.make(kind, step, positions, self._ones)
        return np.asarray(await future).reshape(-1, self.vocabulary)

    async def _first(self, positions: Sequence[int], slot: int) -> tuple[Step, dict[Tensor, Any]]:
        """The step for one token of each sequence, and its inputs without tokens."""
        if max(positions) >= self.ctx:
            raise ModelError(f"the context of {self.ctx} tokens is full: load with a larger ctx")
        batch = Batch((self._ones(positions, 1, slot),))
        step = await self._steps.of(batch.shape(0))
        inputs = step.inputs(batch)
        del inputs[step.tokens]
        return step, inputs

    def _ones(self, positions: Sequence[int], n: int, slot: int) -> Group:
        """``n`` tokens of each sequence from positions on; the token ids in it are arbitrary."""
        first = self._first_rows[slot : slot + len(positions)]
        return some_of_each(positions, n, first, slot, self.rows_to_read(max(positions)))

    async def hidden(self, ids: Sequence[int], slot: int = 0) -> F32:
        """The normalised output of the last layer for each token, (len(ids), width) float32.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        self._check(ids, 0)
        pieces = []
        for at in range(0, len(ids), CHUNK):
            batch = self._whole(slot, ids[at : at + CHUNK], at, every=True)
            future = await self.queue(batch, hidden=True)
            (found,) = await future
            pieces.append(np.asarray(found).reshape(-1, self.model.width))
        return np.concatenate(pieces)

    async def begin(self, ids: Sequence[int], slot: int = 0) -> None:
        """Process tokens of a sequence from position 0 on, for `logits_at` behind them.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        self._check(ids, 0)
        for at in range(0, len(ids), CHUNK):
            await self._run(slot, ids[at : at + CHUNK], at)

    async def logits_at(self, ids: Sequence[int], start: int, slot: int = 0) -> F32:
        """Process tokens of a sequence at ``start ..``, at most `piece` of them.

        Returns:
            The logits after each token, (len(ids), vocabulary) float32.

        Cancellation: aborts the computation; the sequence is undefined.
        """
        self._check(ids, start)
        return await self._run(slot, ids, start, every=True)

    @property
    def piece(self) -> int:
        """Of how many tokens `logits_at` gives logits, so that they take at most 64 MiB."""
        return max(1, min(CHUNK, PIECE // self.vocabulary))

    async def build(self, batch: Batch, *, hidden: bool) -> Step:
        """Build a step, neither prepared nor kept: for a graph that computes more.

        Args:
            batch: all of its tokens get a result.
            hidden: whether the result is the hidden state instead of logits.
        """
        with self.lifetime.use("Decoder"):
            return await self._steps.build(replace(batch.shape(0), hidden=hidden))

    async def run_more(
        self, step: Step, batch: Batch, more: Mapping[Tensor, Any], results: Sequence[Tensor]
    ) -> Future[Any]:
        """Queue a step whose graph computes more than that of `build`.

        Args:
            step: has that graph; it is prepared.
            batch: its tokens.
            more: further inputs of the graph.
            results: the tensors to bring here.

        Cancellation: nothing is queued.
        """
        with self.lifetime.use("Decoder"):
            inputs = step.inputs(batch) | dict(more)
            return await self._submit(step, inputs, results, batch.taken)

    def batch_of(self, ids: Sequence[int], start: int, slot: int = 0) -> Batch:
        """The batch for a piece of one sequence, of which every token gets a result."""
        return self._whole(slot, ids, start, every=True)

    async def share(self, n: int) -> None:
        """Copy the first ``n`` positions of sequence 0 to all others.

        Raises:
            InvalidState: the model has states, and those of sequence 0 are at another position.

        Cancellation: aborts the copy; the other sequences are undefined.
        """
        with self.lifetime.use("Decoder"):
            others = range(1, self.sequences)
            nodes: list[Tensor] = []
            for slot in others:
                nodes += self.caches.copies(0, slot, n)
                await checkpoint()  # for a model of 16 layers and 8 sequences all of it takes 6 ms
            if self._reached is not None:
                await self._reached.check(0, n)
                self._reached.lose(others)
            if nodes:
                graph = Graph(*nodes)
                await self.site.prepare(graph)
                await self.site.run(graph)
            if self._written is not None:
                self._written.record_copy(0, others)
            if self._reached is not None:
                self._reached.record_copy(0, others)

    async def _submit(
        self,
        step: Step,
        inputs: Mapping[Tensor, Any],
        results: Tensor | Sequence[Tensor],
        taken: Sequence[tuple[int, int, int]],
        *,
        chained: bool = False,
    ) -> Future[Any]:
        """Queue a step. Recurrent states of its sequences must be at its first positions.

        Args:
            step: what to compute.
            inputs: of its graph.
            results: the tensors to bring here.
            taken: for each sequence its number, the first position and the number of tokens.
            chained: the step takes its tokens from the previous step, which is still running.
        """
        if self._reached is not None:
            for slot, first, _ in taken:
                await self._reached.check(slot, first, chained=chained)
        future = self.site.run(step.graph, inputs, results)
        if self._reached is not None:
            for slot, first, n in taken:
                self._reached.note(slot, first, n, future)
        return future

    async def _run(self, slot: int, ids: Sequence[int], start: int, *, every: bool = False) -> F32:
        """Process ``ids`` at ``start ..``; the logits of ``every`` token or of the last one."""
        return await self._logits(self._whole(slot, ids, start, every=every))

    def _whole(self, slot: int, ids: Sequence[int], start: int, *, every: bool) -> Batch:
        """The batch for a piece of one sequence."""
        kv = self.rows_to_read(start + len(ids) - 1)
        return piece(ids, start, self._first_rows[slot], slot, kv, every=every)

    async def _logits(self, batch: Batch) -> F32:
        """Compute a batch: float32 (tokens that get logits, vocabulary)."""
        future = await self.queue(batch)
        (logits,) = await future
        return np.asarray(logits).reshape(-1, self.vocabulary)

    def rows_to_read(self, last: int) -> int:
        """How many cache rows attention reads if ``last`` is the last position."""
        return min(round_up(last + 1), self.ctx)

    async def queue(
        self,
        batch: Batch,
        best: int = 0,
        *,
        every: bool = False,
        hidden: bool = False,
        values: F32 | None = None,
        draws: Draws | None = None,
    ) -> Future[list[npt.NDArray[Any]]]:
        """Queue a step behind those that are queued already.

        Args:
            batch: the inputs.
            best: how many of the best logits of each ``last`` token to bring here; 0: all logits.
            every: whether to bring all logits beside the best ones.
            hidden: whether to bring what `hidden` returns, instead of logits.
            values: replaces the tokens if the model is a stage without embeddings: the output of
                the previous stage, (tokens, width).
            draws: draw one token for each row of logits, and bring only these tokens and their
                logits. A logit is NaN or -inf only if all logits of its row are.

        Returns:
            A Future of (tokens, best) int32 and float32, and (tokens, vocabulary) if ``every``; of
            (tokens, vocabulary) if ``best`` is 0; of (tokens, width) if ``hidden`` or if the model
            is a stage without logits; of (tokens,) int32 and float32 if ``draws``. The arrays have
            the shapes of the graph's tensors: reshape them.

        Cancellation: nothing is queued. Cancelling the await of the Future aborts the computation
        if nobody else awaits it; then the rows of the batch are undefined.
        """
        shape = replace(batch.shape(best, every=every), hidden=hidden)
        with self.lifetime.use("Decoder"):
            step, inputs = await self._find_inputs(batch, shape, draws)
            if values is not None:
                inputs[step.tokens] = values
            future = await self._submit(step, inputs, step.results, batch.taken)
            if self._written is not None:
                self._written.note(future, lambda: batch.written_rows(self.ctx))
            return future

    # -- for the engine

    def find_step(self, shape: Shape) -> Step | None:
        """The prepared step of a shape, if it is kept.

        Raises:
            InvalidState: the model is closed.
        """
        return self._steps.find(shape)

    async def prepare_step(self, shape: Shape) -> Step:
        """The step of a shape; built and prepared if it is not kept.

        Cancellation: the step is not kept; nothing else happens.
        """
        with self.lifetime.use("Decoder"):
            return await self._steps.of(shape)

    def inputs_of(
        self, step: Step, batch: Batch, draws: Draws | None, *, chained: bool
    ) -> dict[Tensor, Any]:
        """The inputs of a step.

        Args:
            step: of the batch's shape.
            batch: what to compute.
            draws: how tokens are drawn; None: none are, or the best one.
            chained: the step takes the tokens that the previous step has left on the device.
        """
        inputs = step.inputs(batch)
        if step.drawing is not None and draws is not None:
            inputs |= step.drawing.inputs(draws)
        if chained:
            del inputs[step.tokens]
            if self.model.predicts and step.given is not None:
                del inputs[step.given]
        return inputs

    def run_step(
        self, step: Step, inputs: Mapping[Tensor, Any], batch: Batch, *, chained: bool
    ) -> Future[Any]:
        """Queue a prepared step at once. The states of its sequences must be where it begins.

        With ``chained`` they will be there: steps are under way, of which the caller looks whether
        they have succeeded.
        """
        with self.lifetime.use("Decoder"):
            if self._reached is not None:
                for slot, first, _ in batch.taken:
                    self._reached.expect(slot, first, chained=chained)
            future = self.site.run(step.graph, inputs, step.results)
            self._note(batch, future)
            return future

    def _note(self, batch: Batch, future: Future[Any]) -> None:
        if self._written is not None:
            self._written.note(future, lambda: batch.written_rows(self.ctx))
        if self._reached is not None:
            for group in batch.groups:
                kept, n = group.history > 1, group.ids.shape[1]
                for slot, first in zip(group.numbers, group.positions[:, 0], strict=True):
                    self._reached.note(
                        int(slot), int(first), n, future, all_kept=kept, place=group.place
                    )

    def choose_state(self, slot: int, at: int) -> None:
        """Go on with the state of a sequence at position ``at``, of those that steps have kept.

        Without states nothing happens.

        Raises:
            InvalidState: there is no such state.
        """
        if self._reached is not None:
            self._reached.choose(slot, at)

    async def _find_inputs(
        self, batch: Batch, shape: Shape, draws: Draws | None
    ) -> tuple[Step, dict[Tensor, Any]]:
        """The step for this shape, and its inputs for this batch."""
        step = await self._steps.of(shape if draws is None else draws.add_to(shape))
        inputs = step.inputs(batch)
        if step.drawing is not None and draws is not None:
            inputs |= step.drawing.inputs(draws)
        return step, inputs


def _one_of_each(slot: int, positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """As `Batch.taken`: one token of each sequence from ``slot`` on."""
    return [(slot + i, position, 1) for i, position in enumerate(positions)]
