"""Which backend computes each tensor, and why: ggml's passes 1 to 4, as one pure function.

Here: tensor -> index of a backend, with the cause. Not here: where a graph is cut (split.py), what
is copied and where it lies (layout/), running (running/). The causes are ggml's own tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.errors import NoBackendForOp
from aggml.ops import table
from aggml.tensor.placement import BufferUsage
from aggml.tensor.tensor import INPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer_type import BufferType
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Holder

__all__ = ["Assignment", "Question", "assign_backends"]

# The weights of these ops (rope's factors, attention's sinks) are too small to decide where the op
# runs.
_SMALL_WEIGHTS: Final = table.with_trait("SMALL_WEIGHTS")


class Assignment(NamedTuple):
    """The answer: for each tensor of the graph an index of ``backends``, and the cause."""

    backend: dict[Tensor, int]
    cause: dict[Tensor, str]


class Question:
    """Backends in order of priority, with the types of their compute buffers and their answers.

    It remembers the answers of devices as long as it lives, which is for one graph.

    Args:
        backends: the first has the highest priority, the last is the one to fall back on.
        types: the types of their compute buffers.
        floating: leafs that each run brings: they count as not placed, even if they have memory.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        types: Sequence[BufferType],
        floating: Collection[Tensor] = (),
    ) -> None:
        self.backends = backends
        self.types = types
        self.floating = floating
        self.last: int = len(backends) - 1
        self._reach = [{id(t): b.device.supports_buffer_type(t) for t in types} for b in backends]
        self._devices = [b.device for b in backends]
        by_device: dict[int, dict[object, bool]] = {id(d): {} for d in self._devices}
        self._supports = [by_device[id(d)] for d in self._devices]
        self._forms: dict[Tensor, object] = {}

    def buffer(self, tensor: Tensor) -> Holder | None:
        """The backend at which the tensor itself was placed by the user; None also for views."""
        placement = tensor.placement
        return None if placement is None or tensor in self.floating else placement.buffer

    def supports(self, b: int, tensor: Tensor) -> bool:
        """Whether backend ``b`` can run the node.

        The layers of a model are alike. So the device is asked only once for nodes with the same
        op, types, shapes, strides and parameters, and sources in the same kinds of memory.
        """
        form = self._forms.get(tensor)
        if form is None:
            form = self._forms[tensor] = _form(tensor)
        known = self._supports[b].get(form)
        if known is None:
            known = self._supports[b][form] = self._devices[b].supports_op(tensor)
        return known

    def reads(self, b: int, buffer_type: BufferType) -> bool:
        """Whether backend ``b`` reads and writes memory of this type directly."""
        reach = self._reach[b]
        known = reach.get(id(buffer_type))
        if known is None:
            known = reach[id(buffer_type)] = self._devices[b].supports_buffer_type(buffer_type)
        return known

    def home(self, buffer: Holder, op: Tensor) -> int:
        """The first backend that reaches ``buffer`` and can run ``op``; -1 if there is none."""
        for b in range(len(self.backends)):
            if self.reads(b, buffer.type) and self.supports(b, op):
                return b
        return -1

    def reachable(self, tensor: Tensor, b: int, backend: Mapping[Tensor, int]) -> bool:
        """Whether backend ``b`` reads the tensor where it lies, or will lie."""
        root = tensor.view_src or tensor
        buffer = self.buffer(root)
        if buffer is not None:
            return self.reads(b, buffer.type)
        at = backend.get(root, -1)
        if at < 0:
            at = backend.get(tensor, -1)
        return at >= 0 and self.reads(b, self.types[at])


def _form(tensor: Tensor) -> object:
    """A key of everything in a node that a device may use to decide whether it can run it."""
    placement = tensor.placement
    return (
        tensor.op,
        tensor.dtype._value_,  # an enum hashes slowly
        tensor.ne,
        tensor.nb,
        tensor.op_params,
        tensor.flag_bits,
        None if placement is None else id(placement.buffer.type),
        *[
            None
            if s is None
            else (
                s.dtype._value_,
                s.ne,
                s.nb,
                None if s.placement is None else id(s.placement.buffer.type),
            )
            for s in tensor.src
        ],
    )


def _from_location(q: Question, tensor: Tensor, *, op_offload: bool) -> tuple[int, str] | None:
    """Pass 1: the backend that follows from where the tensor, or a weight that it reads, lies."""
    root = tensor.view_src or tensor
    buffer = q.buffer(root)
    if buffer is not None:
        home = q.home(buffer, tensor)
        if home >= 0:
            return home, "1.dst" if root is tensor else "1.vsrc"
        raise NoBackendForOp(
            f"[Scheduler] {tensor!r} lies in {buffer!r}, and no backend that reaches it can run "
            f"{tensor.op!r}"
        )
    if tensor.flag_bits & INPUT:
        return q.last, "1.inp"
    if tensor.op in _SMALL_WEIGHTS:
        return None
    for i, source in enumerate(tensor.src):
        if source is None:
            continue
        weights = q.buffer(source)
        if weights is None or weights.usage is not BufferUsage.WEIGHTS:
            continue
        home = q.home(weights, tensor)
        if op_offload and home == q.last and weights.is_host:
            for b in range(home):
                if q.supports(b, tensor) and q._devices[b].offload_op(tensor):
                    return b, "1.off"
        return (home, f"1.wgt{i}") if home >= 0 else None
    return None


