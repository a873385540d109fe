"""Lowering: the nodes of a graph, and the addresses of its tensors, become native steps.

Here: the arguments of the native compiler for a node, or for a chain of nodes that are computed
together. Not here: which nodes form a chain (fusion.py), where tensors lie (memory/), how a node is
divided into chunks (native/lower/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aggml import errors
from aggml.errors import AggmlError, InvalidHandle, NotAllocated, Unsupported
from aggml.graph import Graph
from aggml.native import _native, cpu_mask
from aggml.ops.custom import CustomParams
from aggml.ops.table import IDLE, NUMBERS, PACKS
from aggml.plan.call import PlanCall
from aggml.plan.fusion import NOTHING_FUSED, find_chains, without_last
from aggml.plan.plan import Plan
from aggml.plan.storages import Storages, written_leafs
from aggml.stream.slices import finish
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from aggml.plan.fusion import FusionChain, Span
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Placement

__all__ = ["Locate", "compile_plan", "compile_steps", "node_problem"]

# agk_status of native/table/kernels.h
_STATUS: dict[int, type[AggmlError]] = {
    1: errors.Unsupported,
    2: errors.OutOfBounds,
    3: errors.InvalidArgument,
    4: errors.AllocFailed,
}

#: (address, whether it is an offset into the arena) of a tensor that is no view
Locate = Callable[["Tensor"], tuple[int, bool]]
#: A tensor as the native compiler takes it: (type, address, whether that is in the arena, ne, nb,
#: bytes from there to the end of the storage).
_Operand = tuple[int, int, bool, tuple[int, ...], tuple[int, ...], int]


class _Operands(dict["Tensor", _Operand]):
    """The tensors of a graph as the native compiler takes them, computed on first use.

    Args:
        locate: tells where a tensor that is no view lies.
    """

    __slots__ = ("_locate",)

    def __init__(self, locate: Locate) -> None:
        self._locate = locate

    def __missing__(self, tensor: Tensor) -> _Operand:
        root, offset = tensor.root, tensor.view_offs
        base, in_arena = self._locate(root)
        room = root.nbytes - offset if offset >= 0 else -1  # the native compiler refuses it
        place = (base + offset, in_arena, tensor.ne, tensor.nb, room)
        found = self[tensor] = (tensor.dtype.value, *place)
        return found

    def span(self, tensor: Tensor) -> Span:
        """The range of bytes of a tensor, to find overlaps."""
        _, start, in_arena, *_ = self[tensor]
        return in_arena, start, start + tensor.nbytes


class _Weights:
    """The weights of a graph of which kernels may keep packed copies.

    Args:
        written: storages that the graph itself writes; they are never packed. None: no storage is.
    """

    __slots__ = ("_assumed", "_written")

    def __init__(self, written: set[Tensor] | None) -> None:
        self._written = written
        self._assumed: dict[Placement, bool] = {}

    def storage(self, node: Tensor) -> _native.Storage | None:
        """The native record of the weights that ``node`` multiplies by; None if not packable."""
        if self._written is None or node.op not in PACKS or node.src[0] is None:
            return None
        root = node.src[0].root
        place = root.placement
        if place is None or root in self._written:
            return None
        packable = self._assumed[place] = _packable(place)
        return place.storage if packable else None

    def stand(self) -> bool:
        """Whether the same answers would be given now."""
        return all(_packable(place) is was for place, was in self._assumed.items())


def _packable(place: Placement) -> bool:
    """Whether kernels may keep a packed copy: only streams write the memory, and seldom."""
    buffer = place.buffer
    return buffer.usage is BufferUsage.WEIGHTS and buffer.exclusive and not place.exported


class _Draft(NamedTuple):
    """A plan that is being compiled: the steps so far, and the facts that each node needs.

    Attributes:
        native: the steps so far.
        operands: of all tensors.
        weights: which of them may be packed.
        columns: nodes that one product alone reads, as its columns (see `Fused`).
        calls: the steps that call Python functions, by index.
    """

    native: _native.Plan
    operands: _Operands
    weights: _Weights
    columns: frozenset[Tensor]
    calls: dict[int, PlanCall]


def compile_steps(
    graph: Graph,
    locate: Locate,
    work_base: int,
    cpu: int,
    *,
    fuse: bool = True,
    pack: bool = False,
) -> Sliced[Plan]:
    """Compile in one step per node, so that `prepare` can yield to the event loop in between.

    Args:
        graph: the graph to compile.
        locate: tells where a tensor that is no view lies.
        work_base: bytes of the arena that are in use; the kernels' own scratch comes after them.
        cpu: features that kernels may use, see `cpu_mask`; with 0, the reference, each node is
            computed by itself.
        fuse: whether nodes may be computed together, see `aggml.plan.fusion`.
        pack: whether kernels may keep packed copies of weights; ``locate`` then gives placements.

    Returns:
        The Plan, as the return value of a generator.

    Raises:
        Unsupported: no kernel runs a node with these types or strides.
        InvalidArgument: a node would write memory that is read-only.
    """
    native = _native.Plan(cpu, work_base)
    operands = _Operands(locate)
    weights = _Weights(written_leafs(graph) if pack else None)
    fused = (yield from find_chains(graph, operands.span)) if fuse and cpu else NOTHING_FUSED
    draft = _Draft(native, operands, weights, fused.columns, {})
    storages = Storages()
    computed = [node for node in graph.nodes if node.op not in IDLE]
    for number, node in enumerate(computed):
        leaf = storages.visit(node)
        if node in fused.inner:
            continue
        chain = fused.chains.get(node)
        if chain is None:
            _add_node(draft, node, number, leaf)
        else:
            _add_chain(draft, chain, number, leaf)
        yield
    native.seal(*storages.records())
    return Plan(graph, native, storages, draft.calls, weights.stand)


def _add_node(draft: _Draft, node: Tensor, number: int, leaf: int) -> None:
    """Add a node as a step of its own.

    Args:
        draft: the plan to which it is added.
        node: a node that is no view.
        number: how many nodes that are no views come before it in the graph.
        leaf: the result of `Storages.visit` for the node.

    Raises:
        Unsupported, OutOfBounds, InvalidArgument, AllocFailed: the native compiler refuses it.
    """
    operands = draft.operands
    # Sources first: if a graph has no memory, the message then names the leaf, which the user made.
    sources = tuple([None if source is None else operands[source] for source in node.src])
    target = operands[node]
    problem = draft.native.add(
        _op_id(node.op),
        node.name,
        target,
        sources,
        node.op_params,
        leaf,
        number,
        (),
        draft.weights.storage(node),
        node in draft.columns,
    )
    if problem is not None:
        status, message = problem
        raise _STATUS[status](f"[compile_plan] {node!r}: {message}")
    if isinstance(node.op_params, CustomParams) and node.op_params.n_calls:
        places = [found[1:3] for found in (target, *sources) if found is not None]
        draft.calls[draft.native.n_steps - 1] = PlanCall(node, places)


def _add_chain(draft: _Draft, chain: FusionChain, number: int, leaf: int) -> None:
    """Add nodes that are computed together, or one by one if no kernel computes them together."""
    if _is_added(draft, chain, number, leaf):
        return
    last = chain.nodes[-1]
    shorter = without_last(chain) if last.op == "cpy" else None
    if shorter is None or not _is_added(draft, shorter, number, -1):
        for node in chain.nodes[:-1]:
            _add_node(draft, node, number, -1)
    _add_node(draft, last, number, leaf)


def _is_added(draft: _Draft, chain: FusionChain, number: int, leaf: int) -> bool:
    """Add a chain as one step that writes its last node; False: no kernel computes it together."""
    lead, last = chain.nodes[0], chain.nodes[-1]
    sources = chain.sources
    index = {source: i for i, source in enumerate(sources)}
    stages = tuple(
        [
            (_op_id(node.op), -1 if other is None else index[other], first, node.op_params)
            for node, other, first in chain.stages
        ]
    )
    problem = draft.native.add(
        _op_id(lead.op),
        last.name,
        draft.operands[last],
        tuple([draft.operands[source] for source in sources]),
        lead.op_params,
        leaf,
        number,
        stages,
        draft.weights.storage(lead),
        last in draft.columns,
    )
    return problem is None


def _op_id(op: str) -> int:
    number = NUMBERS.get(op)
    if number is None:
        raise Unsupported(f"[compile_plan] the CPU has no kernel for {op!r}")
    return number


def compile_plan(
    graph: Graph, addresses: Callable[[Tensor], int] | None = None, *, isa: str | None = None
) -> Plan:
    """Compile a graph for the CPU kernels over memory that the caller names; for `Stream.run_plan`.

    Args:
        graph: every tensor that is no view needs an address.
        addresses: gives the host address of a tensor that is no view; if not given, the address of
            its placement. The memory has to outlive the plan, and every node is written to it.
        isa: "scalar" for the reference kernels, "avx2", ...; if not given, AGGML_ISA from the
            environment, else the best.

    Raises:
        NotAllocated: a tensor has no address.
        Unsupported: no kernel runs a node with these types or strides.
    """
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[compile_plan] {graph!r} is no Graph")
    if addresses is None:
        is_placed = graph.memory is not None
        return finish(
            compile_steps(graph, lambda t: (_address(t, is_placed), False), 0, cpu_mask(isa))
        )
    address = addresses  # mypy forgets in a lambda that it is not None
    return finish(compile_steps(graph, lambda t: (address(t), False), 0, cpu_mask(isa), fuse=False))


def _address(tensor: Tensor, is_placed: bool) -> int:
    """The address at which a tensor was placed."""
    if tensor.placement is None:
        advice = (
            "it lies in scratch of the backend that placed the graph, which compiles it by "
            "Backend.graph_plan(graph)"
            if is_placed
            else "call alloc_graph first"
        )
        raise NotAllocated(f"[compile_plan] {tensor!r} has no memory of its own: {advice}")
    return tensor.placement.address


def node_problem(node: Tensor, isa: str | None = None) -> str | None:
    """Why the CPU kernels cannot run this node; None if they can. Nothing is allocated or run."""
    if node.op in IDLE:
        return None
    number = NUMBERS.get(node.op)
    if number is None:
        return f"there is no kernel for {node.op!r}"
    sources = tuple([None if source is None else _anywhere(source) for source in node.src])
    try:
        plan = _native.Plan(cpu_mask(isa), 0)
        problem = plan.add(number, "", _anywhere(node), sources, node.op_params, -1)
    except TypeError as error:  # an element type that the kernels do not know
        return str(error)
    return None if problem is None else str(problem[1])


def _anywhere(tensor: Tensor) -> _Operand:
    """The operand of a tensor at an address that suits every kernel; only its layout matters."""
    room = tensor.root.nbytes - tensor.view_offs
    return (tensor.dtype.value, 64, False, tensor.ne, tensor.nb, room)
