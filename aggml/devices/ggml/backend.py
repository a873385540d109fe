"""GgmlBackend: ordered work on one backend of ggml.

Here: how a graph is compiled. Not here: transfers (backend/direct.py), order, futures and failure
(stream/), the calls (native/ggml/queue.c), plans (plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.backend.direct import DirectBackend
from aggml.devices.ggml.plan import lowering
from aggml.stream import Stream

if TYPE_CHECKING:
    from aggml.devices.ggml.plan import GgmlPlan
    from aggml.devices.ggml.target import GgmlTarget
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.native import _native
    from aggml.stream.slices import Sliced

__all__ = ["GgmlBackend"]


class GgmlBackend(DirectBackend):
    """Ordered work on a device of ggml.

    Args:
        device: the device that does the work.
        native: the native stream.
        max_queued: see `Backend.ready`.
    """

    def __init__(
        self,
        device: Any,  # noqa: ANN401 - a GgmlDevice, which knows this class
        native: _native.Stream,
        max_queued: int | None,
    ) -> None:
        super().__init__(device, Stream(device.name, native=native), max_queued=max_queued)
        self._target: GgmlTarget = device

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[GgmlPlan]:
        return lowering(self._target, graph, memory)

    def _repeats(self) -> object:
        return True
