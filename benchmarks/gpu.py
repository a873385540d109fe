"""``python -m benchmarks.gpu``: transfers, overlap, latency, plans, kernels, decoding of one GPU.

Writes results/GPU.json. PyTorch is measured, too, if it is installed with CUDA. Without a GPU the
program says what is missing. Not here: the CPU (__main__.py), kernels (gpu_kernels.py), the models
(gpu_model.py), failures (gpu_faults.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import resource
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from benchmarks.gpu_kernels import kernels
from benchmarks.gpu_model import decoding
from benchmarks.gpu_tools import MIB, bandwidth, leaf, plain_copies, timed
from benchmarks.timing import Row, absolute, machine, median, progress, table, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aggml import Device

RESULTS: Final = Path(__file__).resolve().parent / "results"


class Missing(Exception):
    """There is no GPU to measure; the message says what is missing."""


def find_device(name: str | None) -> Device:
    """The GPU of that name, or the first GPU.

    Raises:
        Missing: there is no such GPU.
    """
    from aggml.devices.cuda import driver

    try:
        driver.probe()
        return aggml.get_device(name) if name else aggml.get_device(type="gpu")
    except (driver.Missing, LookupError, aggml.errors.AggmlError) as error:
        raise Missing(str(error)) from error


# -- parts


async def transfers(device: Device, *, quick: bool) -> list[Row]:
    """GB/s from and to pinned and pageable memory, and within the device."""
    n, rounds = (4 * MIB, 3) if quick else (256 * MIB, 10)
    rows = []
    kind = device.host_buffer_type
    assert kind is not None
    digits = re.search(r"\d+$", device.name)
    up, down = plain_copies(n, rounds, int(digits[0]) if digits else 0)
    plain = {"pinned to device": up, "device to pinned": down}
    pinned = aggml.new_tensor("i8", ne=(n,), name="pinned")
    keep = kind.alloc_tensors([pinned])
    cpu = aggml.get_device("CPU").backend()
    async with device.backend() as be, cpu:
        here = leaf(be, "i8", (n,), "here")
        array = np.ones(n, np.int8)
        for what, work in (
            ("pinned to device", lambda: cpu.copy(pinned, here, to=be)),
            ("device to pinned", lambda: be.copy(here, pinned, to=cpu)),
            ("pageable to device", lambda: be.set(here, array)),
            ("device to pageable", lambda: be.get(here, array)),
        ):
            speed = n / await timed(rounds, work) / 1e9
            if what in plain:
                other = n / plain[what] / 1e9
                row = versus("transfers", what, speed, "GB/s", "plain copy", other, (">=", 0.9))
            else:
                row = absolute("transfers", what, speed, "GB/s")
            rows.append(row)
    keep.close()
    within = await bandwidth(device, quick=quick)
    rows.append(absolute("transfers", "within the device, read and written", within, "GB/s"))
    return rows


async def overlap(device: Device, *, quick: bool) -> list[Row]:
    """Upload, compute and download on three backends at once, compared with the longest alone."""
    n, rounds, depth = (MIB, 3, 4) if quick else (64 * MIB, 5, 32)
    kind = device.host_buffer_type
    assert kind is not None
    up, down = (aggml.new_tensor("f32", ne=(n // 4,), name=name) for name in ("up", "down"))
    keep = kind.alloc_tensors([up, down])
    cpu = [aggml.get_device("CPU").backend() for _ in range(2)]
    sender, worker, receiver = (device.backend() for _ in range(3))
    a, b = leaf(sender, "f32", (n // 4,), "a"), leaf(receiver, "f32", (n // 4,), "b")
    c = leaf(worker, "f32", (n // 4,), "c")
    y = c
    for _ in range(depth):
        y = ops.add(y, c)
    await worker.prepare(graph := Graph(y))
    stages: list[Callable[[], Any]] = [
        lambda: cpu[0].copy(up, a, to=sender),
        lambda: worker.graph_compute(graph),
        lambda: receiver.copy(b, down, to=cpu[1]),
    ]

    async def together() -> None:
        await aggml.gather(*[stage() for stage in stages])

    alone = [await timed(rounds, stage) for stage in stages]
    at_once = await timed(rounds, together)
    for backend in (*cpu, sender, worker, receiver):
        await backend.aclose()
    keep.close()
    row = versus(
        "overlap", "upload, compute, download", at_once * 1e3, "ms",
        "the longest stage", max(alone) * 1e3, ("<=", 1.05),
    )  # fmt: skip
    return [row]


async def latency(device: Device, loop: str, *, quick: bool) -> list[Row]:
    """The time from submitting a graph of one tiny node to the resumed task."""
    async with device.backend() as be:
        x = leaf(be, "f32", (32,), "x")
        await be.prepare(graph := Graph(ops.add(x, x)))
        seconds = await timed(20 if quick else 1000, lambda: be.graph_compute(graph))
    return [absolute("latency", f"submit to resumed, {loop}", seconds * 1e6, "us", ("<=", 25))]


async def relaunch(device: Device, *, quick: bool) -> list[Row]:
    """Running a plan of 1,000 tiny nodes again: the time of the call, and until the end."""
    async with device.backend() as be:
        x = leaf(be, "f32", (32,), "x")
        y = x
        for _ in range(50 if quick else 1000):
            y = ops.add(y, x)
        await be.prepare(graph := Graph(y))
        calls = []
        for _ in range(10 if quick else 200):
            start = time.perf_counter()
            future = be.graph_compute(graph)
            calls.append(time.perf_counter() - start)
            await future
        whole = await timed(5 if quick else 50, lambda: be.graph_compute(graph))
    return [
        absolute("relaunch", "1,000 nodes, the call", median(calls) * 1e6, "us", ("<=", 30)),
        absolute("relaunch", "1,000 nodes, all of it", whole * 1e6, "us"),
    ]


async def decode(device: Device, *, quick: bool, missing: list[str]) -> list[Row]:
    """Tokens per second of llamas, see gpu_model.py."""
    roof = await bandwidth(device, quick=quick)
    return await decoding(device, roof, quick=quick, missing=missing)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def soak(device: Device, *, quick: bool) -> list[Row]:
    """Many submissions one after the other, and the memory that is not freed afterwards."""
    n = 400 if quick else 100_000
    async with device.backend() as be:
        x = aggml.new_tensor("f32", ne=(64,), name="x")
        await be.prepare(graph := Graph(ops.add(x, x)))
        given = np.ones(64, np.float32)
        before = 0
        start = time.perf_counter()
        for i in range(0, n, 8):
            futures = [be.run(graph, {x: given}, graph.ends[0]) for _ in range(8)]
            for future in futures:
                await future
            if i <= n // 10 < i + 8:
                gc.collect()
                before = resident()
        seconds = time.perf_counter() - start
        gc.collect()
        grown = max(resident() - before, 1) / MIB
    return [
        absolute("soak", f"{n} submissions, memory grown since a tenth", grown, "MiB", ("<=", 8)),
        absolute("soak", "submissions, 8 in flight", n / seconds, "1/s"),
    ]


def faults(device: Device, missing: list[str]) -> list[Row]:
    """Out of memory, an illegal address and a lost device, in a process that may crash."""
    digits = re.search(r"\d+$", device.name)
    command = [sys.executable, "-m", "benchmarks.gpu_faults", digits[0] if digits else "0"]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing.append(f"faults: {done.stderr[-500:]}")
    return [absolute("faults", "as they should be", float(done.returncode == 0), "", (">=", 1))]


# -- all of it


def measure(
    device: Device, *, quick: bool, missing: list[str], found: Callable[[Row], object] = id
) -> list[Row]:
    """Measure all parts in turn. A part that fails is reported, and the next one begins.

    Args:
        device: a GPU.
        quick: small sizes, whose speeds mean nothing.
        missing: gets a line for each figure that could not be measured.
        found: called with each row as soon as its part is done.
    """
    rows: list[Row] = []
    parts: list[tuple[str, str, Callable[[], Awaitable[list[Row]]]]] = [
        ("transfers", "asyncio", partial(transfers, device, quick=quick)),
        ("overlap", "asyncio", partial(overlap, device, quick=quick)),
        ("latency", "asyncio", partial(latency, device, "asyncio", quick=quick)),
        ("latency", "trio", partial(latency, device, "trio", quick=quick)),
        ("relaunch", "asyncio", partial(relaunch, device, quick=quick)),
        ("kernels", "asyncio", partial(kernels, device, quick=quick, missing=missing)),
        ("decode", "asyncio", partial(decode, device, quick=quick, missing=missing)),
        ("soak", "asyncio", partial(soak, device, quick=quick)),
    ]
    for name, loop, part in parts:
        progress(name)
        try:
            of_part = anyio.run(part, backend=loop)
        except Exception as error:  # any error: the machine may be unlike all known ones
            traceback.print_exc()
            missing.append(f"{name}, {loop}: {type(error).__name__}: {error}")
            continue
        for row in of_part:
            found(row)
        rows += of_part
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; returns 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", help="the device, such as CUDA1 (default: the first GPU)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few repetitions: does it run at all?"
    )
    parser.add_argument("--figures", type=Path, help="gets a line for each figure as it is found")
    given = parser.parse_args(arguments)

    def found(row: Row) -> None:
        print(table([row]).splitlines()[-1], flush=True)
        if given.figures is not None:
            with given.figures.open("a") as file:
                file.write(json.dumps(row.as_json() | {"quick": given.quick}) + "\n")

    try:
        device = find_device(given.device)
    except Missing as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 1
    missing: list[str] = []
    rows = measure(device, quick=given.quick, missing=missing, found=found)
    rows += faults(device, missing)
    found(rows[-1])
    print(table(rows))
    for line in missing:
        print(f"not measured: {line}")
    if not given.quick:
        name = re.sub(r"[^a-z0-9]+", "-", device.description.lower()).strip("-")
        told = {
            "gpu": device.description,
            "machine": machine(("aggml", "cuda-bindings", "cuda-core", "torch")),
            "missing": missing,
        }
        path = RESULTS / f"{name}.json"
        path.write_text(
            json.dumps(told | {"rows": [row.as_json() for row in rows]}, indent=1) + "\n"
        )
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
