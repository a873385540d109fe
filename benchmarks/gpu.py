"""``python -m benchmarks.gpu``: transfers, overlap, latency, plans, kernels, decoding of one GPU.

Writes results/GPU.json. PyTorch is measured beside it where it is installed with CUDA. Without a
GPU it says what is missing. Not here: the CPU (__main__.py), the models (gpu_model.py), failing
(gpu_faults.py).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import re
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from aggml import Graph, ops
from benchmarks.gpu_model import decoding
from benchmarks.model_files import stored
from benchmarks.peers import module
from benchmarks.timing import Row, absolute, computed_in, machine, median, progress, table, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aggml import Backend, Device, Tensor

RESULTS: Final = Path(__file__).resolve().parent / "results"
MIB: Final = 1 << 20


class Missing(Exception):
    """There is nothing to measure on; the message says what is missing."""


def find_device(name: str | None) -> Device:
    """The GPU of that name, or the first.

    Raises:
        Missing: there is none.
    """
    from aggml.devices.cuda import driver

    try:
        driver.probe()
        return aggml.get_device(name) if name else aggml.get_device(type="gpu")
    except (driver.Missing, LookupError, aggml.errors.AggmlError) as error:
        raise Missing(str(error)) from error


async def timed(rounds: int, work: Callable[[], Awaitable[object]]) -> float:
    """Median seconds of ``work``, after two that do not count."""
    found = []
    for i in range(rounds + 2):
        start = time.perf_counter()
        await work()
        if i >= 2:
            found.append(time.perf_counter() - start)
    return median(found)


def leaf(be: Backend, dtype: str, ne: Sequence[int], name: str) -> Tensor:
    """A tensor in memory of the backend, of random numbers: a GPU is faster on zeros."""
    tensor = aggml.new_tensor(dtype, ne=tuple(ne), name=name)
    be.alloc([tensor])
    if dtype == "i8":
        be.memset(tensor, 0x5A)
        return tensor
    rows = math.prod(tensor.ne[1:])
    some = np.random.default_rng(len(name)).standard_normal((min(rows, 256), tensor.ne[0]))
    raw = np.ascontiguousarray(stored(some.astype(np.float32), dtype)).view(np.uint8)
    piece = raw.reshape(-1)
    for at in range(0, tensor.nbytes, piece.nbytes):
        n = min(piece.nbytes, tensor.nbytes - at)
        be.set(tensor, piece[:n], offset=at, size=n)
    return tensor


def plain_copies(n: int, rounds: int, ordinal: int) -> tuple[float, float]:
    """Seconds of a copy of ``n`` pinned bytes to a device and back, by the driver's calls alone."""
    driver: Any = importlib.import_module("cuda.bindings.driver")

    def checked(answer: tuple[Any, ...]) -> Any:
        if int(answer[0]) != 0:
            raise RuntimeError(f"the driver answers {answer[0]!r}")
        return answer[1] if len(answer) > 1 else None

    context = checked(driver.cuDevicePrimaryCtxRetain(ordinal))
    checked(driver.cuCtxSetCurrent(context))
    host = checked(driver.cuMemHostAlloc(n, 1))
    memory = checked(driver.cuMemAlloc(n))
    stream = checked(driver.cuStreamCreate(1))

    def both(up: bool) -> float:
        found = []
        for i in range(rounds + 2):
            start = time.perf_counter()
            if up:
                checked(driver.cuMemcpyHtoDAsync(memory, host, n, stream))
            else:
                checked(driver.cuMemcpyDtoHAsync(host, memory, n, stream))
            checked(driver.cuStreamSynchronize(stream))
            if i >= 2:
                found.append(time.perf_counter() - start)
        return median(found)

    try:
        return both(up=True), both(up=False)
    finally:
        checked(driver.cuStreamDestroy(stream))
        checked(driver.cuMemFree(memory))
        checked(driver.cuMemFreeHost(host))


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
        here, there = leaf(be, "i8", (n,), "here"), leaf(be, "i8", (n,), "there")
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
        within = 2 * n / await timed(rounds, lambda: be.copy(here, there)) / 1e9
        rows.append(absolute("transfers", "within the device, read and written", within, "GB/s"))
    keep.close()
    return rows


async def overlap(device: Device, *, quick: bool) -> list[Row]:
    """Upload, compute and download by three backends at once, against the longest of them alone."""
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
    """From submitting to the resumed task, of a graph of one tiny node."""
    async with device.backend() as be:
        x = leaf(be, "f32", (32,), "x")
        await be.prepare(graph := Graph(ops.add(x, x)))
        seconds = await timed(20 if quick else 1000, lambda: be.graph_compute(graph))
    return [absolute("latency", f"submit to resumed, {loop}", seconds * 1e6, "us", ("<=", 25))]


async def relaunch(device: Device, *, quick: bool) -> list[Row]:
    """A plan of 1,000 tiny nodes, once more: the call, and the whole of it."""
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


async def per_node(be: Backend, nodes: Sequence[Tensor], rounds: int) -> float:
    """Seconds of each of some nodes of one graph; inf where the device cannot run them."""
    graph = Graph(*nodes)
    if not all(be.device.supports_op(node) for node in graph.nodes):
        return math.inf
    await be.prepare(graph)
    found = []
    for i in range(rounds + 3):
        future = be.graph_compute(graph)
        await future
        if i >= 3:
            found.append(computed_in(future))
    assert graph.memory is not None
    graph.memory.close()
    return median(found) / len(nodes)


