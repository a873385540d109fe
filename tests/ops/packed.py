"""Products of weights in their own buffer, which the CPU may pack, and of weights read unpacked.

Here: placing them, running them, comparing. Not here: the tests (test_mul_mat_packed*.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import aggml
from aggml import BufferUsage, Graph, new_tensor, ops
from aggml.devices.cpu import CPUDevice
from aggml.native import cpu_mask
from aggml.plan import Plan

__all__ = [
    "BF16_FROM",
    "F32",
    "PACKS",
    "PACKS_BF16",
    "TILES",
    "TILES_OF_BF16",
    "TYPES",
    "K",
    "M",
    "Product",
    "as_they_lie",
    "device",
    "floats",
    "most_packed",
    "nmse",
    "plan_of",
    "quantized",
]

OF_16 = ("q2_K", "q3_K", "q6_K", "iq2_xs", "iq2_s", "iq1_m", "nvfp4")  # a scale for 16 elements
OF_32 = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "nvfp4")  # packed blocks
SCALED_BEFORE = ("q2_K", "q3_K", "iq1_s", "iq1_m")  # rows of panels have one scale for 256 elements
F32 = np.ndarray[Any, np.dtype[np.float32]]
TYPES = [
    *("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"),
    *("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs"),
    *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"),
    *("tq1_0", "tq2_0", "nvfp4"),
]
AVX2, DOTPROD = 1 << 0 | 1 << 1 | 1 << 2, 1 << 8 | 1 << 11
AMX_INT8 = 1 << 10
PACKS = any(cpu_mask(None) & isa == isa for isa in (AVX2, DOTPROD))
TILES = cpu_mask(None) & AMX_INT8 != 0
_AVX2 = cpu_mask(None) & 1 != 0
_WIDE = cpu_mask(None) & (1 << 3 | 1 << 4) == 1 << 3 | 1 << 4  # AVX-512 with VNNI
_ZEN4 = cpu_mask(None) & (1 << 4 | 1 << 15 | 1 << 16) == 1 << 4 | 1 << 15  # no Zen 5
AMX_BF16 = 1 << 3 | 1 << 5 | 1 << 9
TILES_OF_BF16 = cpu_mask(None) & AMX_BF16 == AMX_BF16
_PAIRS_ON_ZEN4 = 1 << 3 | 1 << 5 | 1 << 15
_PAIRS = cpu_mask(None) & _PAIRS_ON_ZEN4 == _PAIRS_ON_ZEN4
PACKS_BF16 = _PAIRS or (_AVX2 and cpu_mask(None) & 1 << 3 == 0)  # in lanes, not for tiles
BF16_FROM = 5 if _PAIRS else 3  # columns
K, M = 512, 37  # 37 rows: the last group of 16 rows has 5


def device() -> CPUDevice:
    found = aggml.get_device("CPU")
    assert isinstance(found, CPUDevice)
    return found


def floats(*shape: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def quantized(x: F32, dtype: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks of a type, also of one that is quantized only by the importance of its columns."""
    return aggml.quantize(x, dtype, imatrix=np.ones(x.shape[-1], np.float32))


def plan_of(backend: aggml.Backend, graph: Graph) -> Plan:
    """The plan of the last run of a graph."""
    found = backend.plans.find(graph)
    assert found is not None
    assert isinstance(found.plan, Plan)
    return found.plan


class Product:
    """``w @ x`` placed on a backend, the weights in a buffer of their own."""

    def __init__(
        self, backend: aggml.Backend, dtype: str, n: int, usage: BufferUsage, m: int = M, k: int = K
    ) -> None:
        self.backend = backend
        self.w = new_tensor(dtype, ne=(k, m), name="w")
        self.x = new_tensor("f32", ne=(k, n), name="x")
        self.buffer = backend.alloc([self.w])
        self.buffer.usage = usage
        self.again()

    def again(self) -> None:
        self.y = ops.mul_mat(self.w, self.x)
        self.graph = Graph(self.y)
        self.backend.alloc_graph(self.graph)

    async def run(self, x: F32) -> F32:
        return np.asarray(await self.backend.run(self.graph, {self.x: x}, self.y)).reshape(
            len(x), -1
        )

    @property
    def packed(self) -> int:
        """The number of nodes whose weights are packed, as of the last run."""
        return plan_of(self.backend, self.graph).native.n_packed


async def as_they_lie(backend: aggml.Backend, dtype: str, blocks: Any, x: F32, m: int = M) -> F32:
    """Compute column by column from unpacked weights: one column always uses the same kernels."""
    product = Product(backend, dtype, 1, BufferUsage.ANY, m, x.shape[1])
    await backend.set(product.w, blocks)
    columns = np.concatenate([await product.run(column[None]) for column in x])
    assert product.packed == 0
    return columns


def nmse(found: F32, expected: F32) -> float:
    return float(np.sum((found - expected) ** 2) / np.sum(expected**2))


def most_packed(dtype: str) -> int:
    """The most columns for which weights are packed, on processors that pack them."""
    if TILES:
        return 31
    if not _AVX2:
        return 16
    if dtype == "bf16":
        return 48
    if _ZEN4:
        return 8192 * 512 // K if dtype in OF_32 else 48 if dtype in SCALED_BEFORE else 96
    if dtype in OF_16:
        return 40 if _WIDE else 32
    return 80 if _WIDE else 48
