"""Write a GGUF file, open it, and compute with its weights in place in the mapped file.

`map` copies nothing: the CPU reads the mapped pages. A device with memory of its own needs `load`.
"""

import tempfile
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

import aggml
from aggml import Graph, ops


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        rng = np.random.default_rng(0)
        async with aggml.GGUFWriter(path) as writer:
            writer.add("general.architecture", "tiny")
            writer.add("tiny.block_count", 1)
            weight = rng.standard_normal((8, 256), np.float32)
            await writer.add_tensor_async("output.weight", weight, "q8_0")  # quantized here

        with await anyio.to_thread.run_sync(aggml.GGUFFile.open, path) as file:
            print(file.metadata["general.architecture"], list(file.tensors.values()))
            async with aggml.get_device("CPU").backend() as be:
                file.map(be.device)
                x = aggml.new_tensor("f32", ne=(256,), name="x")
                y = ops.mul_mat(file.tensors["output.weight"], x)
                graph = Graph(y)
                be.alloc_graph(graph)
                print((await be.run(graph, {x: np.ones(256, np.float32)}, y)).round(2))


if __name__ == "__main__":
    anyio.run(main)
