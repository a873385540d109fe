"""Carries a layout out: the only file of the scheduler that enqueues.

Here: one submission as one step on all of its streams; the lanes that carry transfers. Not here:
what is done in which order (layout.py), who may submit (scheduler.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.batch import Batch
from aggml.future import Future
from aggml.native import _native
from aggml.scheduler.layout import COPY, PLAN, SET
from aggml.stream import Stream
from aggml.watch import submit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from aggml.backend import Backend
    from aggml.buffer import BufferType
    from aggml.scheduler.layout import Action, Layout
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Lanes", "Output", "Runner"]


class Output:
    """A tensor that a submission reads: ``tensor`` into ``array`` once split ``split`` is done.

    ``split`` is -1 where the value lies in memory that the user placed: read last, by its backend;
    -2 where there is nothing to read.
    """

    __slots__ = ("array", "backend", "split", "tensor")

    def __init__(self, tensor: Tensor, array: Array, split: int, backend: int) -> None:
        self.tensor = tensor
        self.array = array
        self.split = split
        self.backend = backend


class Lanes:
    """Backends for transfers, opened when first needed; memory of the host needs none.

    Args:
        backends: those that compute.
        types: of their buffers.
    """

    def __init__(self, backends: Sequence[Backend], types: Sequence[BufferType]) -> None:
        self._backends = backends
        self._types = types
        self.opened: dict[tuple[str, int], Backend] = {}

    def __call__(self, name: str, b: int) -> Backend:
        """The backend that carries something out for backend ``b``.

        Args:
            name: "in", "out" (inputs, results), "down", "up" (what crosses devices), "compute 1"
                and so on; "feed" is "in" on a stream of its own also where memory is the host's.
            b: index of the backend.
        """
        computes = name.startswith("compute")
        if self._types[b].is_host and not computes and name != "feed":
            return self._backends[b]
        lane = self.opened.get((name, b))
        if lane is None:
            backend = self._backends[b]
            lane = backend._sibling() if computes else backend.device.backend()
            self.opened[name, b] = lane
            lane.stream.name = f"{self._backends[b].name} {name}"
        return lane


class _Unit(Batch):
    """All operations of one submission; waits are put in without a Future."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, guarded=False)
        self.parts: list[Future[Any]] = []
        self._shared: list[Stream] = []

    def share(self, stream: Stream) -> None:
        """Have calls on ``stream`` by this thread become part of the unit."""
        if self._thread not in stream._batches:
            stream._batches[self._thread] = self
            self._shared.append(stream)

    def release(self) -> None:
        """Let go of the streams."""
        for stream in self._shared:
            stream._batches.pop(self._thread, None)
        self._shared.clear()

    def push(self, stream: _native.Stream, desc: _native.Desc) -> tuple[int, int]:
        """Append one operation; tells where."""
        groups = self._groups
        if groups and groups[-1][0] is stream:
            groups[-1][1].append(desc)
        else:
            groups.append((stream, [desc]))
        return len(groups) - 1, len(groups[-1][1]) - 1

    def wait(self, stream: _native.Stream, other: _native.Stream, ticket: int | None) -> None:
        """Let ``stream`` go on after ``ticket`` of ``other``; None: all that is queued there."""
        if stream is not other:
            self.push(stream, _native.wait(other, ticket))


