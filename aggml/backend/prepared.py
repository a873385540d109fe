"""Prepared submissions: what is asked for again in the same words is enqueued by one native call.

Here: the words; the arrays that a submission takes and gives; what `Backend.run` prepares on a
backend in host memory, which then takes 3 us. Not here: the first time (computing.py), what a
scheduler prepares (scheduler/running/prepared.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aggml.backend.inputs import Marks, check_due
from aggml.stream.future import Future
from aggml.tensor import Tensor
from aggml.tensor.checking import incoming, spec_of
from aggml.tensor.spans import bits_of, span_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from aggml.backend.inputs import Asked
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.native import _native
    from aggml.plan import NativePlan
    from aggml.stream import Stream

    Array = np.ndarray[Any, Any]

__all__ = ["Prepared", "Request", "Words", "words_of"]

#: The outputs and inputs of a submission as the user named them, without the arrays.
Words: TypeAlias = tuple[object, ...]


def words_of(outputs: object, inputs: object, reuse: object) -> Words:
    """How a submission of a graph is asked for; empty if nothing can be prepared for it.

    That is so for everything but tensors, names, lists and dictionaries, and where ``reuse`` is
    used: whether it is allowed depends on the runs before.
    """
    if type(outputs) is list:
        outputs = tuple(outputs)
    elif type(outputs) is not Tensor and type(outputs) is not tuple and type(outputs) is not str:
        return ()
    if type(reuse) is not tuple or reuse:
        return ()
    if inputs is None:
        words: Words = (outputs,)
    elif type(inputs) is dict:
        words = (outputs, *inputs)
    else:
        return ()
    try:
        hash(words)
    except TypeError:  # some of it is no tensor
        return ()
    return words


class Request:
    """One submission as it was asked for: which arrays it takes and gives, and what is checked.

    Args:
        graph: what is run.
        asked: with which inputs and outputs.
        what: the method that was called, for messages.

    Attributes:
        due: INPUT leafs that the run does not bring; see `check`.
        marks: what a run does to INPUT leafs; to be noted when it is enqueued.
    """

    __slots__ = ("_bits", "_inputs", "_operation", "_results", "_single", "_what", "due", "marks")

    def __init__(self, graph: Graph, asked: Asked, what: str) -> None:
        self._what = what
        self._operation = what.rpartition(".")[2]
        self.due = asked.due
        self._inputs = [(*spec_of(tensor), tensor) for tensor in asked.inputs]
        self._results = [(shape, dtype) for dtype, shape in map(spec_of, asked.outputs)]
        self._single = asked.single
        kinds = [dtype.kind for dtype, _ in map(spec_of, (*asked.inputs, *asked.outputs))]
        self._bits = "V" in kinds
        self.marks = Marks(graph, asked.inputs)

    def check(self, brought: Container[Tensor] = ()) -> None:
        """Refuse a run that would read what nobody wrote, or what an earlier run brought.

        To be asked each time, because what leafs hold changes; nothing to do if nothing is ``due``.

        Args:
            brought: leafs without memory of their own that an earlier run brought.

        Raises:
            NotAllocated: it names the leaf.
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
        """The arrays that `arrays` gave, by their tensors."""
        return {tensor: x for (_, _, tensor), x in zip(self._inputs, arrays, strict=True)}

    def with_results(self, arrays: list[Array]) -> tuple[list[Array], list[Array]]:
        """Make arrays for the outputs.

        Returns:
            All arrays as native calls take them, those of the outputs last; those of the outputs.
        """
        results = [np.empty(shape, dtype) for shape, dtype in self._results]
        both = [*arrays, *results]
        return ([bits_of(array) for array in both] if self._bits else both), results

    def value(self, results: list[Array]) -> Array | list[Array]:
        """What the user is given: the only array, or all of them."""
        return results[0] if self._single else results

    def future(self, ops: tuple[_native.Op, ...], results: list[Array]) -> Future[Any]:
        """The Future of a submission that was enqueued as ``ops``."""
        value = results[0] if self._single else results
        return Future(ops, value, self._operation, abortable=True)


class Prepared:
    """A run of one plan on a backend in host memory, to be enqueued again over other arrays.

    Args:
        plan: what runs.
        request: how it was asked for.
        asked: the same as tensors.
    """

    __slots__ = ("_n_sets", "_places", "_plan", "_request", "_spans")

    def __init__(self, plan: NativePlan, request: Request, asked: Asked) -> None:
        tensors = (*asked.inputs, *asked.outputs)
        self._plan = plan
        self._request = request
        self._places = [(t.root, t.root.placement) for t in tensors]
        self._spans = tuple([span_of(t) for t in tensors])
        self._n_sets = len(asked.inputs)

    def holds(self, plan: NativePlan) -> bool:
        """Whether ``plan`` is the one it was prepared for, and all tensors lie where they lay."""
        if self._plan is not plan:
            return False
        for root, place in self._places:  # noqa: SIM110 - each run asks
            if root.placement is not place:
                return False
        return True

    def run(
        self, stream: Stream, arena: Buffer | None, inputs: Mapping[Any, object] | None
    ) -> Future[Any]:
        """Enqueue it.

        Args:
            stream: of the backend.
            arena: scratch of the plan.
            inputs: arrays in the order of the request.

        Raises:
            As `Request.check` and `Request.arrays`; nothing is queued then.
        """
        request = self._request
        if request.due:
            request.check()
        arrays, results = request.with_results(request.arrays(inputs) if inputs else [])
        ops = stream.run_unit(self._plan, arena, self._spans, self._n_sets, arrays)
        request.marks.note()
        return request.future(ops, results)
