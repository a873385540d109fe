"""A stage: the actor that owns some layers of a model, their weights and their caches.

Here: opening, steps in the order of each slot. Not here: which steps there are (dispatch.py), how
they arrive and leave (neighbours.py), the computation (aggml.models.decoder).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import ray
import ray.util

import aggml
from aggml.models.stages import Batch, Group, load_decoder, open_model
from aggml.ray.errors import StageLost
from aggml.ray.files import fetch
from aggml.ray.measuring import Measured, measure_layers
from aggml.ray.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from aggml import Backend, Future, Trace
    from aggml.models.stages import Decoder
    from aggml.ray.files import Source
    from aggml.ray.measuring import Sample
    from aggml.ray.step import Ask, PipelineStep

__all__ = ["Duty", "Facts", "Opening", "Seen", "StageActor"]

Array = Any  # numpy's, of one of several types


@dataclass(frozen=True, slots=True)
class Duty:
    """The settings of a stage; with them Ray can restart it at any time.

    Attributes:
        number: of the stage; 0 has the embeddings.
        stages: how many there are.
        source: the model file.
        ctx, slots, cache: as for `aggml.models.load`.
        backend: opens the backend; None: one on the CPU with ``threads``.
        threads: cores on which the stage computes.
    """

    number: int
    stages: int
    source: Source
    ctx: int
    slots: int
    cache: str
    backend: Callable[[], Backend] | None
    threads: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What all stages of a pipeline are told when they are opened, and again after each loss.

    Attributes:
        epoch: counts the losses.
        key: a peer that connects has to prove that it knows this.
        layers: for each stage its first layer and the one after its last.
        traced: whether a trace is running.
    """

    epoch: int
    key: bytes
    layers: tuple[tuple[int, int], ...]
    traced: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What an open stage reports.

    Attributes:
        node: Ray's id of its node.
        layers: its first layer and the one after its last.
        nbytes: bytes of its weights.
        address: where it listens for its neighbours.
    """

    node: str
    layers: tuple[int, int]
    nbytes: int
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stage has recorded for a trace, by its own clock.

    Attributes:
        steps: for each step its number, when it arrived and when it left.
        events: `aggml.TraceEvent` as plain tuples.
    """

    steps: list[tuple[int, float, float]]
    events: list[tuple[Any, ...]]


@dataclass(slots=True)
class _Order:
    """Which step of a slot may be queued next."""

    life: int = -1
    turn: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)

    def go_on(self) -> None:
        """Wake the waiting steps, because another one may be due."""
        self.changed.set()
        self.changed = anyio.Event()


