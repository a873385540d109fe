"""Nodes that one launch computes together, and launches that are left out as repetitions.

The results have the bits of single nodes. Not here: which chains there are (tests/plan).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels
from devices.cuda.small_graphs import drawn, launched

import aggml
from aggml import Graph, Tensor, new_tensor, ops
from aggml.devices.cuda.plan import CUDAPlan
from aggml.errors import OutOfBounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aggml.devices.cuda import CUDADevice

KINDS = ["f32", "f16", "bf16", "q4_0", "q8_0", "q6_K"]
Built = tuple[Tensor, dict[Tensor, "NDArray[Any]"]]


kernels = pytest.fixture(all_kernels)


def leaf(values: dict[Tensor, NDArray[Any]], kind: str, *ne: int) -> Tensor:
    return drawn(kind, *ne, seed=len(values), values=values)


async def ran(
    device: CUDADevice, build: Callable[[], Built], *, watched: bool
) -> tuple[NDArray[Any], int]:
    return await launched(device, *build(), watched=watched)


def gated(kind: str, columns: int, *, last: str) -> Callable[[], Built]:
    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x = leaf(values, "f32", 256, columns)
        gate, up = leaf(values, kind, 256, 70), leaf(values, kind, 256, 70)
        if last == "up":
            a = ops.mul_mat(gate, x)
            return ops.swiglu_split(a, ops.mul_mat(up, x)), values
        b = ops.mul_mat(up, x)
        return ops.swiglu_split(ops.mul_mat(gate, x), b), values

    return build


def added(kind: str, columns: int) -> Callable[[], Built]:
    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x, y = leaf(values, "f32", 256, columns), leaf(values, "f32", 70, columns)
        return ops.add(ops.mul_mat(leaf(values, kind, 256, 70), x), y), values

    return build


def scaled(norm: str, *, bias: bool) -> Callable[[], Built]:
    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x = getattr(ops, norm)(leaf(values, "f32", 300, 5), 1e-5)
        y = ops.mul(x, leaf(values, "f32", 300))
        return ops.add(y, leaf(values, "f32", 300)) if bias else y, values

    return build


def gated_by_expert(kind: str, tokens: int, *, last: str) -> Callable[[], Built]:
    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x = leaf(values, "f32", 256, 1, tokens)
        gate, up = leaf(values, kind, 256, 70, 5), leaf(values, kind, 256, 70, 5)
        ids = new_tensor("i32", ne=(2, tokens))
        chosen = np.random.default_rng(3).integers(0, 5, (tokens, 2))
        chosen[-1, 1] = -1
        values[ids] = chosen.astype(np.int32)
        if last == "up":
            a = ops.mul_mat_id(gate, x, ids)
            return ops.swiglu_split(a, ops.mul_mat_id(up, x, ids)), values
        b = ops.mul_mat_id(up, x, ids)
        return ops.swiglu_split(ops.mul_mat_id(gate, x, ids), b), values

    return build


def into_rows(kind: str, mode: str, dims: int) -> Callable[[], Built]:
    """Heads are rotated into a cache; if two tokens go to one row, the later one wins."""

    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x = leaf(values, "f32", 48, 3, 5)
        cache = ops.cast(leaf(values, "f32", 144, 9), kind)
        positions, ids = new_tensor("i32", ne=(5,)), new_tensor("i64", ne=(5,))
        values[positions] = np.array([3, 4, 5, 100, 7], np.int32)
        values[ids] = np.array([2, 8, 2, 0, 5], np.int64)
        turned = ops.rope_ext(ops.sqr(x), positions, None, dims, mode=mode)
        return ops.set_rows(cache, ops.reshape_2d(turned, 144, 5), ids), values

    return build


CASES = {
    **{
        f"experts-{k}-{n}-{last}": gated_by_expert(k, n, last=last)
        for k, n, last in [*((k, 1, "up") for k in KINDS), ("q4_0", 7, "gate"), ("f32", 8, "up")]
    },
    **{
        f"rows-{kind}-{mode}-{dims}": into_rows(kind, mode, dims)
        for kind in ("f32", "f16", "bf16")
        for mode, dims in (("normal", 48), ("neox", 32))
    },
    **{f"up-{k}-{n}": gated(k, n, last="up") for k in KINDS for n in (1, 3, 8)},
    **{f"gate-{k}": gated(k, 1, last="gate") for k in KINDS},
    **{f"add-{k}-{n}": added(k, n) for k in KINDS for n in (1, 7)},
    **{
        f"{norm}-{bias}": scaled(norm, bias=bias)
        for norm in ("norm", "rms_norm", "l2_norm")
        for bias in (False, True)
    },
}


@pytest.mark.parametrize("name", CASES)
async def test_one_launch_gives_the_bits_of_several(device: CUDADevice, name: str) -> None:
    together, fewer = await ran(device, CASES[name], watched=False)
    alone, more = await ran(device, CASES[name], watched=True)
    assert np.array_equal(together.view(np.uint8), alone.view(np.uint8))
    assert 0 < fewer < more


@pytest.mark.parametrize("last", ["up", "gate"])
@pytest.mark.parametrize("kind", ["f32", "q4_0"])
async def test_gate_and_up_are_one_launch(device: CUDADevice, kind: str, last: str) -> None:
    int8 = int(kind != "f32")  # one more launch converts the column to int8
    assert (await ran(device, gated(kind, 1, last=last), watched=False))[1] == 1 + int8
    assert (await ran(device, gated_by_expert(kind, 8, last=last), watched=False))[1] == 2 + int8


async def test_a_value_that_others_read_is_written(device: CUDADevice) -> None:
    """The rotated keys, or one of two products, are read elsewhere, too: they must be written."""

    def rows() -> Built:
        result, values = into_rows("f32", "neox", 48)()
        turned = result.src[0]
        assert turned is not None
        return ops.concat(result, ops.sqr(turned), 1), values

    def product() -> Built:
        result, values = gated("q4_0", 1, last="up")()
        up = result.src[1]
        assert up is not None
        return ops.concat(result, up, 0), values

    for build in (rows, product):
        together, _ = await ran(device, build, watched=False)
        alone, _ = await ran(device, build, watched=True)
        assert np.array_equal(together.view(np.int32), alone.view(np.int32))


async def test_a_row_that_is_not_there_stops_a_rope_too(device: CUDADevice) -> None:
    result, values = into_rows("f16", "neox", 48)()
    ids = result.src[1]
    assert ids is not None
    values[ids] = np.array([2, 8, 9, 0, 5], np.int64)
    graph = Graph(result)
    async with device.backend() as backend:
        await backend.prepare(graph)
        with pytest.raises(OutOfBounds, match=r"\(set_rows\): index 9 at position 2"):
            await backend.run(graph, values, result)


async def test_columns_become_int8_once_for_three_products(device: CUDADevice) -> None:
    def build(n: int) -> Callable[[], Built]:
        def of() -> Built:
            values: dict[Tensor, NDArray[Any]] = {}
            x = leaf(values, "f32", 256, 2)
            each = [ops.sqr(ops.mul_mat(leaf(values, "q4_0", 256, 40), x)) for _ in range(n)]
            result = each[0]
            for other in each[1:]:
                result = ops.concat(result, other, 0)
            return result, values

        return of

    one, launches = await ran(device, build(1), watched=False)
    three, more = await ran(device, build(3), watched=False)
    assert np.array_equal(three[..., :40], one)
    # the other two heads each have a product, a square and a concat
    assert more == launches + 2 * (1 + 1 + 2)


@pytest.mark.parametrize("columns", [1, 5, 9])
@pytest.mark.parametrize(("kind", "width"), [("q4_0", 96), ("q8_0", 1056), ("q4_K", 4352)])
async def test_a_norm_leaves_its_rows_as_int8(
    device: CUDADevice, monkeypatch: pytest.MonkeyPatch, kind: str, width: int, columns: int
) -> None:
    """The bits of a separate launch; a row of zeros; a value that other nodes read, too."""

    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x = leaf(values, "f32", width, columns)
        values[x][0] = 0 if columns > 1 else values[x][0]
        y = ops.mul(ops.rms_norm(x, 1e-5), leaf(values, "f32", width))
        a, b = leaf(values, kind, width, 70), leaf(values, kind, width, 70)
        both = ops.concat(ops.mul_mat(a, y), ops.mul_mat(b, y), 0)
        return ops.concat(both, y, 0), values

    together, fewer = await ran(device, build, watched=False)
    monkeypatch.setattr("aggml.devices.cuda.plan.fuse_norm_with_quantize", lambda nodes: len(nodes))
    alone, more = await ran(device, build, watched=False)
    assert np.array_equal(together.view(np.int32), alone.view(np.int32))
    assert more == fewer + 1


async def test_rows_that_a_norm_does_not_leave_as_int8(
    device: CUDADevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product in between overwrites the scratch; or the rows are read in another shape."""

    def between() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x, z = leaf(values, "f32", 256, 2), leaf(values, "f32", 256, 2)
        y = ops.rms_norm(x, 1e-5)
        a, b = leaf(values, "q4_0", 256, 256), leaf(values, "q4_0", 256, 40)
        first = ops.add(y, ops.mul_mat(a, z))
        return ops.mul_mat(b, ops.add(first, y)), values

    def reshaped() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        y = ops.rms_norm(leaf(values, "f32", 64, 4), 1e-5)
        return ops.mul_mat(leaf(values, "q4_0", 256, 40), ops.reshape_2d(y, 256, 1)), values

    for build in (between, reshaped):
        together, fewer = await ran(device, build, watched=False)
        with monkeypatch.context() as patch:
            patch.setattr(
                "aggml.devices.cuda.plan.fuse_norm_with_quantize", lambda nodes: len(nodes)
            )
            alone, more = await ran(device, build, watched=False)
        assert np.array_equal(together.view(np.int32), alone.view(np.int32))
        assert more == fewer


