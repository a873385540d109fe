"""Prepared submissions: a request repeated with the same words is enqueued by one native call.

Here: the arrays that a submission takes and returns; a run of one plan on a stream over host
memory, which takes 2 us. Not here: the words and the checks of the first time (backend/inputs.py),
the submissions that a scheduler prepares (scheduler/running/prepared.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from aggml.native import _native
from aggml.stream.future import Future
from aggml.tensor.checking import incoming, spec_of
from aggml.tensor.inputs import check_due
from aggml.tensor.placement import BROUGHT, KEPT, fill
from aggml.tensor.spans import bits_of, span_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from aggml.stream.stream import Runnable, Stream
    from aggml.tensor import Tensor
    from aggml.tensor.inputs import Due, Marks
    from aggml.tensor.placement import Holder

    Array = np.ndarray[Any, Any]

__all__ = ["PreparedRun", "Request", "RunArguments", "Scratch"]


class RunArguments(NamedTuple):
    """The inputs and outputs of one run as tensors.

    Attributes:
        inputs: the value for each tensor that is written, in the order given.
        outputs: the tensors that are read.
        single: whether ``outputs`` was one tensor, and not a list.
        due: for `check_due`.
        marks: what the run does to INPUT leafs; to be noted when it is enqueued.
    """

    inputs: dict[Tensor, object]
    outputs: tuple[Tensor, ...]
    single: bool
    due: Due
    marks: Marks


class Request:
    """The request of one submission: the arrays that it takes and returns, and their checks.

    Args:
        asked: its inputs and outputs.
        what: the method that was called, for messages.

    Attributes:
        due: INPUT leafs that the run does not bring; see `check`.
        marks: what a run does to INPUT leafs; to be noted when it is enqueued.
    """

    __slots__ = ("_bits", "_inputs", "_operation", "_results", "_single", "_what", "due", "marks")

    def __init__(self, asked: RunArguments, what: str) -> None:
        self._what = what
        self._operation = what.rpartition(".")[2]
        self.due: Due = asked.due
        self._inputs = [(*spec_of(tensor), tensor) for tensor in asked.inputs]
        self._results = [(shape, dtype) for dtype, shape in map(spec_of, asked.outputs)]
        self._single = asked.single
        specs = map(spec_of, (*asked.inputs, *asked.outputs))
        self._bits = any(dtype.kind == "V" for dtype, _ in specs)
        self.marks: Marks = asked.marks

    def check(self, brought: Container[Tensor] = ()) -> None:
        """Refuse a run that would read a leaf that was never written, or only by an earlier run.

        Call it each time, because the contents of leafs change; it is not needed if ``due`` is
        empty.

        Args:
            brought: leafs without memory of their own that an earlier run brought.

        Raises:
            NotAllocated: there is such a leaf; the text names it.
        """
        check_due(self.due, self._what, brought)

    def arrays(self, inputs: Mapping[Any, object]) -> list[Array]:
        """The arrays of the inputs in the order of the request, checked.

        Args:
            inputs: arrays in that order; the keys are known.

        Raises:
            As `incoming`.
        """
        arrays = []
        for (dtype, shape, tensor), x in zip(self._inputs, inputs.values(), strict=True):
            if type(x) is np.ndarray and x.dtype is dtype and x.shape == shape:
                arrays.append(x)
            else:
                arrays.append(incoming(x, tensor, self._what))
        return arrays

    def by_tensor(self, arrays: list[Array]) -> dict[Tensor, Array]:
        """The result of `arrays`, keyed by tensor."""
        return {tensor: x for (_, _, tensor), x in zip(self._inputs, arrays, strict=True)}

    def with_results(self, arrays: list[Array]) -> tuple[list[Array], list[Array]]:
        """Make arrays for the outputs.

        Returns:
            All arrays in the order of native calls, outputs last; and the arrays of the outputs.
        """
        results = [np.empty(shape, dtype) for shape, dtype in self._results]
        both = [*arrays, *results]
        return ([bits_of(array) for array in both] if self._bits else both), results

    def value(self, results: list[Array]) -> Array | list[Array]:
        """The value for the user: the only array, or the list of all."""
        return results[0] if self._single else results

    def future(self, ops: tuple[_native.Op, ...], results: list[Array]) -> Future[Any]:
        """The Future of a submission that was enqueued as ``ops``."""
        return Future(ops, self.value(results), self._operation, True)


class Scratch(Protocol):
    """Memory that all runs of a stream share in turn; it may be replaced by a larger block.

    Attributes:
        held: the present block, if any.
    """

    block: Any  # a Holder, or None


class PreparedRun:
    """A run of one plan on one stream, to be enqueued again over other arrays.

    It keeps everything that a run would have to look up again. Two facts can change, so each run
    checks them: the scratch, and whether INPUT leafs that are not brought have a value. The owner
    calls `is_valid` after any tensor of the process was placed or unplaced.

    Args:
        stream: the stream that runs the plan.
        plan: the plan.
        scratch: the stream's scratch, of at least ``plan.arena_size`` bytes.
        asked: inputs and outputs; None: only the plan is run.
        what: the method that was called, for messages.
        marks: what the run does to INPUT leafs.
        shapes: shapes of the results, if they differ from those of their tensors.
        abortable: whether cancelling its last waiter aborts the run.
    """

    __slots__ = (
        "_abortable",
        "_brought",
        "_due",
        "_inputs",
        "_keep",
        "_native",
        "_operation",
        "_places",
        "_plan",
        "_scratch",
        "_shapes",
        "_single",
        "_what",
        "_written",
    )

    def __init__(
        self,
        stream: Stream,
        plan: Runnable,
        scratch: Scratch,
        asked: RunArguments | None,
        what: str,
        *,
        marks: Marks,
        shapes: Sequence[tuple[int, ...] | None] | None = None,
        abortable: bool = True,
    ) -> None:
        inputs = () if asked is None else tuple(asked.inputs)
        outputs = () if asked is None else asked.outputs
        if plan.calls:
            stream.start_calls()
        self._native = _native.Prepared(
            stream.native,
            plan.native,
            [_side(t) for t in inputs],
            [_side(t) for t in outputs],
            None if asked is None else asked.single,
            np.ndarray,
            np.empty,
            np.uint16,
        )
        self._plan = plan
        self._scratch = scratch
        self._keep: tuple[object, Holder | None, object] = (plan, None, self._native)
        self._inputs = inputs
        self._due = () if asked is None else asked.due  # leafs, which are no views
        self._brought, self._written = marks.brought, marks.written
        self._places = [(t.root, t.root.placement) for t in (*inputs, *outputs)]
        self._what = what
        self._operation = what.rpartition(".")[2]
        self._single = asked is not None and asked.single
        self._shapes = shapes
        self._abortable = abortable

    def is_valid(self) -> bool:
        """Whether no tensor that it writes or reads has moved."""
        return all(root.placement is place for root, place in self._places)

    def run(self, inputs: Mapping[Any, object] | None = None) -> Future[Any]:
        """Enqueue it.

        Args:
            inputs: arrays in the order in which they were asked for; the keys are known.

        Raises:
            NotAllocated: a leaf that is not brought has no value; nothing is queued then.
            As `incoming`; nothing is queued then.
            InvalidState: the stream is closed, or its device is lost.
        """
        for leaf, again in self._due:
            place = leaf.placement
            if place is None or not (place.filled == KEPT or (again and place.filled == BROUGHT)):
                check_due(self._due, self._what)  # says why
        scratch, keep = self._scratch.block, self._keep
        if keep[1] is not scratch:  # another thread may do the same: what is used is local
            assert scratch is not None, "an arena never goes"
            assert scratch.size >= self._plan.arena_size, "an arena never shrinks"
            keep = self._keep = (self._plan, scratch, self._native)
        base = 0 if scratch is None else scratch.base
        made = self._native.submit(keep, base, inputs)
        if made is None:  # an array of another shape that fits, a list, ...
            made = self._native.submit_arrays(keep, base, self._fit(inputs or {}))
        for place in self._brought:
            fill(place, BROUGHT)
        for place in self._written:
            fill(place, KEPT)
        if self._shapes is None:
            return Future(made[0], made[1], self._operation, self._abortable)
        return Future(made[0], self._reshape(made[1]), self._operation, self._abortable)

    def _fit(self, inputs: Mapping[Any, object]) -> list[Array]:
        pairs = zip(self._inputs, inputs.values(), strict=True)
        return [bits_of(incoming(x, tensor, self._what)) for tensor, x in pairs]

    def _reshape(self, value: Any) -> Any:  # noqa: ANN401 - an array, or a list of arrays
        shapes = self._shapes or ()
        results = [value] if self._single else value
        shaped = [
            x if shape is None else x.reshape(shape)
            for x, shape in zip(results, shapes, strict=True)
        ]
        return shaped[0] if self._single else shaped


def _side(tensor: Tensor) -> tuple[_native.Span, np.dtype[Any], tuple[int, ...], bool]:
    dtype, shape = spec_of(tensor)
    return span_of(tensor), dtype, shape, dtype.kind == "V"
