"""Compute in memory that another library owns: nothing is copied in either direction.

`from_dlpack` takes arrays of numpy, PyTorch, JAX and others. The tensor keeps the array alive.
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, ops


async def main() -> None:
    mine = aggml.empty((2, 1024), "f32")  # a numpy array, aligned as every device wants it
    mine[:] = np.arange(1024)
    x = aggml.from_dlpack(mine)
    print("same memory:", x.address == mine.ctypes.data)

    y = ops.scale_inplace(x, 0.5)  # writes into the memory of x, and so into `mine`
    graph = Graph(y)
    async with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        await be.graph_compute(graph)  # await it before you look at the memory
        print("numpy sees the result:", mine[0, :4])
        shown = np.from_dlpack(x)  # the other direction
        print("shared again:", np.shares_memory(shown, mine))


if __name__ == "__main__":
    anyio.run(main)
