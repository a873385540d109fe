"""Products of 9 to 64 columns: tiles of each width, depth split over blocks; compared with the CPU.

Here: which products are split, their scratch, their numbers. Not here: recorded cases
(test_kernels.py), products of fewer columns (test_large.py).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import nmse
from devices.cuda.host import USUAL
from devices.cuda.host import compute as on_shim
from devices.cuda.small_graphs import drawn
from ops.computing import run as on_cpu

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.cuda.kernels.ring import ring
from aggml.devices.cuda.launch import Gpu
from aggml.devices.cuda.lowering import CudaKernels
from aggml.dtype import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from aggml import Tensor

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
    pytest.mark.slow,
]

_PLAIN = ("f32", "f16", "bf16")
_KERNELS = CudaKernels()


def _multiplied() -> list[str]:
    found = []
    for dtype in TYPES:
        a, b = new_tensor(dtype, ne=(256, 3)), new_tensor("f32", ne=(256, 9))
        try:
            node = ops.mul_mat(a, b)
        except aggml.AggmlError:
            continue
        if _KERNELS.supports(node):
            found.append(dtype.name)
    return found


_ALL = _multiplied()
_USUAL = {name.lower() for name in USUAL}


def _swept(kinds: Iterable[str]) -> list[Any]:
    return [k if k.lower() in _USUAL else pytest.param(k, marks=pytest.mark.slow) for k in kinds]


@pytest.fixture(scope="module")
def cpu() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend() as backend:
        yield backend


def _parts(node: Tensor) -> int:
    """How many blocks share the depth of a product, read from its launches."""
    launches = _KERNELS.launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)
    tiles = next(each for each in launches if each.kernel.startswith("tiles_"))
    batches = node.ne[2] * node.ne[3]
    assert tiles.grid[2] % batches == 0
    parts = tiles.grid[2] // batches
    assert (launches[-1].kernel == "add_parts") == (parts > 1)
    return parts


def _same(
    cpu: aggml.Backend,
    node: Tensor,
    values: dict[Tensor, NDArray[Any]],
    order: int,
    kernels: CudaKernels | None = None,
) -> NDArray[Any]:
    (result,), fault = on_shim(Graph(node), values, [node], order, kernels)
    assert fault[0] == 0
    expected = on_cpu(cpu, node, values)
    bound = 1e-5 if node.src[0] is not None and not node.src[0].dtype.is_quantized else 1e-4
    assert np.isfinite(result).all()
    assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= bound
    return result


@pytest.mark.parametrize("columns", [9, 17, 33])
@pytest.mark.parametrize("kind", _swept(_ALL))
def test_every_type_in_every_width(cpu: aggml.Backend, kind: str, columns: int) -> None:
    """Two tiles of rows, of which the second is incomplete. Long rows are split."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 2048, 66, seed=1, values=values)
    b = drawn("f32", 2048, columns, seed=2, values=values)
    node = ops.mul_mat(a, b)
    row = a.dtype.row_size(2048)
    assert (_parts(node) > 1) == (row // (16 * columns) > 1)
    _same(cpu, node, values, order=3)


@pytest.mark.parametrize("columns", [2, 9, 16, 17, 31, 33, 64])
@pytest.mark.parametrize("depth", [32, 96, 256, 4096 + 32])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q4_0", "q8_0", "q5_1"])
def test_shapes(cpu: aggml.Backend, kind: str, depth: int, columns: int) -> None:
    """4096 + 32: parts of different lengths, and a last step that is only half full."""
    values: dict[Tensor, NDArray[Any]] = {}
    rows = {2: 33, 9: 33, 16: 1, 31: 1}.get(columns, 5)
    a = drawn(kind, depth, rows, seed=1, values=values)
    b = drawn("f32", depth, columns, seed=2, values=values)
    node = ops.mul_mat(a, b)
    if columns > 8:
        assert (_parts(node) > 1) == (depth > 4096 and a.dtype.row_size(depth) >= 32 * columns)
    _same(cpu, node, values, order=4)


@pytest.mark.parametrize("shared", [64, 99, 227])
@pytest.mark.parametrize("columns", [16, 23])
@pytest.mark.parametrize("kind", _swept(k for k in _ALL if k.lower() != "f32"))
def test_rings_of_every_depth(cpu: aggml.Backend, kind: str, columns: int, shared: int) -> None:
    """Rings of two to four stages, as each GPU's shared memory allows, each filled repeatedly."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 2304, 33, seed=1, values=values)
    if not a.dtype.is_quantized:
        columns += 20
    b = drawn("f32", 2304, columns, seed=2, values=values)
    kernels = CudaKernels(gpu=Gpu(4, shared * 1024))
    node = ops.mul_mat(a, b)
    launches = kernels.launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)
    (tiles,) = [each for each in launches if each.kernel.startswith("tiles_")]
    too_large = (a.dtype.name, columns, shared) == ("Q6_K", 23, 64)
    assert ("_ring" in tiles.module) != too_large
    assert tiles.shared <= shared * 1024
    _same(cpu, node, values, order=6, kernels=kernels)


def test_rings_have_under_way_what_memory_needs() -> None:
    """On an H100 23 KB a multiprocessor, by three blocks; 10 KB for types of 1 and 2 bits."""
    for dtype in TYPES:
        if dtype.name not in _ALL or dtype.name == "F32":
            continue
        for wide in (16, 32) if dtype.is_quantized else (16, 32, 64):
            found = ring(dtype, wide, Gpu(132, 227 * 1024))
            assert found is not None
            assert 3 * (found.shared + 1024) <= 228 * 1024
            stage = 64 * dtype.row_size(256) * found.step // 8
            least = 23_000 if dtype.row_size(256) > 72 else 10_000
            assert 3 * (found.stages - 1) * stage >= least, (dtype.name, wide, found)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q4_0", "q6_K"])
def test_many_rows(cpu: aggml.Backend, kind: str) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 1024, 1000, seed=1, values=values)
    b = drawn("f32", 1024, 9, seed=2, values=values)
    node = ops.mul_mat(a, b)
    assert _parts(node) > 1
    _same(cpu, node, values, order=2)


@pytest.mark.parametrize("depth", [513, 1001])
@pytest.mark.parametrize("kind", _PLAIN)
def test_odd_depths(cpu: aggml.Backend, kind: str, depth: int) -> None:
    """Rows at odd addresses, a depth that is no multiple of 32, b of the same type as a."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, depth, 33, seed=1, values=values)
    b = drawn(kind, depth, 10, seed=2, values=values)
    node = ops.mul_mat(a, b)
    assert _parts(node) > 1
    _same(cpu, node, values, order=5)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4_K", "q8_0"])
def test_batches_that_repeat_a(cpu: aggml.Backend, kind: str) -> None:
    """Two matrices for 4 x 3 batches; any order of blocks and threads gives the same bits."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 1024, 33, 2, seed=1, values=values)
    b = drawn("f32", 1024, 9, 4, 3, seed=2, values=values)
    node = ops.mul_mat(a, b)
    assert _parts(node) > 1
    results = [_same(cpu, node, values, order) for order in (0, 1, 7)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("kind", ["f16", "q4_0", "q4_K"])
def test_experts_in_tiles(cpu: aggml.Backend, kind: str) -> None:
    """Tiles of experts are 64 wide and their depth is never split."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 1024, 33, 3, seed=1, values=values)
    b = drawn("f32", 1024, 2, 17, seed=2, values=values)
    ids = new_tensor("i32", ne=(2, 17))
    values[ids] = np.random.default_rng(3).integers(0, 3, (17, 2)).astype(np.int32)
    _same(cpu, ops.mul_mat_id(a, b, ids), values, order=3)


def test_what_is_never_split() -> None:
    """Enough tiles for all multiprocessors; too many columns for extra sums; no rows."""
    x = new_tensor("f16", ne=(4096, 64 * 132))
    assert _parts(ops.mul_mat(x, new_tensor("f32", ne=(4096, 9)))) == 1
    narrow = new_tensor("q4_0", ne=(1024, 64))
    assert _parts(ops.mul_mat(narrow, new_tensor("f32", ne=(1024, 64)))) == 1
    empty = ops.mul_mat(new_tensor("f16", ne=(4096, 0)), new_tensor("f32", ne=(4096, 9)))
    assert _KERNELS.scratch(empty) == 0


@pytest.mark.parametrize("multiprocessors", [20, 132, 304])
def test_products_are_split_until_they_fill_the_gpu(multiprocessors: int) -> None:
    node = ops.mul_mat(new_tensor("bf16", ne=(65536, 640)), new_tensor("f32", ne=(65536, 9)))
    kernels = CudaKernels(gpu=Gpu(multiprocessors))
    launches = kernels.launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)
    (tiles,) = [each for each in launches if each.kernel.startswith("tiles_")]
    blocks = tiles.grid[0] * tiles.grid[1] * tiles.grid[2]
    assert 2 * multiprocessors <= blocks <= 3 * multiprocessors
    assert kernels.scratch(node) == 4 * tiles.grid[2] * node.nelements