async def test_columns_are_made_again_after_scratch_was_used(device: CUDADevice) -> None:
    def build() -> Built:
        values: dict[Tensor, NDArray[Any]] = {}
        x, z = leaf(values, "f32", 256, 2), leaf(values, "f32", 256, 2)
        a, b = leaf(values, "q4_0", 256, 40), leaf(values, "q4_0", 256, 40)
        first, other = ops.mul_mat(a, x), ops.mul_mat(a, z)
        return ops.add(ops.sub(first, other), ops.mul_mat(b, x)), values

    found, _ = await ran(device, build, watched=False)
    result, values = build()
    graph = Graph(result)
    async with aggml.get_device("CPU").backend() as cpu:
        await cpu.prepare(graph)
        expected = await cpu.run(graph, values, result)
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=0.5)


async def test_indices_are_looked_at_once_and_a_wrong_one_stops_every_reader(
    device: CUDADevice,
) -> None:
    table, other = new_tensor("f32", ne=(8, 6)), new_tensor("f32", ne=(8, 6))
    rows, ids = new_tensor("f32", ne=(8, 2)), new_tensor("i32", ne=(2,))
    graph = Graph(ops.set_rows(table, rows, ids), ops.set_rows(other, rows, ids))
    async with device.backend() as backend:
        memory = backend.alloc([table, other])
        zeros, ones = np.zeros((6, 8), np.float32), np.ones((2, 8), np.float32)
        for place in (table, other):
            await backend.set(place, zeros)
        await backend.prepare(graph)
        await backend.run(graph, {rows: ones, ids: np.array([1, 4], np.int32)}, [])
        for place in (table, other):
            assert np.flatnonzero((await backend.get(place)).sum(axis=1)).tolist() == [1, 4]
        with pytest.raises(OutOfBounds, match=r"node 0 \(set_rows\): index 6"):
            await backend.run(graph, {rows: 2 * ones, ids: np.array([0, 6], np.int32)}, [])
        assert memory is not None


