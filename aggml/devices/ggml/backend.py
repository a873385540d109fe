"""GgmlBackend: ordered work on one backend of ggml.

Here: what the hooks enqueue. Not here: order, futures and failure (stream/), the calls
(native/ggml/queue.c), plans (plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.backend import Backend
from aggml.devices.ggml.plan import lowering
from aggml.stream import Stream

if TYPE_CHECKING:
    from aggml.devices.ggml.plan import GgmlPlan, Target
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.native import _native
    from aggml.stream.future import Future
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["GgmlBackend"]

Array = np.ndarray[Any, Any]


class GgmlBackend(Backend):
    """Ordered work on a device of ggml.

    Args:
        device: whose work.
        native: the stream.
        max_queued: see `Backend.ready`.
    """

    def __init__(
        self,
        device: Any,  # noqa: ANN401 - a GgmlDevice, which knows this class
        native: _native.Stream,
        max_queued: int | None,
    ) -> None:
        super().__init__(device, Stream(device.name, native=native), max_queued=max_queued)
        self._target: Target = device

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(tensor, array, operation="set")

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(array, tensor, operation="get")

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=True, operation="set")

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=False, operation="get")

    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        return self.stream.fill(tensor, value, offset, size)

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        return self.stream.copy(dst, src)

    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        return self.stream.clear(buffer, value)

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Steps[GgmlPlan]:
        return lowering(self._target, graph, memory)

    def _compute(self, plan: GgmlPlan, arena: Buffer | None) -> Future[None]:
        return self.stream.run_plan(plan, arena)

    def _direct(self, plan: GgmlPlan) -> bool:
        return True

    def _repeats(self) -> object:
        return True