def _spread(q: Question, nodes: Sequence[Tensor], found: Assignment, *, last: bool) -> None:
    """One sweep of pass 2: nodes without a backend take that of the node before, if it can."""
    carried = -1
    backend, cause = found
    for node in nodes:
        b = backend.get(node, -1)
        if b >= 0:
            carried = b if last or b != q.last else -1
        elif carried >= 0 and q.supports(carried, node):
            backend[node] = carried
            cause[node] = "2.sup"


def _repair(q: Question, node: Tensor, found: Assignment) -> None:
    """Pass 3 for a node without backend: the backend that reaches most of its sources."""
    best = -1
    for b in range(len(q.backends)):
        if not q.supports(b, node):
            continue
        n = sum(
            1
            for s in node.src
            if s is not None
            and (s in found.backend or (s.view_src is not None and s.view_src in found.backend))
            and q.reachable(s, b, found.backend)
        )
        if n > best:
            best = n
            found.backend[node] = b
            found.cause[node] = "3.best"


def _upgrade(q: Question, node: Tensor, found: Assignment) -> None:
    """Pass 3 for a node that has one: an earlier backend with the very same memory takes over."""
    mine = found.backend[node]
    for b in range(mine):
        if (
            q.types[b] is q.types[mine]
            and q.supports(b, node)
            and all(s is None or q.reachable(s, b, found.backend) for s in node.src)
        ):
            found.backend[node] = b
            found.cause[node] = "3.upg"
            return


def _settle(q: Question, node: Tensor, found: Assignment) -> None:
    """Pass 4: views follow their storage, sources without backend the node that reads them."""
    backend, cause = found
    root = node.view_src
    if root is not None and node not in backend and root in backend:
        backend[node] = backend[root]
        cause[node] = "4.vsrc"
    for source in node.src:
        if source is None or source in backend:
            continue
        if source.view_src is not None:
            if source.view_src in backend:
                backend[source] = backend[source.view_src]
                cause[source] = "4.vsrc"
        elif node in backend:
            backend[source] = backend[node]
            cause[source] = "4.cur"
    if node not in backend:
        for b in range(len(q.backends)):
            if q.supports(b, node):
                backend[node] = b
                cause[node] = "4.any"
                break
        else:
            raise NoBackendForOp(
                f"[Scheduler] no backend of {list(q.backends)!r} supports {node!r}"
            )
        # A leaf that only views read goes to the backend of the first view.
        for source in (node.view_src, *node.src):
            if source is not None and source not in backend:
                backend[source] = backend[node]
                cause[source] = "4.cur"


def _follow_storage(
    q: Question, node: Tensor, found: Assignment, pins: Mapping[Tensor, int]
) -> None:
    """A node that writes into the storage of another has to run where that storage is reached.

    ggml lets such a node run elsewhere, on memory that it cannot touch.
    """
    root = node.view_src
    if root is None or q.reachable(root, found.backend[node], found.backend):
        return
    b = found.backend[root]
    if node in pins or not q.supports(b, node):
        raise NoBackendForOp(
            f"[Scheduler] {node!r} writes into {root!r}, which lies on {q.backends[b]!r}; "
            + (
                f"it is pinned to {q.backends[pins[node]]!r}"
                if node in pins
                else f"that cannot run {node.op!r}"
            )
        )
    found.backend[node] = b
    found.cause[node] = "4.vsrc"


def assign_backends(
    graph: Graph, q: Question, pins: Mapping[Tensor, int], *, op_offload: bool
) -> Sliced[Assignment]:
    """Assign all tensors of a graph, in small steps.

    Pins hold: unlike ggml's, they win over the upgrade to an earlier backend (pass 3).

    Raises:
        NoBackendForOp: no backend can run a node, or none that reaches where its storage lies.
    """
    found = Assignment({}, {})
    backend, cause = found
    for tensor, b in pins.items():
        backend[tensor] = b
        cause[tensor] = "usr"
    for tensors in (graph.leafs, graph.nodes):
        for tensor in tensors:
            if tensor not in backend:
                answer = _from_location(q, tensor, op_offload=op_offload)
                if answer is not None:
                    backend[tensor], cause[tensor] = answer
                yield
    nodes = [n for n in graph.nodes if n.op not in table.VIEWS]
    back = nodes[::-1]
    for last in (False, True):
        _spread(q, nodes, found, last=last)
        yield
        _spread(q, back, found, last=last)
        yield
    for node in nodes:
        if node not in backend:
            _repair(q, node, found)
        elif backend[node] and node not in pins:
            _upgrade(q, node, found)
        yield
    for node in graph.nodes:
        _settle(q, node, found)
        if node.view_src is not None and node.op not in table.VIEWS:
            _follow_storage(q, node, found, pins)
        yield
    return found
