"""The shortest program: describe a matrix product, run it on the CPU, await the result."""

import anyio
import numpy as np

import aggml

w = aggml.new_tensor("f32", ne=(3, 2))  # 2 rows of 3: ggml names the innermost extent first
x = aggml.new_tensor("f32", ne=(3,))
y = aggml.ops.mul_mat(w, x)  # described, not computed
graph = aggml.Graph(y)


async def main() -> None:
    async with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        print(await be.run(graph, {w: np.eye(2, 3, dtype="f"), x: np.ones(3, "f")}, y))  # [[1. 1.]]


anyio.run(main)  # or anyio.run(main, backend="trio")