class StageActor:
    """The actor.

    Args:
        duty: its settings.
        files: name of the actor from which a node without the model file fetches it.
    """

    def __init__(self, duty: Duty, files: str) -> None:
        self._duty = duty
        self._files = files
        self._decoder: Decoder | None = None
        self._epoch = -1
        self._orders = [_Order() for _ in range(duty.slots)]
        self._queueing = anyio.Lock()
        self._opening = anyio.Lock()
        self._backend: Backend | None = None
        self._loaded = (0, 0)
        self._busy = 0.0  # seconds in which a step was being computed
        self._trace: Trace | None = None
        self._steps: list[tuple[int, float, float]] = []
        self._neighbours = Neighbours(
            duty.number,
            last=duty.number == duty.stages - 1,
            compute=self.step,
            tell=self._record_step,
        )

    async def open(self, opening: Opening) -> Facts:
        """Load the layers if they are not loaded; from now on refuse steps of older epochs."""
        layers = opening.layers[self._duty.number]
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        async with self._opening:
            if self._decoder is None:
                self._decoder = await self._load(layers)
            if opening.epoch > self._epoch:
                self._epoch = opening.epoch
                for order in self._orders:
                    order.life, order.turn = -1, 0
                    order.go_on()
                self._neighbours.begin(opening.epoch)
                if opening.traced and self._trace is None:
                    await self.trace(on=True)
            address = await self._neighbours.listen(host, opening.key)
        model, weights = self._decoder.model, self._decoder.weights
        nbytes = sum(x.nbytes for name, x in weights.items() if model.uses(name))
        return Facts(ray.get_runtime_context().get_node_id(), layers, nbytes, address)

    async def measure(self, sample: Sample) -> Measured:
        """Measure how long layers take here; done before the layers are cut."""
        async with self._opening:
            path = await fetch(self._duty.source, self._files, self._tell)
            backend = self._open_backend()
            seconds = await measure_layers(backend, path, sample, self._duty.cache)
        free, _ = backend.device.memory()
        return Measured(ray.get_runtime_context().get_node_id(), tuple(seconds), free)

    async def connect(self, epoch: int, address: tuple[str, int]) -> None:
        """Connect to the next stage.

        Raises:
            StageLost: nobody listens there.
        """
        await self._neighbours.connect(epoch, address)

    async def load_progress(self) -> tuple[int, int]:
        """Bytes that were fetched or loaded so far, and bytes in all."""
        return self._loaded

    async def pid(self) -> int:
        """The id of its process."""
        return os.getpid()

    async def busy(self) -> float:
        """Seconds in which it computed, since it was started."""
        return self._busy

    async def step(self, step: PipelineStep, before: list[Array] | None) -> list[Array]:
        """Compute a step over these layers.

        Args:
            step: the tokens.
            before: the result of the previous stage, values (tokens, width); None for the first
                stage.

        Returns:
            The results of `aggml.models.decoder.Decoder.queue`. If this is not the last stage, the
            values for the next one.

        Raises:
            StageLost: the stage was restarted, or the slot has begun a new life.

        Cancellation: aborts the computation.
        """
        future = await self._queue(step, None if before is None else before[0])
        found = await future
        _, started, done = future.times
        if started is not None and done is not None:
            self._busy += done - started
        return [np.asarray(x) for x in found]

    async def close(self) -> None:
        """Close the connections and the backend."""
        await self._neighbours.close()
        if self._backend is not None:
            await self._backend.aclose()

    async def _queue(
        self, step: PipelineStep, values: npt.NDArray[np.float32] | None
    ) -> Future[list[Any]]:
        """Queue a step when it is the turn of each of its slots."""
        for ask in step.asks:
            await self._turn(step, ask)
        decoder = self._ready(step.epoch)
        async with self._queueing:
            for ask in step.asks:
                self._check(step, ask)
            try:
                batch = _batch(step, decoder)
                return await decoder.queue(batch, step.best, hidden=step.hidden, values=values)
            finally:
                for ask in step.asks:
                    order = self._orders[ask.slot]
                    if order.life == ask.life:
                        order.turn += 1
                    order.go_on()

    async def _turn(self, step: PipelineStep, ask: Ask) -> None:
        order = self._orders[ask.slot]
        if ask.life > order.life and step.epoch == self._epoch:
            order.life, order.turn = ask.life, 0
            order.go_on()
        while order.life == ask.life and order.turn < ask.turn:
            await order.changed.wait()
        self._check(step, ask)

    def _check(self, step: PipelineStep, ask: Ask) -> None:
        order = self._orders[ask.slot]
        if step.epoch != self._epoch or (order.life, order.turn) != (ask.life, ask.turn):
            raise StageLost(
                f"stage {self._duty.number} dropped a step of slot {ask.slot} because the slot was "
                "started again",
                self._duty.number,
            )

    def _ready(self, epoch: int) -> Decoder:
        if self._decoder is None or epoch != self._epoch:
            raise StageLost(f"stage {self._duty.number} was restarted", self._duty.number)
        return self._decoder

    def _record_step(self, number: int, came: float, went: float) -> None:
        """Note for a trace that a step has gone to the next stage."""
        if self._trace is not None:
            self._steps.append((number, came, went))

    async def trace(self, *, on: bool) -> Seen:
        """Begin or end a trace; returns what was recorded until now."""
        found = Seen(self._steps, [] if self._trace is None else list(self._trace.events))
        if self._trace is not None:
            self._trace.__exit__()
        self._trace = aggml.trace() if on else None
        if self._trace is not None:
            self._trace.__enter__()
        self._steps = []
        return found

    async def _load(self, layers: tuple[int, int]) -> Decoder:
        duty = self._duty
        path = await fetch(duty.source, self._files, self._tell)
        backend = self._open_backend()
        with await open_model(path) as file:
            return await load_decoder(
                backend, file, ctx=duty.ctx, sequences=duty.slots, cache=duty.cache,
                progress=self._tell, stage=layers,
            )  # fmt: skip

    def _open_backend(self) -> Backend:
        if self._backend is None:
            if self._duty.backend is not None:
                self._backend = self._duty.backend()
            else:
                self._backend = aggml.get_device("CPU").backend(n_threads=self._duty.threads)
        return self._backend

    def _tell(self, done: int, whole: int) -> None:
        self._loaded = done, whole


def _batch(step: PipelineStep, decoder: Decoder) -> Batch:
    """The arrays of a step: a group for each slot."""
    groups: list[Group] = []
    wanted: list[int] = []
    n = 0
    for ask in step.asks:
        ids = np.array([ask.ids], np.int32)
        positions = np.arange(ask.start, ask.start + len(ask.ids), dtype=np.int32)[None]
        rows = positions + np.int32(ask.slot * decoder.ctx)
        seen = decoder.rows_to_read(ask.start + len(ask.ids) - 1)
        groups.append(Group(ids, positions, rows, ask.slot, seen))
        first = n + len(ask.ids) - 1 if ask.last else n
        n += len(ask.ids)
        wanted += range(first, n)
    last = None if len(wanted) == n else np.array(wanted, np.int32)
    return Batch(tuple(groups), last)