async def bandwidth(device: Device, *, quick: bool) -> float:
    """GB/s of a copy within the device, bytes read and written."""
    n = MIB if quick else 512 * MIB
    async with device.backend() as be:
        one, two = leaf(be, "i8", (n,), "one"), leaf(be, "i8", (n,), "two")
        return 2 * n / await timed(2 if quick else 20, lambda: be.copy(one, two)) / 1e9


async def decode(device: Device, *, quick: bool, missing: list[str]) -> list[Row]:
    """Llamas, see gpu_model.py."""
    roof = await bandwidth(device, quick=quick)
    return await decoding(device, roof, quick=quick, missing=missing)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def soak(device: Device, *, quick: bool) -> list[Row]:
    """Submissions one after the other, and what memory they leave behind."""
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
    """Out of memory, an illegal address and a lost device, in a process that they may end."""
    digits = re.search(r"\d+$", device.name)
    command = [sys.executable, "-m", "benchmarks.gpu_faults", digits[0] if digits else "0"]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing.append(f"faults: {done.stderr[-500:]}")
    return [absolute("faults", "as they should be", float(done.returncode == 0), "", (">=", 1))]


async def kernels(device: Device, *, quick: bool, missing: list[str]) -> list[Row]:
    """mat-vec against the copy bandwidth, bf16 GEMM and attention against PyTorch."""
    from aggml.devices.cuda import CUDADevice

    rows = []
    rounds = 2 if quick else 20
    k, m, copies = (256, 64, 2) if quick else (8192, 8192, 8)
    roof = await bandwidth(device, quick=quick)
    async with device.backend() as be:
        for dtype in ("q4_0", "q8_0", "q4_K", "bf16"):
            weights = [leaf(be, dtype, (k, m), f"w{i}") for i in range(copies)]
            x = leaf(be, "f32", (k, 1), "x")
            seconds = await per_node(be, [ops.mul_mat(w, x) for w in weights], rounds)
            what = f"mat-vec {dtype} {m} x {k}"
            if math.isinf(seconds):
                missing.append(f"{what}: no kernel")
                continue
            speed = weights[0].nbytes / seconds / 1e9
            rows.append(versus("kernels", what, speed, "GB/s", "copy", roof, (">=", 0.8)))
        size = 128 if quick else 4096
        a, b = (leaf(be, "bf16", (size, size), name) for name in "ab")
        seconds = await per_node(be, [ops.mul_mat(a, b)], rounds)
        rows += _beside_torch(
            "GEMM bf16", 2 * size**3, seconds, partial(_torch_gemm, size), missing
        )
        wide = leaf(be, "f32", (size, size), "wide")  # as nodes give it: rounded on the way in
        seconds = await per_node(be, [ops.mul_mat(a, wide)], rounds)
        what = "GEMM bf16 by f32"
        if math.isinf(seconds):
            missing.append(f"{what}: no kernel")
        else:
            rows.append(absolute("kernels", what, 2 * size**3 / seconds / 1e12, "TFLOP/s"))
        problem = device.native.blas_problem if isinstance(device, CUDADevice) else None
        if problem != "":
            missing.append(f"cuBLASLt: {problem or 'not installed (pip install aggml[cuda-blas])'}")
        heads, tokens, width = (2, 64, 64) if quick else (32, 4096, 128)
        q = leaf(be, "f32", (width, tokens, heads), "q")
        k16, v16 = (leaf(be, "f16", (width, tokens, heads), name) for name in ("k", "v"))
        node = ops.flash_attn_ext(q, k16, v16, None, scale=width**-0.5)
        seconds = await per_node(be, [node], rounds)
        work = 4 * heads * tokens * tokens * width
        sdpa = partial(_torch_attention, heads, tokens, width)
        rows += _beside_torch("attention f16", work, seconds, sdpa, missing)
    return rows


def _beside_torch(
    what: str, work: int, seconds: float, peer: Callable[[], float], missing: list[str]
) -> list[Row]:
    if math.isinf(seconds):
        missing.append(f"{what}: no kernel")
        return []
    speed = work / seconds / 1e12
    try:
        other = peer()
    except Exception as error:  # not installed, or without CUDA
        missing.append(f"PyTorch beside {what}: {error}")
        return [absolute("kernels", what, speed, "TFLOP/s")]
    limit = 0.95 if "GEMM" in what else 0.7
    return [
        versus("kernels", what, speed, "TFLOP/s", "PyTorch", work / other / 1e12, (">=", limit))
    ]


def _torch_seconds(work: Callable[[], object]) -> float:
    torch = module("torch")

    found = []
    for i in range(23):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if i >= 3:
            found.append(time.perf_counter() - start)
    return median(found)


def _torch_gemm(size: int) -> float:
    torch = module("torch")

    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in "ab")
    return _torch_seconds(lambda: a @ b)


def _torch_attention(heads: int, tokens: int, width: int) -> float:
    torch = module("torch")

    shape = (1, heads, tokens, width)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in "qkv")
    return _torch_seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))


# -- all of it


def measure(device: Device, *, quick: bool, missing: list[str]) -> list[Row]:
    """All parts, in turn."""
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
        rows += anyio.run(part, backend=loop)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 1 where there is nothing to measure on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", help="CUDA1; the first GPU if not given")
    parser.add_argument("--quick", action="store_true", help="small and few: does it run at all?")
    given = parser.parse_args(arguments)
    try:
        device = find_device(given.device)
    except Missing as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 1
    missing: list[str] = []
    rows = measure(device, quick=given.quick, missing=missing)
    rows += faults(device, missing)
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
