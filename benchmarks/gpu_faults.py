"""``python -m benchmarks.gpu_faults``: the errors of a GPU that runs out of memory, or fails.

It runs in a process of its own, because after such a failure no other work of the process survives.
Not here: each call of the driver failing once (tests/devices/cuda/device/test_faults.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from aggml.devices.cuda.lowering import CudaKernels
from aggml.errors import AllocFailed, DeviceError, InvalidState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml import Tensor
    from aggml.devices.cuda import CUDADevice
    from aggml.devices.cuda.launch import Address, Launch

__all__ = ["Wild", "check"]

#: The name of the node that fails.
WILD = "wild"


class Wild(CudaKernels):
    """The package's kernels, but those of one node write to an address without memory."""

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The usual launches; a node of that name gets a wrong address."""

        def where(tensor: Tensor) -> int:
            return 1 << 40 if tensor is node and node.name == WILD else address(tensor)

        return super().launches(node, where, scratch, fault)


async def check(device: CUDADevice) -> list[str]:
    """Fail in each way; returns a list of the things that went wrong.

    Args:
        device: a device for this alone, whose node of that name fails.
    """
    wrong: list[str] = []
    x = aggml.new_tensor("f32", ne=(64,), name="x")
    good = Graph(ops.add(x, x))
    bad = Graph(ops.add(x, x).set_name(WILD))
    be = device.backend()
    await be.alloc_async([x])
    await be.set(x, np.ones(64, np.float32))
    await be.prepare(good)
    await be.prepare(bad)
    _, total = device.memory()
    try:
        await be.alloc_async([aggml.new_tensor("i8", ne=(4 * total,), name="huge")])
        wrong.append("four times the memory of the device was given")
    except AllocFailed:
        pass
    if not (await be.run(good, None, good.ends[0]) == 2).all():
        wrong.append("after running out of memory a sum is wrong")
    with be.batch():  # in one batch: the context may be lost before another call
        before = be.run(good, None, good.ends[0])
        failing, after = be.graph_compute(bad), be.run(good, None, good.ends[0])
    try:
        if not (await before == 2).all():
            wrong.append("the sum before the failure is wrong")
    except DeviceError:
        pass  # this one was under way when the context was lost
    for name, future in (("the one that failed", failing), ("the one behind it", after)):
        try:
            await future
            wrong.append(f"{name} did not fail")
        except DeviceError as error:
            print(f"{name}: {error}")
    for name, call in (("run", lambda: be.graph_compute(good)), ("backend", device.backend)):
        try:
            call()
            wrong.append(f"{name} of a lost device was not refused")
        except (DeviceError, InvalidState):
            pass
    await be.aclose()
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 if all failures were as expected."""
    from aggml.devices.cuda import CUDADevice, driver

    ordinal = int((sys.argv[1:] if arguments is None else arguments)[0])
    driver.probe()
    wrong = anyio.run(check, CUDADevice(driver.facts(ordinal), Wild()))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
