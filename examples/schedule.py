"""One graph on two devices: the scheduler splits it, copies between them, and overlaps runs.

Both devices are simulated, so this runs anywhere. two_devices.py does the same with a transformer,
measures it and draws it.
"""

import anyio
import numpy as np

import aggml
from aggml import Graph, Scheduler, ops
from aggml.devices.sim import SimDevice

SIZE = 32


async def main() -> None:
    first = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="first")
    second = aggml.new_tensor("f32", ne=(SIZE, SIZE), name="second")
    x = aggml.new_tensor("f32", ne=(SIZE,), name="x").set_input()
    y = ops.mul_mat(second, ops.relu(ops.mul_mat(first, x)))
    graph = Graph(y)
    eye = np.eye(SIZE, dtype=np.float32)
    a, b = SimDevice("A").backend(), SimDevice("B").backend()
    cpu = aggml.get_device("CPU").backend()  # the last one must be a CPU
    async with a, b, cpu, Scheduler([a, b, cpu], parallel=True) as scheduler:
        for weight, home in ((first, a), (second, b)):  # nodes are computed where their weights are
            home.alloc([weight], usage="weights")
            await home.set(weight, eye)
        print(scheduler.plan(graph))
        inputs = [np.full(SIZE, k - 2, np.float32) for k in range(4)]
        futures = [scheduler.run(graph, {x: array}, y) for array in inputs]
        for future in futures:  # all four are under way
            print((await future)[0, 0])


if __name__ == "__main__":
    anyio.run(main)
