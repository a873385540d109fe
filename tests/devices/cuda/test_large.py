"""Shapes that no recorded case has: several tiles, splits, blocks, batches; against the CPU."""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import nmse
from devices.cuda.host import compute as on_shim
from devices.cuda.small_graphs import drawn
from ops.computing import run as on_cpu

import aggml
from aggml import DType, Graph, new_tensor, ops
from aggml.devices.cuda.launch import Gpu
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from aggml import Tensor

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cpu() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend() as backend:
        yield backend


def _ids(kind: str, ids: NDArray[Any], values: dict[Tensor, NDArray[Any]]) -> Tensor:
    tensor = new_tensor(kind, ne=ids.shape[::-1])
    values[tensor] = ids.astype(np.int32 if kind == "i32" else np.int64)
    return tensor


def _same(
    cpu: aggml.Backend,
    node: Tensor,
    values: dict[Tensor, NDArray[Any]],
    bound: float,
    order: int = 2,
) -> None:
    graph = Graph(node)
    (result,), fault = on_shim(graph, values, [node], order)
    assert fault[0] == 0
    expected = on_cpu(cpu, node, values)
    if node.dtype is DType.I32:
        assert np.array_equal(expected.ravel(), result.ravel())
    else:
        assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= bound


@pytest.mark.parametrize("columns", [5, 70])
@pytest.mark.parametrize("kind", ["q4_K", "q6_K", "f16", "bf16", "f32"])
def test_products_of_several_tiles(cpu: aggml.Backend, kind: str, columns: int) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 512, 100, 2, seed=1, values=values)
    b = drawn("f32", 512, columns, 4, seed=2, values=values)
    _same(cpu, ops.mul_mat(a, b), values, 1e-4 if kind.startswith("q") else 1e-5)


@pytest.mark.parametrize("columns", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("depth", "rows"), [(33, 7), (5, 37), (64, 9)], ids=["split", "few", "even"]
)
@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q5_1", "mxfp4", "q6_K", "q3_K", "q1_0"])
def test_products_of_few_columns(
    cpu: aggml.Backend, kind: str, depth: int, rows: int, columns: int
) -> None:
    """Rows of at least ``depth`` blocks. They begin at the third row of a matrix: odd addresses."""
    values: dict[Tensor, NDArray[Any]] = {}
    whole = drawn(kind, 256, 1, seed=0, values={})
    width = 32 * depth if whole.dtype.blck_size == 32 else max(1, depth // 8) * 256
    whole = drawn(kind, width, rows + 3, 2, seed=1, values=values)
    a = ops.view_3d(whole, width, rows, 2, whole.nb[1], whole.nb[2], 3 * whole.nb[1])
    b = drawn("f32", width, columns, 2, seed=2, values=values)
    _same(cpu, ops.mul_mat(a, b), values, 1e-4, order=3)


@pytest.mark.parametrize("depth", [33, 100])
@pytest.mark.parametrize("columns", [2, 20])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_products_of_odd_depth(cpu: aggml.Backend, kind: str, depth: int, columns: int) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, depth, 67, seed=1, values=values)
    b = drawn("f32", depth, columns, seed=2, values=values)
    _same(cpu, ops.mul_mat(a, b), values, 1e-5)


