"""Graphs for a device of ggml: each tensor with its builder's arguments, sources before users.

Here: which other tensors a node needs, which nodes cannot be built. Not here: the builders and the
graph (native/ggml/builders.def, build.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.devices.ggml.packed import packed_place
from aggml.errors import Unsupported
from aggml.native import _native
from aggml.ops.custom import CustomParams
from aggml.ops.table import IDLE, NUMBERS, VIEWS
from aggml.plan import DevicePlan, Storages
from aggml.tensor.tensor import PARAM

if TYPE_CHECKING:
    from aggml.devices.ggml.target import GgmlTarget
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.plan import Locate, PlanCall
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["GgmlPlan", "lowering", "question", "refuses"]

#: In-place ops whose ggml builder returns a view. For other in-place ops the result is placed so.
_OWN_VIEWS: Final = VIEWS | {"cpy", "set_rows", "set", "acc", "opt_step_adamw", "opt_step_sgd"}


class GgmlPlan(DevicePlan):
    """A graph for a device of ggml, for `Stream.run_plan`.

    Attributes:
        native: the tensors, and the graph once it is built.
    """

    __slots__ = ("native",)

    def __init__(
        self, graph: Graph, native: _native.Plan, storages: Storages, arena_size: int
    ) -> None:
        self.native: _native.Plan = native
        super().__init__(graph, arena_size=arena_size, storages=storages)

    @property
    def calls(self) -> dict[int, PlanCall]:
        """Empty: the library calls no Python."""
        return {}


def refuses(node: Tensor) -> str | None:
    """The property of a node that cannot be passed to any library; None if there is none."""
    if isinstance(node.op_params, CustomParams):
        return "functions of the user run on the CPU device only"
    if node.view_src is not None and node.op not in _OWN_VIEWS and not node.is_contiguous:
        return "in place on memory with gaps"
    return None


class _Tensors:
    """Tensors as the native plan takes them, each after those that it needs.

    Args:
        native: the plan.
        locate: tells where a tensor that is no view lies; None: only packed weights have memory.
    """

    def __init__(self, native: _native.GgmlPlan, locate: Locate | None) -> None:
        self._native = native
        self._locate = locate
        self._index: dict[Tensor, int] = {}

    def add(self, tensor: Tensor, *, whole: bool) -> int:
        """The index of a tensor.

        Args:
            tensor: any.
            whole: whether to add it as its op computes it; else a node that is computed elsewhere
                counts as a leaf.
        """
        found = self._index.get(tensor)
        if found is not None:
            return found
        strided = tensor.view_src is not None and not tensor.is_contiguous
        made = whole or tensor.op in VIEWS or strided
        src: tuple[int, ...] = ()
        if made:
            src = tuple([-1 if s is None else self.add(s, whole=False) for s in tensor.src])
        offset = 0
        if tensor.op == "view" and tensor.src[0] is not None:
            offset = tensor.view_offs - tensor.src[0].view_offs
        view = -1 if tensor.view_src is None else self._index.get(tensor.view_src, 0)
        root = tensor.root
        self._native.add(
            NUMBERS[tensor.op if made else "none"],
            tensor.dtype.value,
            tensor.ne,
            tensor.nb,
            src,
            view if made else -1,
            offset,
            self._place(tensor),
            (root.placement is not None and tensor.op not in IDLE, bool(tensor.flag_bits & PARAM)),
            tensor.op_params,
            tensor.name,
        )
        self._index[tensor] = found = len(self._index)
        return found

    def _place(self, tensor: Tensor) -> tuple[int, bool]:
        if self._locate is None:
            return packed_place(tensor), False
        if tensor.nbytes == 0:
            return 0, False
        start, in_arena = self._locate(tensor.root)
        return start + tensor.view_offs, in_arena


def question(device: _native.GgmlDevice, node: Tensor) -> _native.GgmlPlan:
    """A plan of one node over leaves, to ask the library about."""
    native = _native.GgmlPlan(device)
    _Tensors(native, None).add(node, whole=True)
    return native


def lowering(device: GgmlTarget, graph: Graph, memory: GraphBuffer) -> Sliced[GgmlPlan]:
    """Compile in one step per node, so that `prepare` can yield to the event loop in between.

    Returns:
        The GgmlPlan, as the return value of a generator.

    Raises:
        Unsupported: the library has no builder for a node, or its device does not run it.
        InvalidArgument: a node would write memory that is read-only.
    """
    native = _native.GgmlPlan(device.native)
    tensors, storages = _Tensors(native, memory.locate), Storages()
    for node in graph.nodes:
        if node.op in IDLE or 0 in node.ne:
            continue
        why = device.problem(node)
        if why is not None:
            raise Unsupported(f"[compile_plan] {device.name} does not run {node!r}: {why}")
        storages.visit(node)
        tensors.add(node, whole=True)
        yield
    size = memory.scratch_size
    plan = native.finish(size)
    plan.seal(*storages.records())
    return GgmlPlan(graph, plan, storages, size)