@pytest.mark.parametrize("values", ["numbers", "NaN"])
@pytest.mark.parametrize("sort", ["argsort_top_k", "top_k"])
async def test_indices_of_a_sort_need_no_look(device: CUDADevice, sort: str, values: str) -> None:
    """Indices of a sort need no check, unless the table has fewer rows than the sort had values."""
    x = new_tensor("f32", ne=(7,))
    few, many = new_tensor("f32", ne=(8, 6)), new_tensor("f32", ne=(8, 7))
    rng = np.random.default_rng(5)
    numbers = np.full(7, np.nan) if values == "NaN" else np.append(rng.normal(size=6), 9)
    counts = []
    async with device.backend() as backend:
        for table in (many, few):
            ids = getattr(ops, sort)(x, 2)
            result = ops.get_rows(table, ids)
            graph = Graph(result, ids)
            await backend.prepare(graph)
            plan = backend.graph_plan(graph).plan
            assert isinstance(plan, CUDAPlan)
            counts.append(plan.launches)
            rows = rng.normal(size=table.shape).astype(np.float32)
            given = {x: numbers.astype(np.float32), table: rows}
            if table is many:
                found, which = await backend.run(graph, given, [result, ids])
                assert np.array_equal(found, rows[which])
            elif values == "numbers":  # the last value, index 6, is the largest
                with pytest.raises(OutOfBounds, match="index 6"):
                    await backend.run(graph, given, result)
    assert counts == [2, 3]
