"""Products of packed weights: their values, and that no write to the weights is missed.

Here: weights in buffers with usage WEIGHTS compared with the same weights unpacked, column by
column. Not here: weights of floats (test_mul_mat_packed_floats.py), the kernels one by one
(tests/native/kernels_quantized.c).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.packed import (
    PACKS,
    TYPES,
    K,
    M,
    Product,
    as_they_lie,
    device,
    floats,
    most_packed,
    nmse,
    plan_of,
    quantized,
)

import aggml
from aggml import BufferUsage, Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    async with device().backend(n_threads=2) as backend:
        yield backend


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    before = device().packed_limit
    yield
    device().packed_limit = before


@pytest.mark.long(cases=6)
@pytest.mark.parametrize("dtype", TYPES)
async def test_packed_weights_give_what_rows_as_they_lie_give(
    backend: aggml.Backend, dtype: str
) -> None:
    blocks = quantized(floats(M, K, seed=1), dtype)
    x = floats(161, K, seed=2) * np.linspace(0.1, 3, K, dtype=np.float32)
    expected = await as_they_lie(backend, dtype, blocks, x)
    limits = (16, 31, 32, 40, 48, 80, 96, 160)  # of some processor and type
    for n in (*range(1, 10), 15, *sorted(n + more for n in limits for more in (0, 1))):
        product = Product(backend, dtype, n, BufferUsage.WEIGHTS)
        await backend.set(product.w, blocks)
        found = await product.run(x[:n])
        packs = PACKS and n <= most_packed(dtype)
        assert product.packed == packs
        # If packed, both sides use the same integers; else one side may have quantized columns.
        assert nmse(found, expected[:n]) < (1e-9 if packs else 1e-3)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q5_1"])
@pytest.mark.parametrize("k", [32, 96, 2048 + 32])
@pytest.mark.parametrize("n", [5, 13])
async def test_odd_numbers_of_blocks(backend: aggml.Backend, dtype: str, k: int, n: int) -> None:
    x = floats(n, k, seed=3)
    blocks = aggml.quantize(floats(100, k, seed=4), dtype)
    product = Product(backend, dtype, n, BufferUsage.WEIGHTS, 100, k)
    await backend.set(product.w, blocks)
    expected = await as_they_lie(backend, dtype, blocks, x, 100)
    assert nmse(await product.run(x), expected) < (1e-9 if PACKS else 1e-3)


async def test_quantized_columns(backend: aggml.Backend) -> None:
    w, x = new_tensor("q4_0", ne=(K, M)), new_tensor("q8_0", ne=(K, 3))
    buffer = backend.alloc([w])
    graph = Graph(y := ops.mul_mat(w, x))
    blocks, columns = (
        aggml.quantize(floats(M, K, seed=5), "q4_0"),
        aggml.quantize(floats(3, K, seed=6), "q8_0"),
    )
    backend.alloc_graph(graph)
    await backend.set(w, blocks)
    expected = await backend.run(graph, {x: columns}, y)
    buffer.usage = BufferUsage.WEIGHTS
    found = await backend.run(graph, {x: columns}, y)
    assert nmse(found, expected) < 1e-9


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4", "nvfp4"])
async def test_columns_with_the_least_byte(backend: aggml.Backend, dtype: str) -> None:
    """Columns of q8_0 may hold -128, whose sign no kernel can change in 8 bits."""
    blocks = quantized(floats(M, K, seed=11), dtype)
    columns = aggml.quantize(floats(2, K, seed=12), "q8_0")
    of_blocks = columns.reshape(2, -1, 34)  # a view
    of_blocks[:, 0, 2:] = of_blocks[:, 3, 7:29] = of_blocks[:, 7, 5::3] = 0x80
    expected = aggml.dequantize(columns, "q8_0") @ aggml.dequantize(blocks, dtype).T
    for n in (1, 2):
        w, x = new_tensor(dtype, ne=(K, M)), new_tensor("q8_0", ne=(K, n))
        buffer = backend.alloc([w])
        buffer.usage = BufferUsage.WEIGHTS
        graph = Graph(y := ops.mul_mat(w, x))
        backend.alloc_graph(graph)
        await backend.set(w, blocks)
        assert nmse(await backend.run(graph, {x: columns[:n]}, y), expected[:n]) < 1e-9


async def test_results_do_not_depend_on_threads() -> None:
    blocks, x = aggml.quantize(floats(2048, K, seed=7), "q4_K"), floats(7, K, seed=8)
    results = []
    for n_threads in (1, 2, 5):
        async with device().backend(n_threads=n_threads) as backend:
            product = Product(backend, "q4_K", 7, BufferUsage.WEIGHTS, 2048)
            await backend.set(product.w, blocks)
            results += [await product.run(x), await product.run(x)]
    assert all((r == results[0]).all() for r in results)


async def _set(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    await backend.set(w, blocks)


async def _set_bytes(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    half = w.nbytes // 2
    flat = blocks.reshape(-1)
    backend.set(w, flat[:half], offset=0, size=half)
    await backend.set(w, flat[half:], offset=half, size=w.nbytes - half)


async def _set_view(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    for row in range(w.ne[1]):
        view = ops.view_1d(w, w.ne[0], row * w.nb[1])
        backend.set(view, blocks[row])
    await backend.synchronize()


async def _copy(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    other = new_tensor(w.dtype, ne=w.ne)
    buffer = backend.alloc([other])
    backend.set(other, blocks)
    await backend.copy(other, w)
    buffer.close()


async def _copy_across(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    async with device().backend() as another:
        other = new_tensor(w.dtype, ne=w.ne)
        buffer = another.alloc([other])
        another.set(other, blocks)
        await another.copy(other, w, to=backend)
        buffer.close()


async def _by_a_graph(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    other = new_tensor(w.dtype, ne=w.ne)
    graph = Graph(node := ops.cpy(other, w))
    backend.alloc_graph(graph)
    await backend.run(graph, {other: blocks}, node)


async def _memset_and_set(backend: aggml.Backend, w: Tensor, blocks: Any) -> None:
    backend.memset(w, 0)
    await backend.set(w, blocks)


@pytest.mark.parametrize(
    "write", [_set, _set_bytes, _set_view, _copy, _copy_across, _by_a_graph, _memset_and_set]
)
async def test_a_write_to_the_weights_is_seen(
    backend: aggml.Backend, write: Callable[[aggml.Backend, Tensor, Any], Any]
) -> None:
    x = floats(4, K, seed=9)
    old, new = (aggml.quantize(floats(M, K, seed=seed), "q4_0") for seed in (10, 11))
    product = Product(backend, "q4_0", 4, BufferUsage.WEIGHTS)
    await backend.set(product.w, old)
    before = await product.run(x)
    await write(backend, product.w, new)
    after = await product.run(x)
    assert product.packed == PACKS
    assert nmse(before, await as_they_lie(backend, "q4_0", old, x)) < (1e-9 if PACKS else 1e-3)
    assert nmse(after, await as_they_lie(backend, "q4_0", new, x)) < (1e-9 if PACKS else 1e-3)


async def test_writes_between_queued_runs_are_each_seen_by_the_runs_behind_them(
    backend: aggml.Backend,
) -> None:
    x = floats(2, K, seed=12)
    product = Product(backend, "q4_K", 2, BufferUsage.WEIGHTS)
    contents = [aggml.quantize(floats(M, K, seed=20 + i), "q4_K") for i in range(5)]
    futures = []
    for blocks in contents:
        backend.set(product.w, blocks)
        futures += [backend.run(product.graph, {product.x: x}, product.y) for _ in range(2)]
    for i, future in enumerate(futures):
        expected = await as_they_lie(backend, "q4_K", contents[i // 2], x)
        assert nmse(np.asarray(await future), expected) < (1e-9 if PACKS else 1e-3)


async def test_clearing_the_buffer_is_seen(backend: aggml.Backend) -> None:
    product = Product(backend, "q4_0", 4, BufferUsage.WEIGHTS)
    await backend.set(product.w, aggml.quantize(floats(M, K, seed=13), "q4_0"))
    assert (await product.run(floats(4, K, seed=14))).any()
    await backend.clear(product.buffer, 0)
    assert not (await product.run(floats(4, K, seed=14))).any()


async def test_weights_that_can_be_written_from_outside_are_not_packed(
    backend: aggml.Backend,
) -> None:
    x = floats(3, K, seed=15)
    product = Product(backend, "q4_0", 3, BufferUsage.WEIGHTS)
    blocks = aggml.quantize(floats(M, K, seed=16), "q4_0")
    await backend.set(product.w, blocks)
    first = await product.run(x)
    assert product.packed == PACKS
    product.w.host_view()[:] = aggml.quantize(-aggml.dequantize(blocks, "q4_0", ne=(K, M)), "q4_0")
    second = await product.run(x)
    assert product.packed == 0
    assert nmse(second, -first) < 0.05  # blocks of q4_0 reach from -8 to 7: -8 has no negative


async def test_a_callers_array_is_not_packed_unless_it_is_read_only(
    backend: aggml.Backend,
) -> None:
    blocks = aggml.quantize(floats(M, K, seed=17), "q4_0")
    for writeable in (True, False):
        room = np.zeros(blocks.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        memory = room[start : start + blocks.nbytes]
        memory[:] = blocks.reshape(-1)
        memory.flags.writeable = writeable
        w, x = new_tensor("q4_0", ne=(K, M)), new_tensor("f32", ne=(K, 2))
        buffer = device().buffer_from_host(memory)
        buffer.place(w, 0)
        buffer.usage = BufferUsage.WEIGHTS
        graph = Graph(y := ops.mul_mat(w, x))
        backend.alloc_graph(graph)
        await backend.run(graph, {x: floats(2, K, seed=18)}, y)
        assert plan_of(backend, graph).native.n_packed == (PACKS and not writeable)


@pytest.mark.parametrize("before", [True, False])
async def test_weights_that_overlap_are_not_packed(backend: aggml.Backend, before: bool) -> None:
    product = Product(backend, "q4_0", 3, BufferUsage.ANY)
    alias = new_tensor("q4_0", ne=(K, M))
    if before:
        product.buffer.place(alias, 0)
    product.buffer.usage = BufferUsage.WEIGHTS
    x, expected = floats(3, K, seed=41), []
    for seed in (42, 43):
        blocks = aggml.quantize(floats(M, K, seed=seed), "q4_0")
        expected.append(await as_they_lie(backend, "q4_0", blocks, x))
        if seed == 42:
            await backend.set(product.w, blocks)
            assert nmse(await product.run(x), expected[0]) < (1e-9 if PACKS else 1e-3)
            assert product.packed == (PACKS and not before)
            if not before:
                product.buffer.place(alias, 0)
        else:
            await backend.set(alias, blocks)
    assert nmse(await product.run(x), expected[1]) < (1e-9 if PACKS else 1e-3)
    assert product.packed == 0


async def test_usage_decides_and_may_change(backend: aggml.Backend) -> None:
    x = floats(3, K, seed=19)
    product = Product(backend, "q5_K", 3, BufferUsage.ANY)
    await backend.set(product.w, aggml.quantize(floats(M, K, seed=20), "q5_K"))
    results = []
    for usage in (BufferUsage.ANY, BufferUsage.WEIGHTS, BufferUsage.COMPUTE):
        product.buffer.usage = usage
        results.append(await product.run(x))
        assert product.packed == (PACKS and usage is BufferUsage.WEIGHTS)
    assert nmse(results[1], results[0]) < (1e-9 if PACKS else 1e-3)


async def test_weights_that_the_graph_itself_writes_are_not_packed(backend: aggml.Backend) -> None:
    w, x, other = (
        new_tensor("q4_0", ne=(K, M)),
        new_tensor("f32", ne=(K, 2)),
        new_tensor("q4_0", ne=(K, M)),
    )
    backend.alloc([w], usage="weights")
    graph = Graph(ops.mul_mat(ops.cpy(other, w), x), y := ops.mul_mat(w, x))
    backend.alloc_graph(graph)
    blocks = aggml.quantize(floats(M, K, seed=21), "q4_0")
    await backend.run(graph, {x: floats(2, K, seed=22), other: blocks}, y)
    assert plan_of(backend, graph).native.n_packed == 0


@pytest.mark.skipif(not PACKS, reason="this CPU has no AVX-512 VNNI: weights are not packed")
async def test_memory_is_counted_limited_and_given_back(backend: aggml.Backend) -> None:
    gc.collect()
    before = device().packed_bytes
    blocks, x = aggml.quantize(floats(1024, K, seed=23), "q4_0"), floats(2, K, seed=24)
    product = Product(backend, "q4_0", 2, BufferUsage.WEIGHTS, 1024)
    await backend.set(product.w, blocks)
    expected = await product.run(x)
    held = device().packed_bytes - before
    assert blocks.nbytes <= held <= 1.1 * blocks.nbytes + 4096
    product.again()  # another graph with the same weights
    assert (await product.run(x) == expected).all()
    assert device().packed_bytes - before == held

    device().packed_limit = before + held
    another = Product(backend, "q4_0", 2, BufferUsage.WEIGHTS, 1024)
    await backend.set(another.w, blocks)
    found = await another.run(x)
    assert another.packed == 0
    assert nmse(found, expected) < 1e-9

    product.buffer.close()
    del product, another
    gc.collect()
    assert device().packed_bytes == before


def test_the_limit_is_checked() -> None:
    with pytest.raises(aggml.InvalidArgument, match="packed_limit"):
        device().packed_limit = -1
    with pytest.raises(aggml.InvalidHandle):
        device().packed_limit = "much"  # type: ignore[assignment]


async def test_a_scheduler_sees_that_weights_can_be_written_from_outside(
    backend: aggml.Backend,
) -> None:
    w, x = new_tensor("q4_0", ne=(K, M), name="w"), new_tensor("f32", ne=(K, 3), name="x")
    backend.alloc([w], usage="weights")
    blocks = aggml.quantize(floats(M, K, seed=39), "q4_0")
    await backend.set(w, blocks)
    graph = Graph(y := ops.mul_mat(w, x))
    columns = floats(3, K, seed=40)
    with aggml.Scheduler([backend]) as scheduler:
        before = await scheduler.run(graph, {x: columns}, y)
        w.host_view()[:] = 0
        after = await scheduler.run(graph, {x: columns}, y)
    assert np.any(before)
    w_values = aggml.dequantize(np.zeros_like(blocks), "q4_0", ne=(K, M))
    assert not w_values.any()
    assert not np.any(after)


@pytest.mark.parametrize("n", [1, 8])
async def test_products_of_the_same_columns_lay_them_out_once(
    backend: aggml.Backend, n: int
) -> None:
    ws = [new_tensor("q8_0", ne=(K, M)) for _ in range(2)]
    buffer = backend.alloc(ws)
    buffer.usage = BufferUsage.WEIGHTS
    blocks = [aggml.quantize(floats(M, K, seed=i), "q8_0") for i in range(2)]
    for w, data in zip(ws, blocks, strict=True):
        await backend.set(w, data)
    x, other = (new_tensor("f32", ne=(K, n)).set_input() for _ in range(2))
    h = ops.scale(x, 0.5)
    first = ops.mul_mat(ws[0], h)
    second = ops.mul_mat(ws[1], h)
    between = ops.mul_mat(ws[1], other)
    third = ops.mul_mat(ws[1], h)
    fourth = ops.mul_mat(ws[0], ops.scale_inplace(h, 3.0))  # h is overwritten after the third
    ys = [y.set_output() for y in (first, second, between, third, fourth)]
    graph = Graph(*ys)
    backend.alloc_graph(graph)
    a, b = floats(n, K, seed=3), floats(n, K, seed=4)
    found = await backend.run(graph, {x: a, other: b}, ys)

    columns = (a * 0.5, a * 0.5, b, a * 0.5, a * 1.5)
    for y, which, given in zip(found, (0, 1, 1, 1, 0), columns, strict=True):
        expected = await as_they_lie(backend, "q8_0", blocks[which], given.astype(np.float32))
        assert nmse(np.asarray(y).reshape(n, -1), expected) < 1e-9
    if PACKS:
        ops_of = [step.op for step in plan_of(backend, graph).steps]
        # two steps each, but one for the second: it reuses columns
        assert ops_of.count("mul_mat") == 9
