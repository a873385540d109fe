"""What a run is given and asked for: tensors or their names, of this graph, and no input left out.

Here: the checks that `Backend.run` and `Scheduler.submit` share, made before anything is queued.
Not here: whether an array fits its tensor (tensor/checking.py), the copies themselves.

A leaf flagged INPUT is EMPTY until something writes it. What a run brings is that run's alone: the
leaf is BROUGHT, and a later run has to bring it again or say ``reuse``, or one client of a service
would get what is computed from the data of another. What `Backend.set`, a copy or another graph
wrote is KEPT until the next write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aggml.errors import InvalidArgument, InvalidHandle, NotAllocated
from aggml.plan import written_leafs
from aggml.tensor import Tensor, describe
from aggml.tensor.checking import check_shape, shape_of
from aggml.tensor.placement import BROUGHT, EMPTY, KEPT, fill

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from aggml.graph import Graph
    from aggml.stream.future import Future
    from aggml.tensor.placement import Placement

__all__ = [
    "Asked",
    "Due",
    "Inputs",
    "Marks",
    "Outputs",
    "Reuse",
    "Shapes",
    "ask",
    "check_due",
    "check_written",
    "note_computed",
    "reshaped",
    "shapes_of",
]

_INPUT = 1  # of TensorFlag, which costs a microsecond to build
#: What a run is given, and what it is asked for if that is a list.
Inputs: TypeAlias = "Mapping[Any, object]"  # of tensors, or names, or some of both
Outputs: TypeAlias = "Sequence[Tensor] | list[str] | list[Tensor | str] | tuple[Tensor | str, ...]"
Reuse: TypeAlias = "Iterable[Tensor | str]"
Shapes: TypeAlias = "Sequence[tuple[int, ...] | None]"
#: INPUT leafs that a run does not bring, each with whether it may use what the last run brought.
Due = tuple[tuple[Tensor, bool], ...]


class Asked(NamedTuple):
    """What one run is given and asked for, as tensors.

    Attributes:
        inputs: what is written with what, in the order given.
        outputs: what is read.
        single: whether ``outputs`` was one tensor, and not a list.
        due: for `check_due`.
    """

    inputs: dict[Tensor, object]
    outputs: tuple[Tensor, ...]
    single: bool
    due: Due


def ask(
    graph: Graph,
    inputs: Inputs | None,
    outputs: object,
    reuse: object,
    what: str,
) -> Asked:
    """Find the tensors that are named, and refuse what cannot be an input of this graph.

    Args:
        graph: what is to be run.
        inputs: by leaf, a view of one, or the name of either; None: none.
        outputs: a tensor or a name, or several.
        reuse: INPUT leafs whose last value is to be used again, or their names.
        what: for messages.

    Raises:
        InvalidHandle: not a mapping, not tensors, not names.
        InvalidArgument: a name that no tensor of the graph has, or several have; an input that is
            of another graph, that the graph computes, or that is given twice.
    """
    if inputs is not None and not isinstance(inputs, (dict, Mapping)):
        raise InvalidHandle(f"[{what}] inputs={inputs!r} is no mapping of tensors")
    given: dict[Tensor, object] = {}
    for key, x in (inputs or {}).items():
        leaf = _tensor(graph, key, what)
        _check_input(graph, leaf, what)
        if leaf in given:
            raise InvalidArgument(f"[{what}] {describe(leaf)} is given twice: as {key!r}, too")
        given[leaf] = x
    single = isinstance(outputs, (Tensor, str))
    if not single and (isinstance(outputs, bytes) or not isinstance(outputs, Iterable)):
        raise InvalidHandle(f"[{what}] outputs={outputs!r} is no tensor and no list")
    wanted: Iterable[object] = (outputs,) if single else outputs  # type: ignore[assignment]
    found = tuple([_tensor(graph, output, what) for output in wanted])
    return Asked(given, found, single, _due(graph, given, reuse, what))


def shapes_of(graph: Graph, outputs: object, shape: object, what: str) -> Shapes:
    """What ``shape=`` says of each output; None: that of its tensor.

    Args:
        graph: what is to be run.
        outputs: a tensor or a name, or several.
        shape: a tuple of integers; if ``outputs`` are several a list, a shape or None for each.
        what: for messages.

    Raises:
        InvalidHandle: not integers, not tensors, not names.
        InvalidArgument: a negative extent; not one shape for each output.
        LayoutMismatch: another number of elements than the output's.
    """
    if isinstance(outputs, (Tensor, str)):
        wanted: list[object] = [outputs]
        given: list[object] = [shape]
    elif isinstance(outputs, Iterable) and isinstance(shape, Iterable):
        wanted, given = [*outputs], [*shape]
        if len(wanted) != len(given):
            raise InvalidArgument(f"[{what}] {len(given)} shapes for {len(wanted)} outputs")
    else:
        raise InvalidHandle(f"[{what}] shape={shape!r} is no list with a shape for each output")
    found: list[tuple[int, ...] | None] = []
    for output, one in zip(wanted, given, strict=True):
        found.append(None if one is None else shape_of(one, what))
        if found[-1] is not None:
            check_shape(_tensor(graph, output, what), found[-1], what)
    return found


def reshaped(future: Future[Any], shapes: Shapes) -> Future[Any]:
    """The same Future; its arrays, which nobody has seen yet, in these shapes."""
    value = future._value
    if isinstance(value, list):
        pairs = zip(value, shapes, strict=True)
        future._value = [x if shape is None else x.reshape(shape) for x, shape in pairs]
    elif value is not None and shapes[0] is not None:
        future._value = value.reshape(shapes[0])
    return future


def _tensor(graph: Graph, given: object, what: str) -> Tensor:
    if isinstance(given, Tensor):
        return given
    if isinstance(given, str):
        return graph.find(given, what)
    raise InvalidHandle(f"[{what}] {given!r} is no tensor and no name")


def _check_input(graph: Graph, tensor: Tensor, what: str) -> None:
    root = tensor.root
    if root in graph.leaf_set:
        return
    kind = NotAllocated if root.placement is None else InvalidArgument
    if root.op != "none" and graph.computes(root):
        raise kind(
            f"[{what}] {describe(tensor)} is no leaf, so it cannot be an input: {graph!r} computes "
            f"it ({root.op})"
        )
    raise kind(
        f"[{what}] {describe(tensor)} is no leaf of {graph!r}, which reads "
        f"{_list(graph.inputs or graph.leafs)}"
    )


def _due(graph: Graph, given: Mapping[Tensor, object], reuse: object, what: str) -> Due:
    if isinstance(reuse, (str, bytes, Tensor)) or not isinstance(reuse, Iterable):
        raise InvalidHandle(f"[{what}] reuse={reuse!r} is no list of tensors or names")
    again: set[Tensor] = set()
    for key in reuse:
        leaf = _tensor(graph, key, what)
        _check_input(graph, leaf, what)
        again.add(leaf.root)
    if not graph.inputs:
        return ()
    brought = {tensor.root for tensor in given}
    return tuple([(t, t in again) for t in _sorted(graph)[0] if t not in brought])


def _sorted(graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The INPUT leafs that a run reads, and those that it writes itself, as it does caches.

    Kept with the graph, which never changes.
    """
    found = graph.expected
    if found is None:
        leafs = graph.inputs
        written = written_leafs(graph) if leafs else set()
        found = (
            tuple([leaf for leaf in leafs if leaf not in written]),
            tuple([leaf for leaf in leafs if leaf in written]),
        )
        graph.expected = found
    return found


