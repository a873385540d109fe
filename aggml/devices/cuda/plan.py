"""Plans of CUDA devices: a graph as a list of launches; addresses in scratch are relative to it.

Here: lowering node by node, the layout of scratch, which modules are needed. Not here: which
launches a node takes (kernels/), which launches repeat others (once.py), chains (fusion_chain.py),
running plans (native/cuda/plan.c), the scratch itself, which the native queue allocates when a plan
first needs it (native/cuda/flights.c).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.devices.cuda.fusion_norm import fuse_norm_with_quantize
from aggml.devices.cuda.fusion_rope import fuse_rope_with_rows
from aggml.devices.cuda.once import Lowered, Once, spans
from aggml.errors import Unsupported
from aggml.memory.buffer import align_up
from aggml.native import _native
from aggml.ops.table import CHECKS, IDLE
from aggml.plan import WHOLE, DevicePlan, Storages
from aggml.plan.fusion import find_chains

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.module import CudaTarget, Module
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.plan import FusionChain, Locate, PlanCall
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["CUDAPlan", "lowering"]

#: Each node is lowered twice, with scratch at these two addresses. Argument words that differ are
#: relative to scratch. Both addresses have the same alignment, so that a kernel that is chosen by
#: alignment is the same in both.
_BASES: Final = (1 << 45, 1 << 46)
_FAULT: Final = 32  # bytes in which a node may report a fault, see launch.py


class CUDAPlan(DevicePlan):
    """A graph compiled for a CUDA device, for `Stream.run_plan`.

    Attributes:
        native: the launches, as the native runtime takes them.
        modules: the modules that have to be compiled before the first run.
        launches: how many.
        scratch: bytes of the queue's scratch that a run needs; ``arena_size``, the bytes that a
            caller must pass, is 0.
    """

    __slots__ = ("launches", "modules", "native", "scratch")

    def __init__(
        self,
        graph: Graph,
        native: _native.Plan,
        storages: Storages,
        modules: tuple[Module, ...],
        launches: int,
        scratch: int,
    ) -> None:
        self.native: _native.Plan = native
        self.scratch: int = scratch
        self.modules: tuple[Module, ...] = modules
        self.launches: int = launches
        super().__init__(graph, storages=storages)

    @property
    def calls(self) -> dict[int, PlanCall]:
        """Empty: no kernel of the device calls Python."""
        return {}

    def __repr__(self) -> str:
        return (
            f"<CUDAPlan of graph {self.uid}, {self.launches} launches, "
            f"{self.scratch} bytes of scratch>"
        )


class _Lowered:
    """A node's launches, and which of their addresses are relative to scratch.

    Args:
        device: the device whose kernels are used.
        node: a node that the device supports.
        chain: the chain whose last node it is, if it is computed together with others.
        locate: tells where a tensor that is no view lies.
        scratch: offset of the node's own part of scratch.
        fault: offset in scratch of the node's fault words.

    Attributes:
        launches: (launch, argument bytes, positions in them of addresses relative to scratch).
        faults: whether a kernel was given the address of ``fault``.
    """

    def __init__(
        self,
        device: CudaTarget,
        node: Tensor,
        chain: FusionChain | None,
        locate: Locate,
        scratch: int,
        fault: int,
    ) -> None:
        def launches(base: int) -> list[Launch]:
            def address(tensor: Tensor) -> int:
                start, in_arena = locate(tensor.root)
                return start + tensor.view_offs + (base if in_arena else 0)

            if chain is not None:
                return device.kernels.together(chain, address, base + scratch, base + fault)
            return device.kernels.launches(node, address, base + scratch, base + fault)

        self.faults = False
        self.launches: list[tuple[Launch, bytes, list[int]]] = []
        first, second = (launches(base) for base in _BASES)
        for one, two in zip(first, second, strict=True):
            self.launches.append((one, *self._relative(one.args, two.args, fault)))

    def _relative(self, one: bytes, two: bytes, fault: int) -> tuple[bytes, list[int]]:
        """The argument bytes with addresses relative to scratch, and the positions of these."""
        words = len(one) // 8
        layout = f"<{words}Q"
        values = list(struct.unpack_from(layout, one))
        found = []
        for i, (a, b) in enumerate(zip(values, struct.unpack_from(layout, two), strict=True)):
            if a != b:
                assert b - a == _BASES[1] - _BASES[0], "an address that is not 8 bytes by itself"
                values[i] = a - _BASES[0]
                self.faults = self.faults or values[i] == fault
                found.append(8 * i)
        return struct.pack(layout, *values) + one[8 * words :], found


def lowering(device: CudaTarget, graph: Graph, memory: GraphBuffer) -> Sliced[CUDAPlan]:
    """Compile in one step per node, so that `prepare` can yield to the event loop in between.

    Scratch holds the nodes first, then the memory that the launches of one node share, then the
    words in which the blocks of one node count, then the fault words of the nodes that may fail.
    The words of both kinds are zeros when a run begins.

    Returns:
        The CUDAPlan, as the return value of a generator.

    Raises:
        Unsupported: no kernel runs a node with these types or strides.
        InvalidArgument: a node would write memory that is read-only.
    """
    kernels = device.kernels
    nodes = [node for node in graph.nodes if node.op not in IDLE and 0 not in node.ne]
    for node in nodes:
        if not kernels.supports(node):
            raise Unsupported(
                f"[compile_plan] {device.name} has no kernel for {node!r}: a Scheduler runs it "
                "on another device"
            )
        yield
    scratch = align_up(memory.scratch_size, 256)
    counters = scratch + align_up(max([kernels.scratch(node) for node in nodes], default=0), 256)
    words = {node: n for node in nodes if (n := kernels.counters(node))}
    fault = counters + align_up(4 * max(words.values(), default=0), 256)
    storages = Storages()
    told: list[tuple[str, str, int, list[int]]] = []  # one entry per node, for the native plan
    kept: list[list[Lowered]] = []  # the launches of each node
    fused = yield from find_chains(graph, spans(memory.locate), kernels.fits, kernels.find)
    once = Once(graph)
    for node in nodes:
        leaf = storages.visit(node)
        if node in fused.inner:
            continue
        chain = fused.chains.get(node)
        place = counters if node in words else fault
        lowered = _Lowered(device, node, chain, memory.locate, scratch, place)
        if node in words:
            lowered.faults = False
        lead = node if chain is None else chain.nodes[0]
        if lead.op not in CHECKS and node.op in CHECKS:
            lead = node  # rope with set_rows: the ids belong to set_rows
        known = once.fault(lead, lowered.launches)
        if known is not None:  # its ids were checked before: it does nothing if they were at fault
            lowered = _Lowered(device, node, chain, memory.locate, scratch, known)
            lowered.faults = False
        needed = once.select(lead, lowered.launches, fault, shares=kernels.scratch(lead) > 0)
        slots = [leaf] if 0 <= leaf < WHOLE else []
        told.append((node.name, node.op, fault if lowered.faults else -1, slots))
        kept.append(list(needed))
        fault += _FAULT if lowered.faults else 0
        yield
    fuse_norm_with_quantize(kept)
    fuse_rope_with_rows(kept)
    native = _native.CudaPlan(device.native, overlaps=kernels.overlaps)
    native.zeroes(counters, align_up(4 * max(words.values(), default=0), 256))
    modules: dict[str, Module] = {}
    for of_node, launches in zip(told, kept, strict=True):
        native.node(*of_node)
        _issue(device, native, modules, launches)
        yield
    plan = native.finish(fault)
    plan.seal(*storages.records())
    count = sum(map(len, kept))
    return CUDAPlan(graph, plan, storages, tuple(modules.values()), count, fault)


def _issue(
    device: CudaTarget,
    native: _native.CudaPlan,
    modules: dict[str, Module],
    launches: list[Lowered],
) -> None:
    """Hand the launches of a node to the native plan."""
    for launch, args, relative in launches:
        if launch.gemm:
            native.gemm(args, relative)
            continue
        module = modules.get(launch.module)
        if module is None:
            module = modules[launch.module] = device.module(launch.module)
        native.launch(
            module.native,
            launch.kernel,
            launch.grid,
            launch.block,
            launch.shared,
            args,
            relative,
            launch.when,
        )
