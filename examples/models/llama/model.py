"""Llama-architecture models of GGUF files (llama, qwen2, qwen3), any number of sequences together.

Here: a model with its KV cache, the running of steps. Not here: the file (file.py), what a step
takes in (batch.py), its graph (graph.py), text and tokens (../vocabulary.py), which
token to take (../sampling.py), generating (../generating.py).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, Tensor, ops
from models.llama.batch import CHAINED, Batch, Group
from models.llama.file import Config, ModelError, load_weights
from models.llama.graph import Builder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml import Backend, Future, GGUFFile
    from models.llama.batch import Shape
    from models.llama.graph import Step

KV_STEP: Final = 256  # attention reads so many positions more at a time: fewer different graphs
CHUNK: Final = 512  # tokens of a prompt computed at once

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Best:
    """The best tokens of each sequence, in no order: (sequences, best) int32 and float32.

    Where they were asked for, ``every`` has the logits of all: (sequences, vocabulary).
    """

    ids: npt.NDArray[np.int32]
    logits: F32
    every: F32 | None = None


class Llama:
    """A model on a backend, and the KV cache of ``sequences`` sequences of up to ``ctx`` positions.

    ``model = await Llama.load(backend, path)``; then `prefill` each sequence, and `decode` them
    together as often as wanted. One step at a time: the caller awaits one before the next, but for
    steps that `follow` each other.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        weights: Mapping[str, Tensor],
        *,
        ctx: int,
        sequences: int,
        max_graphs: int = 32,
    ) -> None:
        self.backend = backend
        self.config = config
        self.ctx = -(-ctx // KV_STEP) * KV_STEP
        self.sequences = sequences
        self._first_rows = (np.arange(sequences, dtype=np.int32) * self.ctx)[:, None]
        self._w = weights
        self._max_graphs = max_graphs
        self._steps: OrderedDict[Shape, Step] = OrderedDict()  # least recently used first
        self._foreseen: tuple[tuple[int, ...], Step, dict[Tensor, Any]] | None = None
        self._chosen: dict[int, Tensor] = {}  # by the number of sequences
        self._k = self._cache("k", config.key_length)
        self._v = self._cache("v", config.value_length)
        self._memory = self._allocate()
        self._builder = Builder(config, weights, self._k, self._v, self.ctx)

    def _allocate(self) -> object:
        """Give the caches memory, zeros: masked rows must be finite; it lives as long as this."""
        return self.backend.alloc([*self._k, *self._v])

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._w["token_embd.weight"].ne[1]

    def _cache(self, name: str, head: int) -> list[Tensor]:
        ne = (head * self.config.head_count_kv, self.ctx * self.sequences)
        return [
            aggml.new_tensor(DType.F16, ne=ne, name=f"cache_{name}.{i}")
            for i in range(self.config.block_count)
        ]

    @classmethod
    async def load(
        cls,
        backend: Backend,
        file: GGUFFile,
        *,
        ctx: int | None = None,
        sequences: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Bring the weights of a file to ``backend``: mapped if it reads host memory, else copied.

        Args:
            backend: where to compute; must stay open while the model is used.
            file: an open model file.
            ctx: positions of each sequence; if not given what the model was trained for, but at
                most 4096.
            sequences: how many there may be at a time.
            progress: called with bytes loaded so far and bytes in all.

        Raises:
            ModelError: the file is no model that this example can run.
        """
        config, weights = await load_weights(backend, file, progress)
        limit = ctx or min(config.context_length, 4096)
        return cls(backend, config, weights, ctx=limit, sequences=sequences)

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """Take in ``ids`` at positions ``start ..`` of sequence ``slot``.

        Returns:
            The logits after the last one, (vocabulary,) float32.

        Cancellation: aborts the computation; positions from ``start`` on are undefined.
        """
        if not ids:
            raise ValueError("there must be at least one token")
        if start + len(ids) > self.ctx:
            raise ModelError(f"{start + len(ids)} tokens do not fit a context of {self.ctx}")
        logits = np.empty((1, 0), np.float32)
        for at in range(0, len(ids), CHUNK):
            piece = ids[at : at + CHUNK]
            logits = await self._run(slot, np.array([piece], np.int32), np.array([start + at]))
        result: F32 = logits[0]
        return result

    async def decode(self, ids: Sequence[int], positions: Sequence[int]) -> F32:
        """One more token for each of the sequences 0, 1, ...

        Args:
            ids: the token of each.
            positions: where it goes.

        Returns:
            The logits after it, (sequences, vocabulary) float32.

        Cancellation: aborts the computation; these positions are undefined.
        """
        step, inputs = await self._one_more(positions, 0)
        inputs[step.tokens] = np.array(ids, np.int32)
        assert step.logits is not None
        future = self.backend.run(step.graph, inputs, step.logits)
        self._foresee(step, positions, 0)
        return np.asarray(await future).reshape(-1, self.vocabulary)

    async def decode_best(self, ids: Sequence[int], positions: Sequence[int], best: int) -> Best:
        """As `decode`, but of the logits the ``best`` ones alone.

        Cancellation: as `decode`.
        """
        step, inputs = await self._one_more(positions, best)
        inputs[step.tokens] = np.array(ids, np.int32)
        assert step.best is not None
        assert step.logits is not None
        future = self.backend.run(step.graph, inputs, [step.best, step.logits])
        self._foresee(step, positions, best)
        chosen, logits = await future
        return Best(np.asarray(chosen).reshape(-1, best), np.asarray(logits).reshape(-1, best))

    async def follow(
        self, positions: Sequence[int], ids: Sequence[int] | None = None
    ) -> Future[npt.NDArray[np.int32]]:
        """Queue one more token for each of the sequences 0, 1, ..., and the choice of the best.

        The choice stays where the next step finds it, so that one can be queued before anybody has
        seen it: the device goes from one to the other while the tokens are on their way.

        Args:
            positions: where the token goes.
            ids: the token of each; if not given, what the step before chose. That must have been
                queued by `follow` for as many sequences.

        Returns:
            A Future of the best token of each, (sequences,) int32; of equal ones the first.

        Cancellation: nothing is queued. Of the Future: aborts the computation if nobody else awaits
        it; these positions are undefined then, and steps that follow it fail or have no meaning.
        Abort them too, and give ``ids`` to the next one.
        """
        step, inputs = await self._one_more(positions, CHAINED)
        if ids is None:
            del inputs[step.tokens]
        else:
            inputs[step.tokens] = np.array(ids, np.int32)
        assert step.best is not None
        return self.backend.run(step.graph, inputs, step.best)

    async def _one_more(
        self, positions: Sequence[int], best: int
    ) -> tuple[Step, dict[Tensor, Any]]:
        """The step for one token of each sequence, and its inputs; as tokens, any."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] == (best, *positions):
            await checkpoint()
            return foreseen[1:]
        if max(positions) >= self.ctx:
            raise ModelError(f"the context of {self.ctx} tokens is full")
        return await self._fed(self._batch_of_one(positions), best)

    def _batch_of_one(self, positions: Sequence[int]) -> Batch:
        """One token of each sequence, any."""
        # No more than this: what weights pushed out of the caches comes back at 0.2 us a line.
        at = np.array(positions, np.int32)[:, None]
        rows, kv = at + self._first_rows[: len(at)], self._seen_positions(max(positions))
        return Batch((Group(at, at, rows, 0, kv),))

    def _foresee(self, step: Step, positions: Sequence[int], best: int) -> None:
        """Make the inputs of the next step while this one is computed, if that has its graph."""
        if (max(positions) + 1) % KV_STEP:
            after = [position + 1 for position in positions]
            inputs = step.inputs(self._batch_of_one(after))
            self._foreseen = ((best, *after), step, inputs)

    async def share(self, n: int) -> None:
        """Copy the first ``n`` positions of sequence 0 to all others."""
        nodes = []
        for cache in (*self._k, *self._v):
            row = cache.nb[1]
            source = ops.view_2d(cache, cache.ne[0], n, row, 0)
            for slot in range(1, self.sequences):
                target = ops.view_2d(cache, cache.ne[0], n, row, slot * self.ctx * row)
                nodes.append(ops.cpy(source, target))
            await checkpoint()  # for a model of 16 layers and 8 sequences all of it takes 6 ms
        if nodes:
            graph = Graph(*nodes)
            await self.backend.prepare(graph)
            await self.backend.graph_compute(graph)

    async def _run(
        self, slot: int, ids: npt.NDArray[np.int32], start: npt.NDArray[np.int64]
    ) -> F32:
        """Compute ids (sequences, tokens) that begin at positions ``start``, one per sequence."""
        sequences, tokens = ids.shape
        positions = (start[:, None] + np.arange(tokens)).astype(np.int32)
        group = Group(
            ids, positions, positions + self._first_rows[slot : slot + sequences], slot,
            self._seen_positions(int(positions.max())),
        )  # fmt: skip
        last = (np.arange(1, sequences + 1) * tokens - 1).astype(np.int32)
        return await self._logits(Batch((group,), last if tokens > 1 else None))

    async def _logits(self, batch: Batch) -> F32:
        """(logits of the batch, vocabulary)."""
        step, inputs = await self._fed(batch, 0)
        assert step.logits is not None
        logits = await self.backend.run(step.graph, inputs, step.logits)
        return np.asarray(logits).reshape(-1, self.vocabulary)

    def _seen_positions(self, last: int) -> int:
        """How many positions attention looks at if ``last`` is the last one."""
        return min(-(-(last + 1) // KV_STEP) * KV_STEP, self.ctx)

    async def best_of(self, batch: Batch, best: int, *, every: bool = False) -> Best:
        """Compute a batch.

        Args:
            batch: what it takes in.
            best: how many logits to bring here, after each of its last tokens.
            every: whether to bring all of them beside these: 0.5 MB for each token of 128,000.

        Cancellation: aborts the computation; the rows of the batch are undefined.
        """
        step, inputs = await self._fed(batch, best, every=every)
        assert step.best is not None
        assert step.logits is not None
        wanted = [step.best, step.logits] + ([] if step.every is None else [step.every])
        ids, logits, *rest = await self.backend.run(step.graph, inputs, wanted)
        return Best(
            np.asarray(ids).reshape(-1, best),
            np.asarray(logits).reshape(-1, best),
            np.asarray(rest[0]).reshape(-1, self.vocabulary) if rest else None,
        )

    async def _fed(
        self, batch: Batch, best: int, *, every: bool = False
    ) -> tuple[Step, dict[Tensor, Any]]:
        """The step for a batch, and its inputs; ``best`` may be CHAINED."""
        step = await self._step(batch.shape(best, every=every))
        return step, step.inputs(batch)

    async def _step(self, shape: Shape) -> Step:
        step = self._steps.get(shape)
        if step is None:
            chosen = await self._kept(shape.tokens) if shape.chained else None
            step = await self._builder.build(shape, chosen)
            await self.backend.prepare(step.graph)
            self._steps[shape] = step
            if len(self._steps) > self._max_graphs:
                self._steps.popitem(last=False)
        else:
            self._steps.move_to_end(shape)
        return step

    async def _kept(self, n: int) -> Tensor:
        """Where chained steps of ``n`` sequences leave their tokens."""
        kept = self._chosen.get(n)
        if kept is None:
            kept = aggml.new_tensor(DType.I32, ne=n, name="chosen")
            await self.backend.alloc_async([kept])
            self._chosen[n] = kept
        return kept
