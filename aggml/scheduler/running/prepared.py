"""Replay: a submission like an earlier one, enqueued again in one native call.

Here: what makes it the same, and which array goes where. The hooks of the devices are not called
again, so a run costs the same Python for any number of nodes, and 1 us of C for each operation.
Not here: the first time (run.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.native import _native
from aggml.stream.future import Future
from aggml.tensor.checking import incoming, spec_of
from aggml.tensor.spans import bits_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.backend import Backend
    from aggml.memory.buffer import Buffer
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import Known
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.unit import Output, Unit
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Recording", "Repeat", "record"]


class Recording:
    """The operations of a submission, without its arrays.

    Args:
        script: the operations.
        use: what they touch.
        outputs: element type and shape of what is read.
        leafs: that are brought, in the order in which `run` takes their arrays.
        brought: (output, leaf) of those that are read as well.
        bits: whether an array has a type that the buffer protocol does not know.
        used: backends, with the answers and the scratch that the operations rest on.
    """

    __slots__ = ("_bits", "_brought", "_outputs", "_script", "_use", "_used", "leafs")

    def __init__(
        self,
        script: _native.Script,
        use: _native.Use,
        outputs: list[tuple[np.dtype[Any], tuple[int, ...]]],
        leafs: tuple[Tensor, ...],
        brought: list[tuple[int, int]],
        used: list[tuple[Backend, object, Buffer | None]],
        *,
        bits: bool,
    ) -> None:
        self._script = script
        self._use = use
        self._outputs = [(shape, dtype) for dtype, shape in outputs]
        self.leafs = leafs
        self._brought = brought
        self._used = used
        self._bits = bits

    def holds(self) -> bool:
        """Whether hooks would enqueue the same again, and no batch is open on the streams."""
        for backend, token, arena in self._used:
            if (
                backend.stream._batches
                or backend.memory._arena is not arena
                or backend._repeats() != token
            ):
                return False
        return True

    def run(self, line: _native.Lineup, arrays: list[Array]) -> tuple[Future[Any], list[Array]]:
        """Enqueue.

        Args:
            line: what it waits for.
            arrays: those of ``leafs``, then those for memory that the user placed.

        Returns:
            The Future, which has no value yet, and the arrays of the outputs.
        """
        results = [np.empty(shape, dtype) for shape, dtype in self._outputs]
        for i, k in self._brought:
            results[i][...] = arrays[k]
        arrays += results
        if self._bits:
            arrays = [bits_of(array) for array in arrays]
        ops = _native.submit_script(self._script, line, self._use, arrays)
        return Future(ops, None, "submit", abortable=True), results


class Repeat:
    """What was asked for before, in these very words: the same graph, inputs in the same order.

    Args:
        job: as it was asked for the first time.
        known: what was planned for it.

    Attributes:
        known: as given.
        due: of the job.
        marks: of the job.
        recordings: by the slot of their memory, each with the layout that it is of.
    """

    __slots__ = ("_inputs", "_order", "_single", "_specs", "due", "known", "marks", "recordings")

    def __init__(self, job: Job, known: Known) -> None:
        self.known = known
        self.due = job.due
        self.marks = job.marks
        self.recordings: dict[int | None, tuple[Layout, Recording]] = {}
        self._inputs = tuple(job.inputs)
        self._specs = [(*spec_of(tensor), tensor) for tensor in self._inputs]
        self._single = job.single
        self._order: dict[Recording, list[int] | None] = {}

    def learn(self, layout: Layout, recording: Recording, job: Job) -> None:
        """Have ``recording``, made for ``job``, stand for submissions with this layout."""
        at = {tensor: i for i, tensor in enumerate(self._inputs)}
        own = dict(zip(job.values, job.floating, strict=True))
        order = [at[own[leaf]] for leaf in recording.leafs] + [at[t] for t, _ in job.placed]
        self.recordings[layout.slot] = (layout, recording)
        known = {r for _, r in self.recordings.values()}
        self._order = {r: o for r, o in self._order.items() if r in known}
        self._order[recording] = None if order == [*range(len(order))] else order

    def arrays(self, inputs: Mapping[Any, object]) -> list[Array]:
        """The arrays in the order in which they were given, checked.

        Raises:
            As `incoming`.
        """
        found = []
        for (dtype, shape, tensor), x in zip(self._specs, inputs.values(), strict=True):
            if type(x) is np.ndarray and x.dtype is dtype and x.shape == shape:
                found.append(x)
            else:
                found.append(incoming(x, tensor, "Scheduler.submit"))
        return found

    def inputs(self, arrays: list[Array]) -> dict[Tensor, Array]:
        """These arrays by their tensors."""
        return dict(zip(self._inputs, arrays, strict=True))

    def run(self, recording: Recording, line: _native.Lineup, arrays: list[Array]) -> Future[Any]:
        """Enqueue a recording over the arrays that `arrays` gave."""
        order = self._order[recording]
        if order is not None:
            arrays = [arrays[i] for i in order]
        future, results = recording.run(line, arrays)
        future._value = results[0] if self._single else results
        return future


def record(unit: Unit, job: Job, outputs: Sequence[Output], use: _native.Use) -> Recording | None:
    """Keep what is about to be enqueued; None if it may be something else the next time.

    Args:
        unit: not sent yet.
        job: what it is for.
        outputs: of the job.
        use: see `Recording`.
    """
    if unit.calls or None in unit.sources:
        return None
    used = []
    for backend, token in unit.backends.items():
        if token is None or backend._repeats() != token:
            return None
        used.append((backend, token, backend.memory._arena))
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
    found = [spec_of(tensor) for tensor in job.wanted]
    arrays = (*job.arrays_for(leafs), *(o.array for o in outputs))
    bits = any(bits_of(array) is not array for array in arrays)
    script = _native.Script(unit.groups, which)
    return Recording(script, use, found, leafs, brought, used, bits=bits)