@pytest.mark.parametrize("tokens", [3, 90])
@pytest.mark.parametrize("kind", ["q8_0", "q5_K", "f16", "f32"])
def test_products_by_expert(cpu: aggml.Backend, kind: str, tokens: int) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn(kind, 256, 70, 5, seed=1, values=values)
    b = drawn("f32", 256, 1, tokens, seed=2, values=values)
    # the last expert gets no token
    chosen = np.random.default_rng(3).integers(0, 4, size=(tokens, 2))
    chosen[tokens // 2, 1] = -1
    node = ops.mul_mat_id(a, b, _ids("i32", chosen, values))
    _same(cpu, node, values, 1e-4)


_HEADS = pytest.mark.parametrize(
    ("kind", "d", "dv", "queries", "heads", "kv_heads", "keys"),
    [
        ("f16", 64, 64, 100, 4, 4, 100),  # several tiles of rows
        ("f16", 128, 128, 1, 8, 2, 700),  # the keys are split over several blocks
        ("q8_0", 128, 128, 2, 4, 1, 300),
        ("bf16", 80, 80, 40, 2, 1, 70),
        ("f16", 256, 256, 20, 2, 2, 60),
        ("f32", 33, 20, 5, 2, 2, 50),
        ("f16", 576, 512, 3, 2, 1, 60),  # the sums of a row are shared by four warps
        ("q8_0", 576, 512, 3, 2, 1, 60),
        ("bf16", 200, 136, 9, 2, 1, 90),  # shared by two warps, one of which has few elements
        ("f16", 64, 520, 3, 2, 1, 40),  # wider than the tiles
    ],
)
_H100 = Gpu(132, 227 * 1024)


@_HEADS
@pytest.mark.parametrize("gpu", [Gpu(), _H100], ids=["48", "227"])
@pytest.mark.parametrize("written", [True, False], ids=["", "unwritten"])
def test_attention(
    cpu: aggml.Backend,
    gpu: Gpu,
    kind: str,
    d: int,
    dv: int,
    queries: int,
    heads: int,
    kv_heads: int,
    keys: int,
    written: bool,
) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    q = drawn("f32", d, queries, heads, 2, seed=1, values=values)
    k = drawn(kind, d, keys, kv_heads, 2, seed=2, values=values)
    v = drawn(kind, dv, keys, kv_heads, 2, seed=3, values=values)
    mask = new_tensor("f16", ne=(keys, queries))
    seen = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries - 40
    values[mask] = np.where(seen, np.float16(0), np.float16(-np.inf))
    node = ops.flash_attn_ext(q, k, v, mask, d**-0.5, 0.0, 0.0)
    kernels = CudaKernels(gpu=gpu)
    expected = on_cpu(cpu, node, values)
    if not written:  # keys and values that no query sees are NaN
        for cache in (k, v):
            values[cache].view(np.uint8).reshape(2, kv_heads, keys, -1)[:, :, -40:] = 0xFF
    (result,), _ = on_shim(Graph(node), values, [node], 3, kernels)
    assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= 1e-4


@pytest.mark.parametrize(
    ("shared", "rows", "stages"), [(64, 16, 1), (99, 32, 1), (163, 32, 2), (227, 32, 2)]
)
@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_latent_attention(
    cpu: aggml.Backend, kind: str, shared: int, rows: int, stages: int
) -> None:
    """The values are the first columns of the keys, so that each tile is loaded once for both."""
    values: dict[Tensor, NDArray[Any]] = {}
    heads, keys = 40, 130
    q = drawn("f32", 576, 2, heads, seed=1, values=values)
    cache = drawn(kind, 576, keys, seed=2, values=values)
    v = ops.view_3d(cache, 512, keys, 1, cache.nb[1], cache.nb[2], 0)
    mask = new_tensor("f16", ne=(keys, 2))
    seen = np.arange(keys)[None, :] < np.array([[70], [keys]])
    seen[:, 32:64] = False  # a whole tile is masked, and skipped
    values[mask] = np.where(seen, np.float16(0), np.float16(-np.inf))
    node = ops.flash_attn_ext(q, cache, v, mask, 576**-0.5, 0.0, 0.0)
    kernels = CudaKernels(gpu=Gpu(132, shared * 1024))
    found = kernels.launches(node, lambda t: (1 << 20) + t.view_offs, 1 << 21, 1 << 22)[0]
    assert (found.kernel, found.block) == ("attend_wide", (8 * rows, 1, 1))
    assert found.shared <= shared * 1024
    assert struct.unpack_from("<2q", found.args, 80 * 6 + 64 + 8 * 3) == (stages, 1)
    expected = on_cpu(cpu, node, values)
    (result,), _ = on_shim(Graph(node), values, [node], 4, kernels)
    assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= 1e-4


@pytest.mark.parametrize(("d", "dv", "rows"), [(256, 256, 64), (224, 224, 64), (576, 512, 16)])
def test_wide_heads_use_the_shared_memory_that_a_gpu_gives_on_request(
    cpu: aggml.Backend, d: int, dv: int, rows: int
) -> None:
    """At width 256, 64 rows share keys and values in 75 KiB; 16 rows would need at most 48 KiB."""
    values: dict[Tensor, NDArray[Any]] = {}
    q = drawn("f32", d, 70, 2, seed=1, values=values)
    k = drawn("f16", d, 75, 1, seed=2, values=values)
    v = drawn("f16", dv, 75, 1, seed=3, values=values)
    node = ops.flash_attn_ext(q, k, v, None, d**-0.5, 0.0, 0.0)
    kernels = CudaKernels(gpu=Gpu(132, 99 * 1024))  # the limit of sm_86, sm_89 and sm_120
    found = kernels.launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)[0]
    few = CudaKernels().launches(node, lambda _: 1 << 20, 1 << 21, 1 << 22)[0]
    assert found.block == (2 * rows * (4 if dv > 256 else 2), 1, 1)
    assert 48 * 1024 < found.shared <= 99 * 1024
    assert few.shared <= 48 * 1024
    (result,), fault = on_shim(Graph(node), values, [node], 3, kernels)
    assert fault[0] == 0
    expected = on_cpu(cpu, node, values)
    assert nmse(expected.astype(np.float64), result.astype(np.float64)) <= 1e-4


