"""Quantize a matrix, see what it costs in precision, and multiply by it.

`aggml.quantize` waits for the result. `aggml.quantize_async` gives a Future: the loop stays free.
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, ops

ROWS, WIDTH = 64, 512


async def main() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((ROWS, WIDTH), np.float32)
    x = rng.standard_normal(WIDTH, np.float32)
    async with aggml.get_device("CPU").backend() as be:
        for name in ("q8_0", "q6_K", "q4_K", "q4_0"):
            blocks = await aggml.quantize_async(weights, name)  # uint8: a row of bytes for each row
            back = aggml.dequantize(blocks, name)
            error = np.sqrt(np.mean((back - weights) ** 2))

            w = aggml.new_tensor(name, ne=(WIDTH, ROWS), name="w")
            column = aggml.new_tensor("f32", ne=(WIDTH,), name="column")
            y = ops.mul_mat(w, column)
            graph = Graph(y)
            be.alloc_graph(graph)
            product = await be.run(graph, {w: blocks, column: x}, y)
            exact = weights @ x
            off = np.linalg.norm(product - exact) / np.linalg.norm(exact)
            bits = 8 * blocks.nbytes / weights.size
            print(f"{name}: {bits:.2f} bits a weight, error {error:.4f}, product off by {off:.1%}")


if __name__ == "__main__":
    anyio.run(main)
