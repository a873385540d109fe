"""Cancelling an await aborts the work that nobody else waits for.

When the last await of a `run` is cancelled, the computation is aborted. So a client that has hung
up uses no cores.
The backend and the graph stay usable, and the next run is healthy.
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

SIZE = 64


async def main() -> None:
    x = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="x")
    y = x
    for _ in range(8):
        y = ops.mul_mat(x, y)
    graph = Graph(y)
    slow = SimDevice("SLOW", speed=8 * SIZE**3)  # an accelerator that takes seconds for this graph
    async with slow.backend() as be:
        be.alloc_graph(graph)
        ones = np.eye(SIZE, dtype=np.float32)
        future = be.run(graph, {x: ones}, y)
        with anyio.move_on_after(0.05) as scope:
            await future
        print("cancelled:", scope.cancelled_caught)
        await be.synchronize()  # returns at once: aborted work is not completed
        print("the Future raises:", type(future.exception()).__name__)

        other = aggml.new_tensor("f32", ne=(4,), name="other")
        be.alloc([other])
        await be.set(other, np.arange(4, dtype=np.float32))
        print("still usable:", await be.get(other))


if __name__ == "__main__":
    anyio.run(main)
