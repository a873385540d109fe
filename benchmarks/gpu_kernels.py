"""Kernels of a GPU compared with its copy bandwidth and with PyTorch: mat-vec, GEMM, attention.

Not here: transfers, latency, plans (gpu.py).
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aggml import ops
from benchmarks.gpu_tools import DEPTHS, bandwidth, leaf, per_node
from benchmarks.peers import module
from benchmarks.timing import Row, absolute, median, versus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml import Device, Tensor

RESULTS: Final = Path(__file__).resolve().parent / "results"
MIB: Final = 1 << 20


async def kernels(device: Device, *, quick: bool, missing: list[str]) -> list[Row]:
    """Compare mat-vec with the copy bandwidth, bf16 GEMM and attention with PyTorch."""
    from aggml.devices.cuda import CUDADevice

    rows = []
    rounds = 2 if quick else 20
    k, m, copies = (256, 64, 2) if quick else (8192, 8192, 8)
    roof = await bandwidth(device, quick=quick)
    async with device.backend() as be:
        for dtype in ("q4_0", "q8_0", "q4_K", "bf16"):
            weights = [leaf(be, dtype, (k, m), f"w{i}") for i in range(copies)]
            x = leaf(be, "f32", (k, 1), "x")
            seconds = await per_node(be, partial(_products, weights, x), rounds)
            what = f"mat-vec {dtype} {m} x {k}"
            if math.isinf(seconds):
                missing.append(f"{what}: no kernel")
                continue
            speed = weights[0].nbytes / seconds / 1e9
            rows.append(versus("kernels", what, speed, "GB/s", "copy", roof, (">=", 0.8)))
        size = 128 if quick else 4096
        a, b = (leaf(be, "bf16", (size, size), name) for name in "ab")
        seconds = await per_node(be, partial(_products, [a], b), rounds)
        rows += _beside_torch(
            "GEMM bf16", 2 * size**3, seconds, partial(_torch_gemm, size), missing
        )
        wide = leaf(be, "f32", (size, size), "wide")  # as nodes make it; the kernel rounds it
        seconds = await per_node(be, partial(_products, [a], wide), rounds)
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

        def attention() -> list[Tensor]:
            return [ops.flash_attn_ext(q, k16, v16, None, scale=width**-0.5)]

        seconds = await per_node(be, attention, rounds)
        work = 4 * heads * tokens * tokens * width
        sdpa = partial(_torch_attention, heads, tokens, width)
        rows += _beside_torch("attention f16", work, seconds, sdpa, missing)
    return rows


def _products(weights: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    return [ops.mul_mat(w, x) for w in weights]


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
    """Seconds with PyTorch, by the difference of long and short submissions (`by_difference`)."""
    torch = module("torch")

    found: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for i in range(23):
        for depth in DEPTHS:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(depth):
                work()
            torch.cuda.synchronize()
            if i >= 3:
                found[depth].append(time.perf_counter() - start)
    short, long = (median(found[depth]) for depth in DEPTHS)
    return (long - short) / (DEPTHS[1] - DEPTHS[0])


def _torch_gemm(size: int) -> float:
    torch = module("torch")

    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in "ab")
    return _torch_seconds(lambda: a @ b)


def _torch_attention(heads: int, tokens: int, width: int) -> float:
    torch = module("torch")

    shape = (1, heads, tokens, width)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in "qkv")
    return _torch_seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