@pytest.mark.parametrize("k", [None, 0, 40, 1, 4096, 4100])  # None: argsort; 0: all
@pytest.mark.parametrize("n", [5000, 700])
def test_long_rows_are_sorted(cpu: aggml.Backend, k: int | None, n: int) -> None:
    """Equal elements, both zeros, infinities, NaN; a row of NaN only, a row of one number."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn("f32", n, 5, seed=1, values=values)
    rows = values[a].reshape(5, n)
    rows[1] = np.round(rows[1])
    rows[2, :3] = rows[3] = np.nan
    rows[2, 3:9] = [np.inf, 0, -0.0, -np.inf, np.inf, 0]
    rows[4] = 2.5
    node = ops.top_k(a, min(k, n)) if k else ops.argsort(a, "desc" if k is None else "asc")
    for order in (2, 3):
        _same(cpu, node, values, 0.0, order)


@pytest.mark.parametrize("k", [None, 64, 1])
def test_a_vocabulary_is_sorted(cpu: aggml.Backend, k: int | None) -> None:
    """128,256 logits as models give them: many share their first bits, some are equal."""
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn("f32", 128256, 1, seed=5, values=values)
    values[a][:] = np.round(values[a] * 400) / 100
    _same(cpu, ops.argsort(a, "desc") if k is None else ops.top_k(a, k), values, 0.0)


def test_rows_beyond_what_is_sorted_at_once(cpu: aggml.Backend) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn("f32", 5000, 200, seed=6, values=values)  # 3 parts for each row, 170 rows at once
    _same(cpu, ops.top_k(a, 3), values, 0.0)


_MANY: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": ops.sum,
    "sum_turned": lambda a: ops.sum(ops.permute(a, 1, 0, 2, 3)),
    "cumsum": ops.cumsum,
    "rms_norm": lambda a: ops.rms_norm(a, 1e-5),
    "norm": lambda a: ops.norm(a, 1e-5),
    "soft_max": ops.soft_max,
    "cont_turned": lambda a: ops.cont(ops.permute(a, 1, 0, 2, 3)),
    "silu_planes": lambda a: ops.silu(ops.permute(a, 0, 2, 1, 3)),
    "add_itself_turned": lambda a: ops.add(a, ops.permute(a, 0, 1, 2, 3)),
}


@pytest.mark.parametrize("name", _MANY)
def test_rows_and_totals_of_many_blocks(cpu: aggml.Backend, name: str) -> None:
    values: dict[Tensor, NDArray[Any]] = {}
    a = drawn("f32", 3000, 7, 3, seed=1, values=values)
    _same(cpu, _MANY[name](a), values, 1e-7)
