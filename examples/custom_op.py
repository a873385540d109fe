"""A function in Python as a node of a graph.

A thread of the stream calls the function, never a worker or the event loop. The function gets
tensors as numpy arrays over their memory.
"""

from typing import Any

import anyio
import numpy as np

import aggml
from aggml import Graph, ops


def sort_rows(dst: np.ndarray, a: np.ndarray, ith: int, nth: int, userdata: Any) -> None:  # noqa: ANN401
    """Sort the rows of ``a``; task ``ith`` of ``nth`` takes every nth row."""
    dst[ith::nth] = np.sort(a[ith::nth], axis=-1)


async def main() -> None:
    x = aggml.new_tensor("f32", ne=(4, 3), name="x")
    y = ops.scale(ops.map_custom1(x, sort_rows, n_tasks=1), 10.0)
    graph = Graph(y)
    async with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        rows = np.array([[4, 3, 2, 1], [0, 0, 1, 0], [2, 9, 1, 5]], np.float32)
        print(await be.run(graph, {x: rows}, y))


if __name__ == "__main__":
    anyio.run(main)
