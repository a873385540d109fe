"""The backend: transfers, plans and computing in the order of a stream.

`aggml.Backend` checks arguments before it calls the hooks here; each hook returns a Future of the
stream. Not here: the kernels (kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import aggml

from .kernels import KERNELS, VIEWS, problem
from .memory import Array, seen

if TYPE_CHECKING:
    from collections.abc import Generator

    from .device import NumpyDevice

__all__ = ["NumpyBackend", "NumpyPlan"]

# An operand: the tensor, the block of bytes that holds it (None: the run's scratch), its offset.
Operand = tuple[aggml.Tensor, object, int]


class NumpyPlan(aggml.DevicePlan):
    """A compiled graph: a list of functions with their operands."""

    __slots__ = ("work",)

    def __init__(self, graph: aggml.Graph, arena_size: int) -> None:
        super().__init__(graph, arena_size=arena_size)
        self.work: list[tuple[aggml.Tensor, Operand, list[Operand]]] = []

    def run(self, scratch: object) -> None:
        """Compute all nodes in order; the stream calls this on its Python thread."""

        def array(operand: Operand) -> Array:
            tensor, block, offset = operand
            return seen(tensor, scratch if block is None else block, offset)

        for node, target, sources in self.work:
            array(target)[...] = KERNELS[node.op](node, [array(source) for source in sources])


class NumpyBackend(aggml.Backend):
    """Ordered work on the device."""

    def __init__(self, device: NumpyDevice, *, max_queued: int | None = None) -> None:
        super().__init__(device, aggml.Stream(device.name), max_queued=max_queued)

    # The process can address the memory, so the stream's own copies suffice. A device with other
    # memory calls its driver: from `Stream.call`, or from a native stream of its own.

    def _set(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self.stream.copy(tensor, array, operation="set")

    def _get(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self.stream.copy(array, tensor, operation="get")

    def _set_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=True, operation="set")

    def _get_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=False, operation="get")

    def _memset(
        self, tensor: aggml.Tensor, value: int, offset: int, size: int
    ) -> aggml.Future[None]:
        return self.stream.fill(tensor, value, offset, size)

    def _copy(self, src: aggml.Tensor, dst: aggml.Tensor) -> aggml.Future[None]:
        return self.stream.copy(dst, src)

    def _clear(self, buffer: aggml.Buffer, value: int) -> aggml.Future[None]:
        return self.stream.clear(buffer, value)

    def _compile(
        self, graph: aggml.Graph, memory: aggml.GraphBuffer
    ) -> Generator[None, None, NumpyPlan]:
        plan = NumpyPlan(graph, memory.scratch_size)

        def operand(tensor: aggml.Tensor) -> Operand:
            placement = tensor.root.placement
            if placement is not None:
                return tensor, placement.buffer.memory, placement.offset + tensor.view_offs
            offset, _ = memory.locate(tensor.root)
            return tensor, None, offset + tensor.view_offs

        for node in graph.nodes:
            reason = problem(node)
            if reason is not None:
                raise aggml.Unsupported(f"[{self.device.name}] {node!r}: {reason}")
            if node.op not in VIEWS:
                n = 1 if node.op == "cpy" else None  # the second source of cpy is only written
                sources = [operand(src) for src in node.src[:n] if src is not None]
                plan.work.append((node, operand(node), sources))
            yield
        return plan

    def _compute(self, plan: Any, arena: aggml.Buffer | None) -> aggml.Future[None]:  # noqa: ANN401
        scratch = None if arena is None else arena.memory
        done = self.stream.call(
            cast("NumpyPlan", plan).run,
            scratch,
            reads=plan.reads,
            writes=plan.writes,
            partial=plan.partial,
            operation="graph_compute",
        )
        return cast("aggml.Future[None]", done)
