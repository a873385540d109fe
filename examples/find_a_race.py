"""The race checker finds an event that was forgotten between two backends.

Two backends are two streams, and streams are unordered unless something orders them. Here one
backend writes a tensor and another one reads it. `check_races` reports that even if the read
happened to come after the write. It is for tests: it costs some microseconds for each operation.
"""

import anyio
import numpy as np

import aggml


async def main() -> None:
    device = aggml.get_device("CPU")
    async with device.backend() as writer, device.backend() as reader:
        t = aggml.new_tensor("f32", ne=(1024,), name="t")
        writer.alloc([t])
        ones = np.ones(1024, np.float32)
        try:
            with aggml.check_races():
                writer.set(t, ones)
                await reader.get(t)  # nothing orders it after the set
        except aggml.RaceError as error:
            print("without an event:", error)

        event = device.event()
        with aggml.check_races():
            writer.set(t, ones)
            writer.record(event)
            reader.wait(event)  # later work of this backend waits for the event
            print("with an event:", (await reader.get(t)).sum())


if __name__ == "__main__":
    anyio.run(main)
