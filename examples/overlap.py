"""Overlap transfers with computing: three backends of one device, put in order by events.

While one chunk is computed, the next one is uploaded and the one before is downloaded.
overlapped_transfer.py measures and draws this; a scheduler does it by itself (schedule.py).
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

SIZE = 1 << 12


class Slot:
    """Input, graph and result of one chunk, and the events that say when each may be reused."""

    def __init__(self, compute: aggml.Backend) -> None:
        self.x = aggml.new_tensor("f32", ne=(SIZE,), name="x")
        self.y = ops.sqr(self.x)
        self.graph = Graph(self.y)
        self.memory = compute.alloc_graph(self.graph)
        self.filled, self.computed, self.fetched = (compute.device.event() for _ in range(3))


async def main() -> None:
    device = SimDevice("SIM", bandwidth=400 * 4 * SIZE, speed=400 * SIZE)  # 2.5 ms for each stage
    chunks = [np.full(SIZE, k, np.float32) for k in range(12)]
    results = []
    async with device.backend() as up, device.backend() as compute, device.backend() as down:
        ring = [Slot(compute) for _ in range(3)]  # one is filled, one computed, one fetched
        for k, chunk in enumerate(chunks):
            slot = ring[k % 3]
            up.wait(slot.computed)  # the chunk that was here before has been read
            up.set(slot.x, chunk)
            up.record(slot.filled)
            compute.wait(slot.filled)
            compute.wait(slot.fetched)  # the result that was here before has been fetched
            compute.graph_compute(slot.graph)
            compute.record(slot.computed)
            down.wait(slot.computed)
            results.append(down.get(slot.y))
            down.record(slot.fetched)
        squares = await aggml.gather(*results)
    print("right:", all((y == x * x).all() for x, y in zip(chunks, squares, strict=True)))


if __name__ == "__main__":
    anyio.run(main)
