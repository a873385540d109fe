"""Carries out a layout: the only file of the scheduler that enqueues.

Here: one submission as one step on all of its streams. Not here: the order of operations (layout/),
repeated submissions (prepared.py), the order of submissions (submitter.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.backend.guesser import ExpertGuesser
from aggml.native import _native
from aggml.process.locks import new_rlock
from aggml.scheduler.layout.actions import (
    Bring,
    ChooseExperts,
    Compute,
    GuessExperts,
    Move,
    NoteExperts,
)
from aggml.scheduler.running.prepared import record
from aggml.scheduler.running.unit import Unit
from aggml.stream import Stream
from aggml.stream.future import Future, operations_of
from aggml.stream.observe import observers, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from aggml.backend import Backend
    from aggml.scheduler.layout.actions import Action
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.prepared import RecordedSubmission
    from aggml.scheduler.running.sides import Sides
    from aggml.scheduler.running.unit import Output, Source
    from aggml.stream.admission import Admission
    from aggml.stream.prepared import Request
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]
    Placed = Sequence[tuple[int, Tensor, Array]]

__all__ = ["Runner"]

# Recordings of one layout: its users ask for the same few outputs again and again.
_RECORDINGS = 8


class Runner:
    """Enqueues submissions and keeps their order.

    Submissions get done in the order in which they were enqueued: one stream joins all others.

    Args:
        backends: those that compute.
        sides: further ones.
        n_slots: submissions that may have memory apart.
        admission: where Futures of submissions go.

    Attributes:
        joined: the stream that joins all others.
        busy: whether a submission is in flight.
        note: a function that notes that a Future is in flight.
        line: decides what each submission waits for.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        sides: Sides,
        n_slots: int,
        admission: Admission,
    ) -> None:
        self.backends = backends
        self.sides = sides
        self.joined: Stream = Stream("scheduler", pool=backends[0].stream.pool)
        self.busy: Callable[[], bool] = admission.busy
        self.note: Callable[[Future[Any]], None] = admission.add
        self._admission, self._limit = admission, admission.limit
        self._reporting = new_rlock()
        self._natives = [b.stream.native for b in backends]
        self.line: _native.Lineup = _native.Lineup(self.joined.native, self._natives, n_slots)

    # -- one submission

    def enqueue(self, layout: Layout, job: Job) -> Future[Any]:
        """Enqueue all of a submission in one step.

        Raises:
            NotAllocated: an output cannot be read.
            InvalidArgument: a leaf that lies in memory is not of this graph.
        """
        recording: RecordedSubmission | None = (
            None if observers else layout.recordings.get(job.form)
        )
        if recording is not None and recording.is_valid():
            return self.repeat(recording, job.request, job.arrays_for(recording.leafs))
        outputs = job.outputs_of(layout)
        value = job.request.value([o.array for o in outputs])
        future: Future[Any] = Future(None, value, "run", abortable=True)
        placed = job.placed_inputs(layout.program)
        use = self._use(layout, placed)
        unit = Unit(self.joined)
        try:
            used = self._open(unit, layout, placed)
            self._body(unit, layout.script.actions, job.values, outputs, used)
            self._close(unit, layout, outputs, used, {b for b, _, _ in placed})
            kept = None if observers else record(unit, job, outputs, use)
        except BaseException:
            unit.release()
            unit.drop("it could not be enqueued")
            raise
        unit.release()
        self._hold_back({stream for stream, _ in unit.groups})
        self._send(unit, use, future)
        layout.recordings.pop(job.form, None)
        if kept is not None:
            if len(layout.recordings) == _RECORDINGS:
                layout.recordings.pop(next(iter(layout.recordings)))
            layout.recordings[job.form] = kept
        return future

    def repeat(
        self, recording: RecordedSubmission, request: Request, arrays: list[Array]
    ) -> Future[Any]:
        """Enqueue a recorded submission; arguments as of `RecordedSubmission.run`."""
        if self._limit is not None:
            self._hold_back(recording.streams)
        future = recording.run(self.line, request, arrays)
        self.note(future)
        return future

    def _hold_back(self, streams: Iterable[_native.Stream]) -> None:
        """Have what these streams do next wait until fewer than the limit are in flight.

        The streams wait, and no task does. So a submission keeps its place in the order of its
        backends, also if it has to wait for a slot.
        """
        before = self._admission.last_before()
        if before is None:
            return
        ops = operations_of(before)
        if ops:
            op = ops[-1]
            submit(
                [(s, [_native.wait(op.stream, op.ticket)]) for s in streams if s is not op.stream]
            )

    def part(
        self,
        layout: Layout,
        script: Sequence[Action],
        values: dict[Tensor, Array],
        placed: Placed,
        outputs: Sequence[Output],
    ) -> Future[Any]:
        """Enqueue some actions of a layout, then reads; nothing else runs in between.

        The caller must keep other submissions away until it has enqueued all parts.
        """
        unit = Unit(self.joined)
        future: Future[Any] = Future(None, None, "run", abortable=True)
        try:
            used = self._open(unit, layout, placed)
            self._body(unit, script, values, (), used)
            for output in outputs:
                if output.split >= 0:
                    b = layout.program.splits[output.split].backend
                    self._read(unit, output, 0, self.backends[b].stream.native, used)
            self._close(unit, layout, outputs, used, {b for b, _, _ in placed})
        except BaseException:
            unit.release()
            unit.drop("it could not be enqueued")
            raise
        unit.release()
        self._send(unit, self._use(layout, placed), future)
        return future

    def _use(self, layout: Layout, placed: Placed) -> _native.Use:
        """The memory that a submission touches, which decides what it waits for."""
        homes = {b for b, _, _ in placed}
        streams = dict.fromkeys([*layout.script.streams, *[self._natives[b] for b in homes]])
        touched = [(b, found) for b, found in layout.script.touched.items()]
        slot = -1 if layout.slot is None else layout.slot
        written = {*layout.script.written, *homes}
        return _native.Use(slot, list(streams), touched, sorted(written))

    def _send(self, unit: Unit, use: _native.Use, future: Future[Any]) -> None:
        unit.send(self.line, use, future)
        self.note(future)

    def _open(self, unit: Unit, layout: Layout, placed: Placed) -> dict[_native.Stream, None]:
        """Inputs that the user placed; the streams used so far."""
        used = dict.fromkeys(layout.script.streams)
        for i, (b, tensor, array) in enumerate(placed):
            native = self._natives[b]
            used[native] = None
            self._call(unit, self.backends[b], ("placed", i)).append(
                self.backends[b]._set(tensor, array)
            )
            for stream in layout.script.touched.get(b, ()):
                unit.wait(stream, native)
        return used

    @staticmethod
    def _call(unit: Unit, backend: Backend, source: Source) -> list[Future[Any]]:
        """The place for the Future of the next hook; ``source`` names the array it is given."""
        unit.share(backend)
        unit.source = source
        return unit.parts

    def _body(
        self,
        unit: Unit,
        script: Sequence[Action],
        values: dict[Tensor, Array],
        outputs: Sequence[Output],
        used: dict[_native.Stream, None],
    ) -> None:
        """The actions, and each result as soon as it is there."""
        for action in script:
            backend = action.backend
            native = backend.stream.native
            for other in action.waits:
                unit.wait(native, other)
            source = action.task.leaf if isinstance(action.task, Bring) else None
            self._call(unit, backend, source).append(_act(action, values))
            if isinstance(action.task, Compute):
                for i, output in enumerate(outputs):
                    if output.split == action.split:
                        self._read(unit, output, i, native, used)

    def _read(
        self,
        unit: Unit,
        output: Output,
        i: int,
        after: _native.Stream,
        used: dict[_native.Stream, None],
    ) -> None:
        side = self.sides("out", output.backend)
        native = side.stream.native
        unit.wait(native, after)
        self._call(unit, side, ("output", i)).append(side._get(output.tensor, output.array))
        used[native] = None

    def _close(
        self,
        unit: Unit,
        layout: Layout,
        outputs: Sequence[Output],
        used: dict[_native.Stream, None],
        homes: set[int],
    ) -> None:
        """Read results in the user's memory, order the user's later work after ours, join all.

        The operation of the join comes last: when it is done, all operations are. ``homes`` are the
        backends on whose streams the user's memory was written; this function adds to them.
        """
        for i, output in enumerate(outputs):
            if output.split == -1:
                backend = self.backends[output.backend]
                native = backend.stream.native
                for stream in layout.script.streams:
                    unit.wait(native, stream)
                self._call(unit, backend, ("output", i)).append(
                    backend._get(output.tensor, output.array)
                )
                used[native] = None
                homes.add(output.backend)
        for home, others in layout.script.foreign.items():
            for other in others:
                unit.wait(home, other)
            used[home] = None
        # A backend that reaches that memory may be asked next.
        for b in homes.union(layout.script.touched):
            for backend in layout.script.sharers.get(b, ()):
                unit.wait(backend.stream.native, self._natives[b])
        joined = self.joined.native
        for stream in used:
            unit.wait(joined, stream)
        unit.push(joined, _native.mark("submit", ()))

    # -- all of them

    def streams(self) -> list[Stream]:
        """All streams that submissions may be on."""
        return [b.stream for b in (*self.backends, *list(self.sides.opened.values()))]

    def synchronize(self, scheduler: str) -> Future[None]:
        """See `Scheduler.synchronize`; ``scheduler`` is told by the exception."""
        unseen: list[Exception] | None = None  # found once: each await of this Future tells it

        def report() -> None:
            nonlocal unseen
            with self._reporting:
                if unseen is None:
                    unseen = [f for stream in self.streams() for f in stream.failures()]
            if unseen:
                raise ExceptionGroup(
                    f"[Scheduler.synchronize] {scheduler}: {len(unseen)} submissions failed, and "
                    "nobody awaited them",
                    unseen,
                )

        return self.mark_all(finish=report)

    def mark_all(self, finish: Callable[[], None] | None = None) -> Future[None]:
        """A Future of all that is queued on any of them; see `Stream.enqueue` for ``finish``."""
        joined = self.joined.native
        descs = [_native.wait(s.native, None) for s in self.streams()]
        (ops,) = submit([(joined, [*descs, _native.mark("synchronize", ())])])
        return Future((ops[-1],), None, "synchronize", finish=finish)


def _act(action: Action, values: dict[Tensor, Array]) -> Future[Any]:
    backend, task = action.backend, action.task
    if isinstance(task, Compute):
        return backend._compute(task.plan, backend.memory.arena(task.plan.arena_size))
    if isinstance(task, Bring):
        return backend._set(task.target, values[task.leaf])
    if isinstance(task, Move):
        return backend._copy(task.source, task.target)
    if isinstance(task, ChooseExperts) and task.history is None:
        return backend._copy_experts(task.source, task.target, task.ids)
    if isinstance(task, (GuessExperts, NoteExperts, ChooseExperts)):
        return _guess(backend, task)
    return backend.stream.delay(0, reads=task.pieces, writes=[task.target], operation="copy")


def _guess(backend: Backend, task: GuessExperts | NoteExperts | ChooseExperts) -> Future[Any]:
    assert isinstance(backend, ExpertGuesser)
    if isinstance(task, NoteExperts):
        return backend._note_experts(task.histories)
    if isinstance(task, GuessExperts):
        return backend._guess_experts(task.source, task.target, task.history)
    assert task.history is not None
    return backend._correct_experts(task.source, task.target, task.ids, task.history)
