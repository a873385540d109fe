"""Draw operations over time: ``python examples/timeline.py`` writes timeline.svg and .json.

The picture has a row for each stream. The JSON opens in a trace viewer, such as ui.perfetto.dev.
"""

from pathlib import Path

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

SIZE = 64


async def main(folder: Path = Path()) -> None:
    async with SimDevice("SIM", speed=5e7).backend() as be, SimDevice("OTHER").backend() as other:
        x = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="x")
        y = ops.mul_mat(x, x)
        graph = Graph(y)
        be.alloc_graph(graph)
        there = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="there")
        other.alloc([there])
        with aggml.trace() as trace:
            for _ in range(4):
                be.run(graph, {x: np.eye(SIZE, dtype=np.float32)}, y)
                await be.copy(y, there, to=other)
        for stream in trace.streams:
            print(stream, [event.operation for event in trace.events if event.stream == stream])
        trace.plot(folder / "timeline.svg", title="four products, copied to another device")
        trace.save(folder / "timeline.json")


if __name__ == "__main__":
    anyio.run(main)
