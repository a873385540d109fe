"""Checks of the inputs and outputs of a run: which tensors are meant, and that no input is missing.

Here: the checks that `Backend.run` and `Scheduler.run` share, made before anything is queued;
the key (its "words") under which a prepared submission is found again. Not here: whether an array
fits its tensor (tensor/checking.py), whether an INPUT leaf has a value (tensor/inputs.py), the
copies themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from aggml.errors import InvalidArgument, InvalidHandle, NotAllocated
from aggml.ops.table import VIEWS
from aggml.plan import written_leafs
from aggml.stream.future import set_value, value_of
from aggml.stream.prepared import RunArguments
from aggml.tensor import Tensor, describe
from aggml.tensor.checking import check_shape, shape_of
from aggml.tensor.inputs import Due, Marks
from aggml.tensor.placement import EMPTY
from aggml.tensor.tensor import INPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.graph import Graph
    from aggml.stream.future import Future
    from aggml.tensor.placement import Placement

__all__ = [
    "Inputs",
    "Outputs",
    "Reuse",
    "RunKey",
    "Shapes",
    "check_output",
    "check_written",
    "find_arguments",
    "reshape_results",
    "run_key",
    "shapes_of",
]

#: The ``inputs`` argument of a run; its keys are tensors, or names, or a mixture of both.
Inputs: TypeAlias = "Mapping[Any, object]"
Outputs: TypeAlias = "Sequence[Tensor] | list[str] | list[Tensor | str] | tuple[Tensor | str, ...]"
Reuse: TypeAlias = "Iterable[Tensor | str]"
Shapes: TypeAlias = "Sequence[tuple[int, ...] | None]"
#: The arguments of a submission without its arrays: the key under which it is found again.
RunKey: TypeAlias = tuple[object, ...]


def run_key(outputs: object, inputs: object, reuse: object = (), shape: object = None) -> RunKey:
    """The key of a submission; empty if it cannot be found again by its arguments.

    A key is made of tensors, names, and lists, tuples and dictionaries of these; of a shape it
    holds the integers.
    """
    if type(outputs) is list:
        outputs = tuple(outputs)
    elif type(outputs) is not Tensor and type(outputs) is not tuple and type(outputs) is not str:
        return ()
    if inputs is None:
        key: RunKey = (outputs, reuse, shape)
    elif type(inputs) is dict:
        key = (outputs, reuse, shape, *inputs)
    else:
        return ()
    if type(reuse) is not tuple or (shape is not None and type(shape) is not tuple):
        if type(reuse) is not list and type(reuse) is not tuple:
            return ()  # looking at an iterator would consume it
        if shape is not None and type(shape) is not list and type(shape) is not tuple:
            return ()
        again = tuple(reuse)
        key = (outputs, again, shape if shape is None else tuple(shape), *key[3:])
    try:
        hash(key)
    except TypeError:  # an argument is no tensor
        return ()
    return key


def find_arguments(
    graph: Graph,
    inputs: Inputs | None,
    outputs: object,
    reuse: object,
    what: str,
) -> RunArguments:
    """Find the tensors that are named, and refuse those that cannot be inputs of this graph.

    Args:
        graph: the graph to be run.
        inputs: keyed by a leaf, a view of one, or the name of either; None means no inputs.
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
    members = graph.members
    for tensor in found:
        if tensor not in members:
            check_output(graph, tensor, what)
    due = _due(graph, given, reuse, what)
    brought = dict.fromkeys([tensor.root for tensor in given])
    marks = Marks([leaf for leaf in brought if leaf.flag_bits & INPUT], _input_leafs(graph)[1])
    return RunArguments(given, found, single, due, marks)


def shapes_of(graph: Graph, outputs: object, shape: object, what: str) -> Shapes:
    """The shape that ``shape=`` asks for, for each output; None: the shape of its tensor.

    Args:
        graph: the graph to be run.
        outputs: a tensor or a name, or several.
        shape: a tuple of integers; if ``outputs`` are several, a list of shapes or Nones.
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
            raise InvalidArgument(
                f"[{what}] shape has {len(given)} entries for {len(wanted)} outputs"
            )
    else:
        raise InvalidHandle(f"[{what}] shape={shape!r} is no list with a shape for each output")
    found: list[tuple[int, ...] | None] = []
    for output, one in zip(wanted, given, strict=True):
        found.append(None if one is None else shape_of(one, what))
        if found[-1] is not None:
            check_shape(_tensor(graph, output, what), found[-1], what)
    return found


def reshape_results(future: Future[Any], shapes: Shapes) -> Future[Any]:
    """Give these shapes to the arrays of a Future that nobody has seen yet; returns the Future."""
    value = value_of(future)
    if isinstance(value, list):
        pairs = zip(value, shapes, strict=True)
        set_value(future, [x if shape is None else x.reshape(shape) for x, shape in pairs])
    elif value is not None and shapes[0] is not None:
        set_value(future, value.reshape(shapes[0]))
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
    error = NotAllocated if root.placement is None else InvalidArgument
    if root.op != "none" and graph.computes(root):
        raise error(
            f"[{what}] {describe(tensor)} is no leaf, so it cannot be an input: {graph!r} computes "
            f"it ({root.op})"
        )
    raise error(
        f"[{what}] {describe(tensor)} is no leaf of {graph!r}, which reads "
        f"{_list(graph.inputs or graph.leafs)}"
    )


def check_output(graph: Graph, tensor: Tensor, what: str) -> None:
    """Refuse to read what a run of this graph neither computes nor reads.

    Its memory may hold what another graph left there, for somebody else, or nothing at all.

    Raises:
        InvalidArgument, NotAllocated: it is no tensor of the graph, and no view of one.
    """
    shown: Tensor | None = tensor
    while shown is not None:
        if shown in graph.members:
            return
        shown = shown.src[0] if shown.op in VIEWS and shown.src else None
    error = NotAllocated if tensor.root.placement is None else InvalidArgument
    raise error(
        f"[{what}] {describe(tensor)} is no tensor of {graph!r} and no view of one, so it cannot "
        "be an output: this graph does not compute it"
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
    return tuple([(t, t in again) for t in _input_leafs(graph)[0] if t not in brought])


def _input_leafs(graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The INPUT leafs that a run reads, and those that the run itself writes (such as caches).

    The result is kept with the graph, which never changes.
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


def check_written(
    graph: Graph, what: str, states: Mapping[Placement, int] = MappingProxyType({})
) -> Marks:
    """Refuse to compute from inputs that were never written. A leaf with a value keeps one.

    Args:
        graph: which.
        what: for messages.
        states: what earlier calls of an open batch leave in places.

    Returns:
        What the run does to inputs: it may write some of them itself.

    Raises:
        NotAllocated: a leaf was never written; the text names it.
    """
    reads, writes = _input_leafs(graph)
    for leaf in reads:
        place = leaf.placement  # of a leaf: it is no view
        if place is None or states.get(place, place.filled) == EMPTY:
            raise NotAllocated(
                f"[{what}] input {describe(leaf)} was never written: set it before, or give it to "
                "run"
            )
    return Marks((), writes)


def _list(tensors: Sequence[Tensor]) -> str:
    shown = [describe(t) for t in tensors[:8]]
    return ", ".join(shown) + (", ..." if len(tensors) > 8 else "") if shown else "nothing"
