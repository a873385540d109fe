"""Plan: a graph and the addresses of its tensors, lowered into native steps.

Here: lowering, which storages a plan reads and writes, a plan's steps as the user sees them.
Not here: where tensors lie (graph_memory.py, allocator/), how a node is cut into chunks
(native/lower/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aggml import errors
from aggml.errors import AggmlError, InvalidHandle, NotAllocated, Unsupported
from aggml.fusion import VIEW_OPS, chaining, without_last
from aggml.graph import Graph
from aggml.native import _native, cpu_mask
from aggml.ops.custom import CustomParams
from aggml.plan_call import PlanCall
from aggml.stream.slices import finish
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from aggml.fusion import Chain
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Placement

__all__ = [
    "DevicePlan",
    "NativePlan",
    "Plan",
    "PlanStep",
    "compile_plan",
    "lowering",
    "node_problem",
    "written_leafs",
]

_TARGETS = frozenset({("cpy", 1), ("set_rows", 2)})  # sources that are written and not read
_WEIGHTED = frozenset({"mul_mat", "mul_mat_id"})  # whose first source may be packed
_UPDATED = {"opt_step_adamw": (2, 3)}  # sources that are written besides the node itself
_OP_IDS: dict[str, int] = {}
# agk_status of native/table/kernels.h
_STATUS: dict[int, type[AggmlError]] = {
    1: errors.Unsupported,
    2: errors.OutOfBounds,
    3: errors.InvalidArgument,
    4: errors.AllocFailed,
}

#: (address, is it an offset into the arena?) of a tensor that is no view
Locate = Callable[["Tensor"], tuple[int, bool]]
#: (type, where, is that in the arena?, ne, nb, bytes from there to the end of the storage)
_Operand = tuple[int, int, bool, tuple[int, ...], tuple[int, ...], int]


class PlanStep(NamedTuple):
    """One step as ``print(plan)`` shows it; steps run in order, chunks of one on any threads.

    Nodes that are computed together are one step, ``mul_mat+add+gelu``, that has the name of the
    last: the values of the others are not stored. With ``beside``, chunks of the step before and of
    this one run in any order.
    """

    node: str
    op: str
    n_chunks: int
    beside: bool = False


class DevicePlan:
    """A graph compiled over fixed addresses; immutable. Devices subclass it for plans of their own.

    Scratch is an offset from a base that each run is given.

    Args:
        graph: what is compiled.
        arena_size: bytes of scratch a run needs; the placement of the graph tells it.

    Attributes:
        reads: the storages that a run reads before it writes them; a poisoned one fails it.
        writes: the storages that a run writes in full; a failed one leaves them poisoned.
        partial: the storages that a run writes in part.

    Raises:
        InvalidArgument: a node would write memory that is read-only.
    """

    __slots__ = ("arena_size", "graph", "keep", "partial", "reads", "writes")

    def __init__(self, graph: Graph, *, arena_size: int = 0) -> None:
        storages = _Storages()
        for node in graph.nodes:
            if node.op not in VIEW_OPS:
                storages.visit(node)
        self._fill(graph, arena_size, storages)

    def _fill(self, graph: Graph, arena_size: int, storages: _Storages) -> None:
        self.graph = graph
        self.arena_size = arena_size
        self.reads = tuple(storages.reads)
        self.writes = tuple(storages.writes)
        self.partial = tuple(storages.partial)
        # Placements: what the addresses point at lives as long as the plan.
        self.keep: list[Placement | None] = [t.placement for t in (*graph.leafs, *graph.nodes)]

    @property
    def holds(self) -> bool:
        """Whether it would be compiled alike now, placements aside."""
        return True

    @property
    def steps(self) -> list[PlanStep]:
        """What a run does, in order."""
        return [PlanStep(n.name, n.op, 1) for n in self.graph.nodes if n.op not in VIEW_OPS]

    def __str__(self) -> str:
        lines = [
            f"{i:4} {'+' if s.beside else ' '} {s.op:16} {s.node:32} {s.n_chunks} chunks"
            for i, s in enumerate(self.steps)
        ]
        return "\n".join([repr(self), *lines])

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of graph {self.graph.uid}, {len(self.steps)} steps, "
            f"{self.arena_size} bytes of scratch>"
        )


class NativePlan(Protocol):
    """A plan that a native stream runs, and what it needs."""

    @property
    def native(self) -> _native.Plan:
        """For the stream of the device that it was compiled for."""
        ...

    @property
    def arena_size(self) -> int:
        """Bytes of scratch that a run needs."""
        ...

    @property
    def calls(self) -> Mapping[int, PlanCall]:
        """Its steps that are functions in Python."""
        ...


class Plan(DevicePlan):
    """A graph lowered into native steps, for `Stream.run_plan`.

    Attributes:
        native: the steps.
        calls: those of them that are functions in Python, by index.
        work: for devices that pretend to a speed: floating point operations of a run.
    """

    __slots__ = ("_weights", "calls", "native", "work")

    def __init__(
        self,
        graph: Graph,
        native: _native.Plan,
        storages: _Storages,
        calls: dict[int, PlanCall],
        weights: dict[Placement, bool],
    ) -> None:
        self.native = native
        self.calls = calls
        self.work = 0
        self._weights = weights
        self._fill(graph, native.arena_size, storages)

    @property
    def holds(self) -> bool:
        """Whether what lies in each place still is, or still is not, weights that may be packed."""
        return all(_packable(place) is was for place, was in self._weights.items())

    @property
    def steps(self) -> list[PlanStep]:
        """What a run does, in order."""
        return [PlanStep(*step) for step in self.native.steps()]


def _op_id(op: str) -> int:
    number = _OP_IDS.get(op)
    if number is None:
        number = _native.op_find(op)
        if number < 0:
            raise Unsupported(f"[compile_plan] the CPU has no kernel for {op!r}")
        _OP_IDS[op] = number
    return number


def _writes_in_full(node: Tensor, target: Tensor, root: Tensor) -> bool:
    """Whether ``node``, which writes ``target`` of the leaf ``root``, replaces all of its bytes."""
    return (
        node.op != "set_rows"
        and target.view_offs == 0
        and target.nbytes == root.nbytes
        and target.is_contiguously_allocated
    )


class _Storages:
    """Which storages a plan reads, writes in full and writes in part, in node order."""

    def __init__(self) -> None:
        self.reads: dict[Tensor, None] = {}
        self.writes: dict[Tensor, None] = {}
        self.partial: dict[Tensor, int] = {}

    def visit(self, node: Tensor) -> int:
        """Note one node; returns the index of the leaf it writes, -1 if it writes none."""
        for i, src in enumerate(node.src):
            if src is None or (node.op, i) in _TARGETS:
                continue
            root = src.root
            if root.placement is not None and root not in self.writes:
                self.reads.setdefault(root)
        for i in _UPDATED.get(node.op, ()):
            updated = node.src[i]
            if updated is not None:
                self._write(node, updated)
        return self._write(node, node)

    def _write(self, node: Tensor, target: Tensor) -> int:
        root = target.root
        if root is target and target.op != "none":
            if target.placement is not None:
                self.writes.setdefault(target)
            return -1
        if root.op != "none":
            return -1  # in place on a node of this graph
        if root.placement is not None and not root.placement.buffer.writable:
            raise errors.InvalidArgument(
                f"[compile_plan] {node!r} would write {root!r} in {root.placement.buffer!r}, "
                "which is read-only"
            )
        if _writes_in_full(node, target, root):
            self.writes.setdefault(root)
            return 1 << 20  # protected from aborts like any leaf; poisoned with all full writes
        return self.partial.setdefault(root, len(self.partial))


def _packable(place: Placement) -> bool:
    """Whether nobody but streams writes there, and they seldom: kernels may keep a packed copy."""
    buffer = place.buffer
    return buffer.usage is BufferUsage.WEIGHTS and buffer.exclusive and not place.exported


def written_leafs(graph: Graph) -> set[Tensor]:
    """The leaves that the graph itself writes."""
    found = {node.root for node in graph.nodes if node.op not in VIEW_OPS}
    for node in graph.nodes:
        for i in _UPDATED.get(node.op, ()):
            updated = node.src[i]
            if updated is not None:
                found.add(updated.root)
    return found


def lowering(
    graph: Graph,
    locate: Locate,
    work_base: int,
    cpu: int,
    *,
    fuse: bool = True,
    pack: bool = False,
) -> Steps[Plan]:
    """Compile, in a step for each node, so that `prepare` can give way to the loop.

    Args:
        graph: what to compile.
        locate: tells where a tensor that is no view lies.
        work_base: bytes of the arena that are taken; what kernels need for themselves comes after.
        cpu: features the kernels may use, see `cpu_mask`; 0, the reference, computes each node by
            itself.
        fuse: whether nodes may be computed together, see `aggml.fusion`.
        pack: whether kernels may keep packed copies of weights; ``locate`` then gives placements.

    Returns:
        The Plan, as a generator does.

    Raises:
        Unsupported: no kernel runs a node with these types or strides.
        InvalidArgument: a node would write memory that is read-only.
    """
    native = _native.Plan(cpu, work_base)
    storages = _Storages()
    operands: dict[Tensor, _Operand] = {}
    calls: dict[int, PlanCall] = {}
    weights: dict[Placement, bool] = {}
    written = written_leafs(graph) if pack else set()

    def operand(tensor: Tensor) -> _Operand:
        found = operands.get(tensor)
        if found is None:
            root, offset = tensor.root, tensor.view_offs
            base, in_arena = locate(root)
            room = root.nbytes - offset if offset >= 0 else -1  # it is refused
            place = (base + offset, in_arena, tensor.ne, tensor.nb, room)
            found = (tensor.dtype.value, *place)
            operands[tensor] = found
        return found

    def span(tensor: Tensor) -> tuple[bool, int, int]:
        _, start, in_arena, *_ = operand(tensor)
        return in_arena, start, start + tensor.nbytes

    def packable(node: Tensor) -> _native.Storage | None:
        if not pack or node.op not in _WEIGHTED or node.src[0] is None:
            return None
        root = node.src[0].root
        place = root.placement
        if place is None or root in written:
            return None
        weights[place] = _packable(place)
        return place.storage if weights[place] else None

    def add(node: Tensor, number: int, leaf: int) -> None:
        srcs = tuple([None if src is None else operand(src) for src in node.src])
        problem = native.add(
            _op_id(node.op),
            node.name,
            operand(node),
            srcs,
            node.op_params,
            leaf,
            number,
            (),
            packable(node),
            node in columns,
        )
        if problem is not None:
            status, message = problem
            raise _STATUS[status](f"[compile_plan] {node!r}: {message}")
        if isinstance(node.op_params, CustomParams) and node.op_params.n_calls:
            places = [found[1:3] for found in (operand(node), *srcs) if found is not None]
            calls[native.n_steps - 1] = PlanCall(node, places)

    def add_chain(chain: Chain, number: int, leaf: int) -> bool:
        lead, last = chain.nodes[0], chain.nodes[-1]
        sources = chain.sources
        places = {source: i for i, source in enumerate(sources)}
        stages = tuple(
            [
                (
                    _op_id(node.op),
                    -1 if other is None else places[other],
                    first,
                    node.op_params,
                )
                for node, other, first in chain.stages
            ]
        )
        srcs = tuple(map(operand, sources))
        params = lead.op_params
        problem = native.add(
            _op_id(lead.op),
            last.name,
            operand(last),
            srcs,
            params,
            leaf,
            number,
            stages,
            packable(lead),
            last in columns,
        )
        return problem is None  # else each node gets a lowering of its own, or says why not

    chains: dict[Tensor, Chain] = {}
    columns: set[Tensor] = set()
    if fuse and cpu:
        chains, columns = yield from chaining(graph, span)
    waiting = {node for chain in chains.values() for node in chain.nodes[:-1]}
    number = -1
    for node in graph.nodes:
        if node.op in VIEW_OPS:
            continue
        number += 1
        leaf = storages.visit(node)
        if node in waiting:
            continue
        chain = chains.get(node)
        if chain is None:
            add(node, number, leaf)
        elif not add_chain(chain, number, leaf):
            shorter = without_last(chain) if node.op == "cpy" else None
            if shorter is None or not add_chain(shorter, number, -1):
                for member in chain.nodes[:-1]:
                    add(member, number, -1)
            add(node, number, leaf)
        yield
    native.seal(_records(storages.reads), _records(storages.writes), _records(storages.partial))
    return Plan(graph, native, storages, calls, weights)


def _records(tensors: dict[Tensor, None] | dict[Tensor, int]) -> tuple[_native.Storage, ...]:
    return tuple([t.placement.storage for t in tensors if t.placement is not None])


def compile_plan(
    graph: Graph, addresses: Callable[[Tensor], int] | None = None, *, isa: str | None = None
) -> Plan:
    """Compile a graph for the CPU kernels over memory that the caller names; for `Stream.run_plan`.

    Args:
        graph: every tensor that is no view needs an address.
        addresses: gives the host address of a tensor that is no view; left out, that of its
            placement. The memory has to outlive the plan, and every node is written to it.
        isa: "scalar" for the reference kernels, "avx2", ...; left out, the best (AGGML_ISA may say
            otherwise).

    Raises:
        NotAllocated: a tensor has no address.
        Unsupported: no kernel runs a node with these types or strides.
    """
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[compile_plan] {graph!r} is no Graph")

    def locate(tensor: Tensor) -> tuple[int, bool]:
        if addresses is not None:
            return addresses(tensor), False
        if tensor.placement is None:
            raise NotAllocated(f"[compile_plan] {tensor!r} has no memory")
        return tensor.placement.address, False

    return finish(lowering(graph, locate, 0, cpu_mask(isa), fuse=addresses is None))


def node_problem(node: Tensor, isa: str | None = None) -> str | None:
    """Why the CPU kernels cannot run this node, None if they can; nothing is allocated or run."""
    if node.op in VIEW_OPS:
        return None
    number = _native.op_find(node.op)
    if number < 0:
        return f"there is no kernel for {node.op!r}"

    # Any aligned address will do: lowering looks at layouts only.
    def operand(t: Tensor) -> _Operand:
        return (t.dtype.value, 64, False, t.ne, t.nb, t.root.nbytes - t.view_offs)

    srcs = tuple([None if t is None else operand(t) for t in node.src])
    try:
        plan = _native.Plan(cpu_mask(isa), 0)
        problem = plan.add(number, "", operand(node), srcs, node.op_params, -1)
    except TypeError as error:  # an element type that the kernels do not know
        return str(error)
    return None if problem is None else str(problem[1])