def _state(leaf: Tensor) -> int:
    place = leaf.root.placement
    return EMPTY if place is None else place.filled


def check_due(due: Due, what: str, floating: Container[Tensor] = ()) -> None:
    """Refuse a run that would read what nobody wrote, or what an earlier run brought.

    Args:
        due: as `ask` found it; asked each time, because what leafs hold changes.
        what: for messages.
        floating: leafs without memory of their own that an earlier run brought.

    Raises:
        NotAllocated: it names the leaf.
    """
    for leaf, again in due:
        state = _state(leaf)
        if state == KEPT or (again and state == BROUGHT):
            continue
        earlier = (
            f"[{what}] input {describe(leaf)} was brought by an earlier run and is not by this one"
        )
        if state == BROUGHT:
            raise NotAllocated(f"{earlier}: give it again, or say reuse=[{leaf.name!r}]")
        if leaf in floating:
            raise NotAllocated(
                f"{earlier}: give it again, or place it with backend.alloc, so that it has memory "
                "to be reused"
            )
        raise NotAllocated(
            f"[{what}] input {describe(leaf)} was never written: give it to run, or set it before"
        )


def check_written(graph: Graph, what: str) -> bool:
    """Refuse to compute from inputs that nobody ever wrote.

    Returns:
        Whether the run writes inputs itself: `note_computed` is to be told then.

    Raises:
        NotAllocated: it names the leaf.
    """
    found = graph.expected
    reads, writes = _sorted(graph) if found is None else found
    for leaf in reads:
        place = leaf.placement  # of a leaf: it is no view
        if place is None or place.filled == EMPTY:
            raise NotAllocated(
                f"[{what}] input {describe(leaf)} was never written: set it before, or give it to "
                "run"
            )
    return writes != ()


def note_computed(graph: Graph) -> None:
    """A run that `check_written` let pass was enqueued: the inputs that it writes have values."""
    Marks(graph, ()).note()


class Marks:
    """What a run does to INPUT leafs: some it brings, to others it writes.

    Args:
        graph: what is run.
        inputs: what the run brings.
    """

    __slots__ = ("_brought", "_written")

    def __init__(self, graph: Graph, inputs: Iterable[Tensor]) -> None:
        roots = dict.fromkeys([t.root for t in inputs])
        self._brought = _places([root for root in roots if root._flags & _INPUT])
        self._written = _places(_sorted(graph)[1])

    def note(self) -> None:
        """The run was enqueued."""
        for place in self._brought:
            fill(place, BROUGHT)
        for place in self._written:
            fill(place, KEPT)


def _places(tensors: Iterable[Tensor]) -> list[Placement]:
    return [tensor.placement for tensor in tensors if tensor.placement is not None]


def _list(tensors: Sequence[Tensor]) -> str:
    shown = [describe(t) for t in tensors[:8]]
    return ", ".join(shown) + (", ..." if len(tensors) > 8 else "") if shown else "nothing"
