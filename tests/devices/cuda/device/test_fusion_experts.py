"""Weighted sums of experts in one launch, and graphs that only look like one.

The results have the bits of single nodes. Not here: other chains (test_fusion_chain.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels
from devices.cuda.small_graphs import launched

from aggml import Graph, Tensor, new_tensor, ops
from aggml.devices.cuda.plan import CUDAPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aggml.devices.cuda import CUDADevice


kernels = pytest.fixture(all_kernels)


def _in_order(y: Tensor, parts: list[Tensor], behind: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    for i, more in enumerate(behind):
        total = ops.add(more, total) if i % 2 else ops.add(total, more)
    return total


def _backwards(y: Tensor, parts: list[Tensor], behind: list[Tensor]) -> Tensor:
    return _in_order(y, parts[::-1], behind)


def _one_twice(y: Tensor, parts: list[Tensor], behind: list[Tensor]) -> Tensor:
    return _in_order(y, [*parts[:-1], parts[0]], behind)


def _read_elsewhere(y: Tensor, parts: list[Tensor], behind: list[Tensor]) -> Tensor:
    return ops.add(_in_order(y, parts, behind), ops.sqr(parts[1]))


def _read_whole(y: Tensor, parts: list[Tensor], behind: list[Tensor]) -> Tensor:
    return ops.add(_in_order(y, parts, behind), ops.sum(y))


async def _ran(
    device: CUDADevice,
    sums: Any,
    shape: tuple[int, int, int],
    behind: int,
    *,
    wide: bool = False,
    watched: bool = False,
) -> tuple[NDArray[Any], int]:
    columns, used, tokens = shape
    rng = np.random.default_rng(11)
    values: dict[Tensor, NDArray[Any]] = {}

    def leaf(*ne: int) -> Tensor:
        tensor = new_tensor("f32", ne=ne)
        values[tensor] = rng.normal(size=tensor.shape).astype(np.float32)
        return tensor

    y = ops.mul(ops.sqr(leaf(*shape)), leaf(columns if wide else 1, used, tokens))
    parts = [ops.view_2d(y, columns, tokens, y.nb[2], i * y.nb[1]) for i in range(used)]
    result = sums(y, parts, [leaf(columns, tokens) for _ in range(behind)])
    return await launched(device, result, values, watched=watched)


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(300, 2, 1), (64, 8, 5), (257, 3, 2)])
async def test_one_launch_has_the_bits_of_all(
    device: CUDADevice, shape: tuple[int, int, int], behind: int
) -> None:
    together, launches = await _ran(device, _in_order, shape, behind)
    alone, more = await _ran(device, _in_order, shape, behind, watched=True)
    assert np.array_equal(together.view(np.int32), alone.view(np.int32))
    assert launches == 2 + max(behind - 2, 0)
    assert more == 2 + shape[1] - 1 + behind


@pytest.mark.parametrize("sums", [_backwards, _one_twice, _read_elsewhere, _read_whole])
async def test_what_only_looks_like_it(device: CUDADevice, sums: Any) -> None:
    together, launches = await _ran(device, sums, (64, 3, 2), 1)
    alone, more = await _ran(device, sums, (64, 3, 2), 1, watched=True)
    assert np.array_equal(together.view(np.int32), alone.view(np.int32))
    assert launches == more


async def test_a_weight_for_each_element_is_none_of_an_expert(device: CUDADevice) -> None:
    together, launches = await _ran(device, _in_order, (64, 3, 2), 1, wide=True)
    alone, more = await _ran(device, _in_order, (64, 3, 2), 1, wide=True, watched=True)
    assert np.array_equal(together, alone)
    assert launches >= more - 1  # a square and the product may be fused


@pytest.mark.parametrize("watch", ["nothing", "rows", "values", "sum", "limit"])
@pytest.mark.parametrize(("count", "used", "tokens"), [(8, 2, 1), (60, 40, 3), (200, 129, 2)])
async def test_shares_of_the_chosen(
    device: CUDADevice, count: int, used: int, tokens: int, watch: str
) -> None:
    """One launch instead of four; with a token of zeros, whose sum is clamped to the minimum."""
    x = new_tensor("f32", ne=(count, tokens))
    numbers = np.random.default_rng(2).random((tokens, count)).astype(np.float32)
    numbers[-1] = 0
    found, launches = [], []
    for asked in (watch, "all"):
        ids = ops.argsort_top_k(x, used)
        rows = ops.get_rows(ops.reshape_3d(x, 1, count, tokens), ids)
        values = ops.reshape_2d(rows, used, tokens)
        total = ops.sum_rows(values)
        limit = ops.clamp_inplace(total, 6e-5, float("inf"))
        result = ops.div(values, limit)
        seen = {"rows": rows, "values": values, "sum": total, "limit": limit}
        ends = seen.values() if asked == "all" else [seen[asked]] if asked in seen else []
        graph = Graph(result, *ends)
        async with device.backend() as backend:
            await backend.prepare(graph)
            plan = backend.graph_plan(graph).plan
            assert isinstance(plan, CUDAPlan)
            launches.append(plan.launches)
            found.append(np.asarray(await backend.run(graph, {x: numbers}, result)))
    assert np.array_equal(found[0].view(np.int32), found[1].view(np.int32))
    assert np.isfinite(found[0]).all()
    saved = 3 if watch == "nothing" and used <= 128 else 0
    assert launches[0] == launches[1] - saved
