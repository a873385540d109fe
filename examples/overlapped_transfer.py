"""Upload, compute, download of many chunks on three backends of a device: serial, overlapped.

Here: rings of buffers, the events that order three streams, measuring. Not here: the short form of
this program (overlap.py), a scheduler, which does the same by itself (two_devices.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["Report", "measure"]

ELEMENTS: Final = 1 << 14  # elements of a chunk
RING: Final = 3  # slots: one is filled, one computed, one fetched


@dataclass
class Report:
    """The measured times, in seconds."""

    chunks: int
    stage: float  # upload, compute or download of all chunks, without overlap
    serial: float
    overlapped: float
    trace: aggml.Trace
    right: bool

    def __str__(self) -> str:
        return (
            f"{self.chunks} chunks: serial {self.serial * 1e3:.0f} ms, overlapped "
            f"{self.overlapped * 1e3:.0f} ms, {self.serial / self.overlapped:.2f} times as fast; "
            f"{self.overlapped / self.stage:.3f} of the longest stage, of which filling and "
            f"draining the pipeline alone make {1 + 2 / self.chunks:.3f}"
        )


class Slot:
    """A place of the ring: input, graph, result, and the events after which each may be reused."""

    def __init__(self, compute: aggml.Backend) -> None:
        self.x = new_tensor("f32", ne=ELEMENTS, name="x")
        self.y = ops.sqr(self.x).set_name("y")
        self.graph = Graph(self.y)
        self.memory = compute.alloc_graph(self.graph)
        self.filled, self.computed, self.fetched = (compute.device.event() for _ in range(3))


def device_of(stage_ms: float) -> SimDevice:
    """An accelerator on which each of the three stages of a chunk takes ``stage_ms``."""
    per_second = 1e3 / stage_ms
    return SimDevice("SIM", bandwidth=4 * ELEMENTS * per_second, speed=ELEMENTS * per_second)


async def serial(device: aggml.Device, chunks: Sequence[F32]) -> tuple[float, list[F32]]:
    """One backend: each chunk is done before the next begins. Returns seconds and results."""
    async with device.backend() as be:
        slot = Slot(be)
        await be.prepare(slot.graph)
        begin = time.perf_counter()
        results = [await be.run(slot.graph, {slot.x: chunk}, slot.y) for chunk in chunks]
        return time.perf_counter() - begin, results


async def overlapped(device: aggml.Device, chunks: Sequence[F32]) -> tuple[float, list[F32]]:
    """Three backends: a chunk is computed while the next comes in and the one before goes out."""
    async with device.backend() as up, device.backend() as compute, device.backend() as down:
        ring = [Slot(compute) for _ in range(RING)]
        for slot in ring:
            await compute.prepare(slot.graph)
        results = []
        begin = time.perf_counter()
        for k, chunk in enumerate(chunks):
            slot = ring[k % RING]
            up.wait(slot.computed)  # the chunk that was here before has been read
            up.set(slot.x, chunk)
            up.record(slot.filled)
            compute.wait(slot.filled)
            compute.wait(slot.fetched)
            compute.graph_compute(slot.graph)
            compute.record(slot.computed)
            down.wait(slot.computed)
            results.append(down.get(slot.y))
            down.record(slot.fetched)
        arrays = await aggml.gather(*results)
        return time.perf_counter() - begin, arrays


async def measure(n: int, stage_ms: float) -> Report:
    """Measure both ways over the same chunks."""
    rng = np.random.default_rng(0)
    chunks = [rng.standard_normal(ELEMENTS, np.float32) for _ in range(n)]
    device = device_of(stage_ms)
    alone, one = await serial(device, chunks)
    with aggml.trace() as trace:
        together, other = await overlapped(device, chunks)
    right = all(
        np.array_equal(a, c * c) and np.array_equal(b, c * c)
        for a, b, c in zip(one, other, chunks, strict=True)
    )
    return Report(n, n * stage_ms / 1e3, alone, together, trace, right)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=120)
    parser.add_argument(
        "--stage-ms", type=float, default=4.0, help="milliseconds of each stage of a chunk"
    )
    parser.add_argument(
        "--picture", default="timeline.svg", help="an .svg file to draw; '' for none"
    )
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    args = parser.parse_args()
    seconds = 4 * args.chunks * args.stage_ms / 1e3
    print(f"{args.chunks} chunks, serial and overlapped: about {seconds:.1f} s", file=sys.stderr)
    report = anyio.run(measure, args.chunks, args.stage_ms, backend=args.loop)
    print(report)
    if args.picture:
        report.trace.plot(args.picture, title="upload, compute, download")
        print(f"timeline: {args.picture}")
    if not report.right:
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