class Runner:
    """Enqueues submissions and keeps their order.

    Submissions get done in the order in which they were enqueued: one stream joins all others.

    Attributes:
        joined: that stream.
        in_flight: Futures of submissions that are not done, as far as it is known.
    """

    def __init__(self, backends: Sequence[Backend], lanes: Lanes) -> None:
        self.backends = backends
        self.lanes = lanes
        self.joined = Stream("scheduler", pool=backends[0].stream.pool)
        self.in_flight: list[Future[Any]] = []
        self._exclusive: Future[Any] | None = None  # the last that used memory shared by all
        self._slots: dict[int, Future[Any]] = {}
        # Of each backend: what was enqueued when this class last did; its last ticket that wrote
        # memory placed by the user.
        self._seen: dict[_native.Stream, int] = {}
        self._written: dict[int, int] = {}

    def busy(self) -> bool:
        """Whether a submission is in flight."""
        self.in_flight = [f for f in self.in_flight if not f.done()]
        return bool(self.in_flight)

    def free_slot(self, n: int) -> int:
        """Of ``n`` slots one that is not in use; else the one whose submission is the oldest."""
        for slot in range(n):
            future = self._slots.get(slot)
            if future is None or future.done():
                return slot
        order = {id(f): i for i, f in enumerate(self.in_flight)}
        return min(range(n), key=lambda s: order.get(id(self._slots[s]), -1))

    # -- one submission

    def enqueue(
        self,
        layout: Layout,
        values: dict[Tensor, Array],
        placed: Sequence[tuple[int, Tensor, Array]],
        outputs: Sequence[Output],
        result: object,
    ) -> Future[Any]:
        """Enqueue all of a submission in one step.

        Args:
            layout: what to do.
            values: for the leafs that each run brings.
            placed: (backend, tensor, value) of tensors with memory of their own to be set first.
            outputs: what to read.
            result: the value of the Future.
        """
        unit = _Unit(self.joined)
        future: Future[Any] = Future(None, result, "submit", abortable=True)
        try:
            used = self._begin(unit, layout, placed)
            self._body(unit, layout.script, values, outputs, used)
            self._finish(unit, layout, outputs, used)
        except BaseException:
            unit.release()
            unit.drop("it could not be enqueued")
            raise
        unit.release()
        # The join's own operation comes last: when it is done, all are.
        _commit(unit, self._close(unit, used), future)
        self._note(layout, placed, future)
        return future

    def _begin(
        self, unit: _Unit, layout: Layout, placed: Sequence[tuple[int, Tensor, Array]]
    ) -> dict[_native.Stream, None]:
        """Come after what has to be over before this submission may touch its memory."""
        used = dict.fromkeys(layout.streams)
        self.busy()
        before: list[tuple[_native.Stream, int]] = []
        slot = layout.slot
        alone = slot is None and bool(self.in_flight)
        behind = self._exclusive is not None and not self._exclusive.done()
        last = None if slot is None else self._slots.get(slot)
        if alone or behind or (last is not None and not last.done()):
            before.append((self.joined.native, self.joined.native.submitted))
        for backend in self.backends:  # what others enqueued there since the last submission
            native = backend.stream.native
            tail = native.submitted
            if self._seen.get(native) != tail and native.completed < tail:
                before.append((native, tail))
        for stream in used:
            for other, ticket in before:
                unit.wait(stream, other, ticket)
        for b, ticket in self._written.items():
            native = self.backends[b].stream.native
            if native.completed < ticket:
                for stream in layout.touched.get(b, ()):
                    unit.wait(stream, native, ticket)
        for b, tensor, array in placed:
            backend = self.backends[b]
            native = backend.stream.native
            if native not in used:
                used[native] = None
                for other, ticket in before:
                    unit.wait(native, other, ticket)
            unit.share(backend.stream)
            unit.parts.append(backend._set(tensor, array))
            for stream in layout.touched.get(b, ()):
                unit.wait(stream, native, None)
        return used

    def _body(
        self,
        unit: _Unit,
        script: Sequence[Action],
        values: dict[Tensor, Array],
        outputs: Sequence[Output],
        used: dict[_native.Stream, None],
    ) -> None:
        """The actions, and each result as soon as it is there."""
        for action in script:
            backend = action.backend
            stream = backend.stream
            for other in action.waits:
                unit.wait(stream.native, other, None)
            unit.share(stream)
            unit.parts.append(_act(action, values))
            if action.kind == PLAN:
                for output in outputs:
                    if output.split == action.split:
                        self._read(unit, output, stream.native, used)

    def _read(
        self,
        unit: _Unit,
        output: Output,
        after: _native.Stream,
        used: dict[_native.Stream, None],
    ) -> None:
        lane = self.lanes("out", output.backend)
        native = lane.stream.native
        unit.wait(native, after, None)
        unit.share(lane.stream)
        unit.parts.append(lane._get(output.tensor, output.array))
        used[native] = None

    def _finish(
        self,
        unit: _Unit,
        layout: Layout,
        outputs: Sequence[Output],
        used: dict[_native.Stream, None],
    ) -> None:
        """Results that lie in memory of the user; his later work comes after ours."""
        for output in outputs:
            if output.split == -1:
                backend = self.backends[output.backend]
                native = backend.stream.native
                for stream in layout.streams:
                    unit.wait(native, stream, None)
                unit.share(backend.stream)
                unit.parts.append(backend._get(output.tensor, output.array))
                used[native] = None
        for home, others in layout.foreign.items():
            for other in others:
                unit.wait(home, other, None)
            used[home] = None

    def _close(self, unit: _Unit, used: dict[_native.Stream, None]) -> tuple[int, int]:
        joined = self.joined.native
        for stream in used:
            unit.wait(joined, stream, None)
        return unit.push(joined, _native.mark("submit", ()))

    def _note(
        self,
        layout: Layout,
        placed: Sequence[tuple[int, Tensor, Array]],
        future: Future[Any],
    ) -> None:
        self.in_flight.append(future)
        if layout.slot is None:
            self._exclusive = future
        else:
            self._slots[layout.slot] = future
        for backend in self.backends:
            native = backend.stream.native
            self._seen[native] = native.submitted
        for b in {*layout.writes_placed, *(b for b, _, _ in placed)}:
            self._written[b] = self.backends[b].stream.native.submitted

    def part(
        self,
        layout: Layout,
        script: Sequence[Action],
        values: dict[Tensor, Array],
        placed: Sequence[tuple[int, Tensor, Array]],
        outputs: Sequence[Output],
    ) -> Future[Any]:
        """Enqueue some actions of a layout, then reads; nothing else runs in between.

        The caller keeps other submissions away until he has enqueued all parts.
        """
        unit = _Unit(self.joined)
        future: Future[Any] = Future(None, None, "submit", abortable=True)
        try:
            used = self._begin(unit, layout, placed)
            self._body(unit, script, values, (), used)
            for output in outputs:
                if output.split >= 0:
                    b = layout.program.splits[output.split].backend
                    self._read(unit, output, self.backends[b].stream.native, used)
            self._finish(unit, layout, outputs, used)
        except BaseException:
            unit.release()
            unit.drop("it could not be enqueued")
            raise
        unit.release()
        _commit(unit, self._close(unit, used), future)
        self._note(layout, placed, future)
        return future

    # -- all of them

    def streams(self) -> list[Stream]:
        """All streams that submissions may be on."""
        return [b.stream for b in (*self.backends, *self.lanes.opened.values())]

    def mark_all(self) -> Future[None]:
        """A Future of all that is queued on any of them."""
        joined = self.joined.native
        descs = [_native.wait(s.native, None) for s in self.streams()]
        (ops,) = submit([(joined, [*descs, _native.mark("synchronize", ())])])
        return Future((ops[-1],), None, "synchronize")


def _act(action: Action, values: dict[Tensor, Array]) -> Future[Any]:
    backend, source, target = action.backend, action.source, action.target
    if action.kind == PLAN:
        plan = action.plan
        assert plan is not None
        return backend._compute(plan, backend.memory.arena(plan.arena_size))
    assert target is not None
    if action.kind == SET:
        assert source is not None
        return backend._set(target, values[source])
    if action.kind == COPY:
        assert source is not None
        return backend._copy(source, target)
    return backend.stream.delay(0, reads=action.reads, writes=[target], operation="copy")


def _commit(unit: _Unit, last: tuple[int, int], future: Future[Any]) -> None:
    """Enqueue; the Future stands for all parts, and is done with the last operation."""
    ops = unit.commit()
    found = [op for part in unit.parts for op in part._ops or ()]
    future._ops = (*found, ops[last[0]][last[1]])
