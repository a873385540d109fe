"""Prepared submissions of a scheduler: a repeated submission is enqueued by one native call.

Here: when a submission counts as repeated, and which array goes where. The hooks of the devices are
not called again. So a run takes the same time in Python for any number of nodes, plus 1 us in C for
each operation. Not here: the words and the arrays (stream/prepared.py, backend/inputs.py), the
first submission (run.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from aggml.backend import Backend
    from aggml.backend.inputs import RunKey
    from aggml.memory.buffer import Buffer
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import PlannedGraph
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.unit import Output, Unit
    from aggml.stream.future import Future
    from aggml.stream.prepared import Request
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["PreparedSubmission", "RecordedSubmission", "prepare", "record"]

# Prepared submissions of one graph. Each combination of outputs, and each order of the inputs, is
# one of them.
_MOST: Final = 8


class RecordedSubmission:
    """The operations of a submission, without its arrays.

    Args:
        script: the operations.
        use: what they touch.
        leafs: that are brought, in the order in which `run` takes their arrays.
        brought: (output, leaf) of those that are read as well.
        used: backends, with the answers and the scratch that the operations rest on.
        streams: those that the operations are on.

    Attributes:
        leafs, streams: as given.
    """

    __slots__ = ("_brought", "_script", "_use", "_used", "leafs", "streams")

    def __init__(
        self,
        script: _native.Script,
        use: _native.Use,
        leafs: tuple[Tensor, ...],
        brought: list[tuple[int, int]],
        used: list[tuple[Backend, object, Buffer | None]],
        streams: tuple[_native.Stream, ...],
    ) -> None:
        self.streams: tuple[_native.Stream, ...] = streams
        self._script = script
        self._use = use
        self.leafs: tuple[Tensor, ...] = leafs
        self._brought = brought
        self._used = used

    def is_valid(self) -> bool:
        """Whether hooks would enqueue the same again, and no batch is open on the streams."""
        for backend, token, arena in self._used:
            if (
                backend.stream.open_batches
                or backend.memory.block is not arena
                or backend._repeats() != token
            ):
                return False
        return True

    def run(self, line: _native.Lineup, request: Request, arrays: list[Array]) -> Future[Any]:
        """Enqueue them.

        Args:
            line: what the submission waits for.
            request: how it was asked for.
            arrays: those of ``leafs``, then those for memory that the user placed.
        """
        taken, results = request.with_results(arrays)
        for i, k in self._brought:
            results[i][...] = arrays[k]
        ops = _native.submit_script(self._script, line, self._use, taken)
        return request.future(ops, results)


class _Recorded(NamedTuple):
    """A recording as the words of one request have it.

    Attributes:
        layout: that it is of.
        recording: the operations.
        order: for each array that the recording takes, the index of that of the request; None: the
            order is the same.
    """

    layout: Layout
    recording: RecordedSubmission
    order: list[int] | None


class PreparedSubmission:
    """A submission that was asked for before, in the same words.

    Args:
        job: as it was asked for the first time.
        known: what was planned for it.

    Attributes:
        request: of the job.
        known: as given.
        by_slot: recordings, by the slot of their memory.
    """

    __slots__ = ("_inputs", "by_slot", "known", "request")

    def __init__(self, job: Job, known: PlannedGraph) -> None:
        self.request: Request = job.request
        self.known: PlannedGraph = known
        self._inputs = tuple(job.inputs)
        self.by_slot: dict[int | None, _Recorded] = {}

    def learn(self, layout: Layout, recording: RecordedSubmission, job: Job) -> None:
        """Have ``recording``, made for ``job``, stand for submissions with this layout."""
        have = self.by_slot.get(layout.slot)
        if have is not None and have.layout is layout and have.recording is recording:
            return
        index = {tensor: i for i, tensor in enumerate(self._inputs)}
        own = dict(zip(job.values, job.floating, strict=True))
        order = [index[own[leaf]] for leaf in recording.leafs]
        order += [index[tensor] for tensor, _ in job.placed]
        is_same = order == [*range(len(order))]
        self.by_slot[layout.slot] = _Recorded(layout, recording, None if is_same else order)


def prepare(
    table: dict[RunKey, PreparedSubmission], key: RunKey, job: Job, known: PlannedGraph
) -> None:
    """Keep the recording of a job that was just enqueued, if any, for requests in the same words.

    Args:
        table: of what was prepared for the graph.
        key: that of the user's arguments.
        job: as it was enqueued.
        known: what was planned for it.
    """
    prepared = table.get(key)
    for layout in known.layouts.values():
        recording = layout.recordings.get(job.form)
        if recording is None:
            continue
        if prepared is None:
            if len(table) >= _MOST:
                del table[next(iter(table))]
            prepared = table[key] = PreparedSubmission(job, known)
        prepared.learn(layout, recording, job)


def record(
    unit: Unit, job: Job, outputs: Sequence[Output], use: _native.Use
) -> RecordedSubmission | None:
    """Record the operations that are about to be enqueued; None if they may differ the next time.

    Args:
        unit: not sent yet.
        job: what it is for.
        outputs: of the job.
        use: see `RecordedSubmission`.
    """
    if unit.calls or None in unit.sources:
        return None
    used = []
    for backend, token in unit.backends.items():
        if token is None or backend._repeats() != token:
            return None
        used.append((backend, token, backend.memory.block))
    leafs = tuple(job.values)
    inputs = {leaf: i for i, leaf in enumerate(leafs)}
    n = len(leafs)
    starts = {"placed": n, "output": n + len(job.placed)}
    which = [
        starts[source[0]] + source[1] if isinstance(source, tuple) else inputs[source]
        for source in unit.sources
        if source is not None  # none of them is
    ]
    brought = [(i, inputs[job.wanted[i]]) for i, o in enumerate(outputs) if o.split == -2]
    streams = tuple(dict.fromkeys([stream for stream, _ in unit.groups]))
    return RecordedSubmission(
        _native.Script(unit.groups, which), use, leafs, brought, used, streams
    )
