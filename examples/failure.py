"""An operation fails: which later operations fail with it, and which do not.

Wrong arguments raise at the call. An operation that fails later fails its Future, and so do all
operations that would read the tensors it should have written. Nothing else fails, and a new write
makes the tensor valid again.
"""

import anyio
import numpy as np

import aggml
from aggml.devices.sim import SimDevice


async def main() -> None:
    device = SimDevice("FRAIL")
    async with device.backend() as be:
        a, b = (aggml.new_tensor("f32", ne=(4,), name=name) for name in "ab")
        be.alloc([a, b])
        try:
            be.set(a, np.zeros(5, np.float32))
        except aggml.LayoutMismatch as error:
            print("refused:", error)

        device.fail_at(0)  # the next operation fails, as on a broken device
        be.set(a, np.ones(4, np.float32))
        try:
            await be.get(a)  # would read the tensor that `set` failed to write
        except aggml.AggmlError as error:
            print("failed:", type(error).__name__, "because of", repr(error.__cause__))
        await be.set(b, np.ones(4, np.float32))
        print("b is untouched by that:", await be.get(b))
        await be.set(a, np.ones(4, np.float32))
        print("a is cured by a write:", await be.get(a))


if __name__ == "__main__":
    anyio.run(main)
