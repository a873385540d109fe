"""Again: a `run` like an earlier one on a backend in host memory, checked and enqueued in 3 us.

Here: what makes it the same, and one native call. Not here: the first time (computing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.backend.inputs import Marks, check_due
from aggml.stream.future import Future
from aggml.tensor import Tensor
from aggml.tensor.checking import incoming, spec_of
from aggml.tensor.spans import bits_of, span_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.backend.inputs import Asked
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.plan import NativePlan
    from aggml.stream import Stream

    Array = np.ndarray[Any, Any]

__all__ = ["Again", "key_of"]


def key_of(uid: int, outputs: object, inputs: object, reuse: object = ()) -> tuple[object, ...]:
    """What stands for a run of graph ``uid`` that may come again, of a backend or a scheduler.

    Empty: it is asked for in an unusual way.
    """
    if type(outputs) is list:
        outputs = tuple(outputs)
    elif type(outputs) is not Tensor and type(outputs) is not tuple and type(outputs) is not str:
        return ()
    if type(reuse) is not tuple or reuse:
        return ()
    if inputs is None:
        key: tuple[object, ...] = (uid, outputs)
    elif type(inputs) is dict:
        key = (uid, outputs, *inputs)
    else:
        return ()
    try:
        hash(key)
    except TypeError:  # some of it is no tensor
        return ()
    return key


class Again:
    """Which tensors a run of one plan writes and reads, and where they lay.

    Args:
        plan: what runs.
        graph: of which.
        asked: what is written before, in the order in which it is given, and read after.

    Attributes:
        plan: as given.
    """

    __slots__ = (
        *("_bits", "_due", "_marks", "_n_sets", "_places", "_results", "_single", "_spans"),
        *("_specs", "plan"),
    )

    def __init__(self, plan: NativePlan, graph: Graph, asked: Asked) -> None:
        inputs, outputs = tuple(asked.inputs), asked.outputs
        tensors = (*inputs, *outputs)
        self.plan = plan
        self._due = asked.due
        self._marks = Marks(graph, inputs)
        self._places = [(t.root, t.root.placement) for t in tensors]
        self._spans = tuple([span_of(t) for t in tensors])
        self._n_sets = len(inputs)
        self._specs = [(*spec_of(t), t) for t in inputs]
        self._results = [(shape, dtype) for dtype, shape in map(spec_of, outputs)]
        self._bits = any(spec_of(t)[0].kind == "V" for t in tensors)
        self._single = asked.single

    def stands(self) -> bool:
        """Whether all of them still lie there."""
        for root, place in self._places:  # noqa: SIM110 - each run asks
            if root.placement is not place:
                return False
        return True

    def run(
        self, stream: Stream, arena: Buffer | None, inputs: Mapping[Any, object] | None
    ) -> Future[Any]:
        """Enqueue.

        Args:
            stream: of the backend.
            arena: scratch of the plan.
            inputs: arrays in the order of ``asked.inputs``; what they stand for is known.

        Raises:
            As `incoming` and `check_due`; nothing is queued then.
        """
        if self._due:
            check_due(self._due, "Backend.run")
        arrays: list[Array] = []
        if inputs:
            for (dtype, shape, tensor), x in zip(self._specs, inputs.values(), strict=True):
                if type(x) is np.ndarray and x.dtype is dtype and x.shape == shape:
                    arrays.append(x)
                else:
                    arrays.append(incoming(x, tensor, "Backend.run"))
        results = [np.empty(shape, dtype) for shape, dtype in self._results]
        arrays += results
        if self._bits:
            arrays = [bits_of(array) for array in arrays]
        ops = stream.run_unit(self.plan, arena, self._spans, self._n_sets, arrays)
        self._marks.note()
        return Future(ops, results[0] if self._single else results, "run", abortable=True)
