"""Start many operations, then await them: all together, or each as it gets done.

A backend runs its operations in the order in which they were submitted. Nothing has to be awaited
in between: the Futures are collected, and the loop goes on meanwhile.
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, ops

SIZE = 256


async def main() -> None:
    w = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="w")
    x = aggml.new_tensor("f32", ne=(SIZE,), name="x")
    y = ops.mul_mat(w, x)
    graph = Graph(y)
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((8, SIZE), np.float32)
    async with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        be.set(w, np.eye(SIZE, dtype=np.float32) * 2)  # stays for all runs
        futures = [be.run(graph, {x: column}, y) for column in columns]
        results = await aggml.gather(*futures)
        print("all together:", np.allclose(np.concatenate(results), 2 * columns))

        done = 0
        async for future in aggml.as_completed(be.run(graph, {x: c}, y) for c in columns):
            done += future.result() is not None
        print("one by one:", done)


if __name__ == "__main__":
    anyio.run(main)
