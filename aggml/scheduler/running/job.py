"""Job: what one submission asks for, checked before it is admitted.

Here: inputs against leafs, outputs against what can be read. Not here: planning (submitter.py),
enqueuing (run.py).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from aggml.backend.inputs import find_arguments
from aggml.errors import InvalidArgument, NotAllocated
from aggml.scheduler.running.unit import Output
from aggml.stream.prepared import Request
from aggml.tensor import checking

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    import numpy as np

    from aggml.graph import Graph
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.layout.layout import Layout
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Job"]


class Job:
    """One submission as it was asked for, checked.

    Args:
        graph, inputs, outputs, reuse: as `Scheduler.run` takes them.
        brought: leafs without memory of their own that earlier submissions brought.

    Attributes:
        graph: as given.
        request: how it was asked for.
        inputs: all arrays that are brought, in the order given.
        values: those of them that are for leafs without memory of their own.
        floating: these leafs.
        placed: tensors in memory of the user that are written, with their arrays.
        wanted: what is read.
        form: jobs of the same leafs that are equal in this need the same operations.

    Raises:
        As `Scheduler.run`, about what is asked for.
    """

    __slots__ = (*("floating", "form", "graph", "inputs", "placed", "request", "values", "wanted"),)

    floating: tuple[Tensor, ...]
    form: tuple[object, ...]

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Iterable[Tensor | str],
        reuse: Iterable[Tensor | str] = (),
        *,
        brought: Container[Tensor] = (),
    ) -> None:
        what = "Scheduler.run"
        self.graph = graph
        asked = find_arguments(graph, inputs, outputs, reuse, what)
        self.request: Request = Request(asked, what)
        self.request.check(brought)
        self.wanted: tuple[Tensor, ...] = asked.outputs
        self.inputs: dict[Tensor, Array] = {}
        self.values: dict[Tensor, Array] = {}
        self.placed: list[tuple[Tensor, Array]] = []
        floating = []
        for tensor, x in asked.inputs.items():
            array = self.inputs[tensor] = checking.incoming(x, tensor, what)
            placement = tensor.root.placement
            if placement is not None:
                if not placement.buffer.writable:
                    raise InvalidArgument(f"[{what}] {tensor!r} lies in memory that is read-only")
                if not placement.readable:
                    raise NotAllocated(f"[{what}] {tensor!r} is no leaf")
                self.placed.append((tensor, array))
                continue
            if tensor.op != "none" or tensor.view_src is not None:
                raise NotAllocated(f"[{what}] {tensor!r} is no leaf, so it cannot be an input")
            self.values[tensor] = array
            floating.append(tensor)
        self.floating = tuple(floating)
        self.form = (self.wanted, *[(t, t.placement, t.root.placement) for t, _ in self.placed])

    def in_terms_of(self, twins: Mapping[Tensor, Tensor]) -> Job:
        """The same job over the tensors of another graph that is like this one; that one is run."""
        job = copy(self)
        job.values = {twins.get(t, t): x for t, x in self.values.items()}
        job.wanted = tuple([twins.get(t, t) for t in self.wanted])
        job.form = (job.wanted, *self.form[1:])
        return job

    def arrays_for(self, leafs: tuple[Tensor, ...]) -> list[Array]:
        """The arrays of these brought leafs, then those for memory that the user placed."""
        values = self.values
        return [*[values[leaf] for leaf in leafs], *[array for _, array in self.placed]]

    def outputs_of(self, layout: Layout) -> list[Output]:
        """The tensors that hold the results, with arrays for them.

        Raises:
            NotAllocated: one cannot be read.
        """
        program = layout.program
        found = []
        for tensor in self.wanted:
            root = tensor.root
            result, view = checking.outgoing(tensor, None, None, "Scheduler.run")
            twin = layout.twins.get(tensor)
            if tensor in self.values and root not in program.made:
                view[...] = self.values[tensor]  # the value that this submission brought
                found.append(Output(tensor, result, -2, 0))
                continue
            if twin is None and root.placement is not None and root in program.found.backend:
                twin = tensor  # a leaf, or a view of one that is not in the graph
            if (
                twin is None
                or (root not in program.kept and root.op != "none")
                or (twin.root.placement is None)
            ):
                raise NotAllocated(
                    f"[Scheduler.run] {tensor!r} cannot be read: it is no end of the graph, not "
                    "flagged with set_output(), and no leaf that has memory"
                )
            ours = root not in program.found.backend or root.placement is None
            split = program.made.get(root, -1) if ours else -1
            found.append(Output(twin, view, split, program.at(root)))
        return found

    def placed_inputs(self, program: SplitGraph) -> list[tuple[int, Tensor, Array]]:
        """Inputs that lie in memory of the user, each with the index of the backend.

        Raises:
            InvalidArgument: one is not of the graph.
        """
        found = []
        for tensor, array in self.placed:
            b = program.found.backend.get(tensor.root)
            if b is None:
                raise InvalidArgument(f"[Scheduler.run] {tensor!r} is not of {self.graph!r}")
            found.append((b, tensor, array))
        return found
