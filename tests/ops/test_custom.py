"""map_custom1 to 3, custom_4d: functions of the user in Python and in C, alone and among nodes.

Here: what the functions get, what happens if they fail, wait, are aborted; on the CPU, a simulated
device, the scheduler. Not here: names of parameters (test_builders.py).
"""

from __future__ import annotations

import ctypes
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute, floats

import aggml
from aggml import Graph, InvalidArgument, InvalidHandle, InvalidState, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend

Array = np.ndarray[Any, Any]
X = np.arange(15, dtype=np.float32).reshape(3, 5)


def double(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
    np.multiply(a, 2, out=dst)


def leaf(name: str = "a", dtype: str = "f32") -> aggml.Tensor:
    return new_tensor(dtype, ne=(5, 3), name=name)


# -- what functions in Python get


def test_operands_are_arrays_over_their_memory(any_backend: aggml.Backend) -> None:
    a, b, c = leaf(), new_tensor("f16", ne=(7,), name="b"), new_tensor("q8_0", ne=(64, 2), name="c")
    got: list[Any] = []

    def note(dst: Array, *rest: Any) -> None:
        got.extend([dst.copy(), *[x.copy() if isinstance(x, np.ndarray) else x for x in rest]])
        assert [x.flags.writeable for x in (dst, *rest[:3])] == [True, False, False, False]
        dst[...] = rest[0]

    node = ops.map_custom3(ops.transpose(a), b, c, note, userdata="mine")
    assert (node.op, node.ne, node.dtype) == ("map_custom3", (3, 5, 1, 1), aggml.DType.F32)
    blocks = aggml.quantize(floats(2, 64, seed=1), "q8_0")
    node = ops.reshape(ops.map_custom1(node, double), leaf())
    values: dict[Any, Array] = {a: X, b: np.arange(7, dtype=np.float16), c: blocks}
    result = compute(any_backend, node, values)
    dst, first, second, third, *rest = got
    assert dst.shape == first.shape == (5, 3)
    assert np.array_equal(first, X.T)
    assert np.array_equal(second, np.arange(7))
    assert second.dtype == np.float16
    assert np.array_equal(third, blocks)
    assert rest == [0, 1, "mine"]
    assert np.array_equal(result.reshape(5, 3), 2 * X.T)


def test_bf16_and_empty_operands(any_backend: aggml.Backend) -> None:
    a, none = leaf(dtype="bf16"), new_tensor("f32", ne=(4, 0), name="none")

    def add_one(dst: Array, a: Array, b: Array, *_: object) -> None:
        assert b.size == 0
        dst[...] = a + 1

    node = ops.map_custom2(a, none, add_one)
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    values: dict[Any, Array] = {a: bits, none: np.empty((0, 4), np.float32)}
    result = compute(any_backend, ops.cast(node, "f32"), values)
    assert np.array_equal(result.reshape(3, 5), X + 1)


@pytest.mark.parametrize(("n_tasks", "calls"), [(-1, 1), (1, 1), (3, 3), (100000, 512)])
def test_number_of_tasks(by_threads: list[aggml.Backend], n_tasks: int, calls: int) -> None:
    for backend in by_threads:
        seen: list[tuple[int, int]] = []

        def note(dst: Array, a: Array, ith: int, nth: int, _: object, to: Any = seen) -> None:
            to.append((ith, nth))
            dst[ith::nth] = a[ith::nth] + 1

        a = leaf()
        result = compute(backend, ops.map_custom1(a, note, n_tasks), {a: X})
        assert seen == [(i, calls) for i in range(calls)]
        assert np.array_equal(result.reshape(3, 5), X + 1)


def test_custom_4d_has_its_own_type_and_extents(any_backend: aggml.Backend) -> None:
    a, b = leaf(), new_tensor("i32", ne=(2,), name="b")

    def fill(dst: Array, a: Array, b: Array, ith: int, nth: int, userdata: list[int]) -> None:
        dst[...] = userdata[0] + b[:, None]
        assert np.array_equal(a, X)

    node = ops.custom_4d("i16", 3, 2, 1, 1, [a, b, a], 2, fill, 1, [10])
    assert (node.op, node.ne, node.dtype.type_name) == ("custom", (3, 2, 1, 1), "i16")
    result = compute(any_backend, node, {a: X, b: np.array([1, 2], np.int32)})
    assert np.array_equal(result.reshape(2, 3), [[11] * 3, [12] * 3])

    def count(dst: Array, *_: object) -> None:
        dst[...] = np.arange(4)

    alone = ops.custom_4d(aggml.DType.F32, 4, 1, 1, 1, [], None, count)
    assert np.array_equal(compute(any_backend, ops.neg(alone), {}).ravel(), [0, -1, -2, -3])


def test_in_place_writes_the_storage_of_a(any_backend: aggml.Backend) -> None:
    a, b = leaf(), leaf("b")

    def bump(dst: Array, *rest: Any) -> None:
        dst += rest[1]

    nodes = [
        ops.map_custom1_inplace(a, double),
        ops.map_custom2_inplace(ops.view_2d(a, 5, 2, 20, 20), ops.view_2d(b, 5, 2, 20, 0), bump),
        ops.map_custom3_inplace(a, b, b, bump),
        ops.custom_inplace(a, [b], None, bump),
    ]
    assert all(node.root is a for node in nodes)
    graph = Graph(*nodes)
    memory = any_backend.alloc([a, b])
    placed = any_backend.alloc_graph(graph)
    any_backend.set(a, X)
    any_backend.set(b, np.ones((3, 5), np.float32))
    any_backend.graph_compute(graph)
    result = any_backend.get(a)
    assert result.wait(10)
    expected = 2 * X + 2
    expected[1:] += 1
    assert np.array_equal(result.result(), expected)
    placed.close()
    memory.close()


def test_misuse() -> None:
    a = leaf()
    for tasks in (0, -2, 1 << 31):
        with pytest.raises(InvalidArgument, match="n_tasks"):
            ops.map_custom1(a, double, tasks)
    bad: Any
    for bad in (None, 0, 12345, "double", a):
        with pytest.raises(InvalidHandle, match="c_function"):
            ops.map_custom1(a, bad)
    with pytest.raises(InvalidHandle, match="b is no tensor"):
        ops.map_custom2_inplace(a, X, double)  # type: ignore[arg-type]
    with pytest.raises(InvalidHandle, match=r"args\[1\]"):
        ops.custom_inplace(a, [a, X], 2, double)  # type: ignore[list-item]
    with pytest.raises(InvalidHandle, match="no list"):
        ops.custom_inplace(a, 3, None, double)  # type: ignore[arg-type]
    for n in (-1, 3, 10):
        with pytest.raises(InvalidArgument, match="n_args"):
            ops.custom_4d("f32", 1, 1, 1, 1, [a, a], n, double)
    ops.custom_4d("f32", 1, 1, 1, 1, [a] * 9, 9, double)
    ops.custom_inplace(a, [a] * 8, 8, double)
    with pytest.raises(InvalidArgument, match="n_args"):
        ops.custom_4d("f32", 1, 1, 1, 1, [a] * 10, 10, double)
    with pytest.raises(InvalidArgument, match="n_args"):
        ops.custom_inplace(a, [a] * 9, 9, double)
    with pytest.raises(InvalidArgument, match="negative"):
        ops.custom_4d("f32", 1, -1, 1, 1, [], 0, double)
    make: Any = ctypes.CFUNCTYPE
    kind = make(None)
    with pytest.raises(InvalidHandle, match="null"):
        ops.map_custom1(a, kind())
    with pytest.raises(InvalidHandle, match="userdata"):
        ops.map_custom1(a, kind(lambda: None), -1, object())
    with pytest.raises(InvalidArgument):
        aggml.unsafe.c_function(0)


def test_arrays_that_a_function_keeps_stay_readable(cpu: CPUBackend) -> None:
    a, kept = leaf(), []
    node = ops.sum(ops.map_custom1(ops.neg(a), lambda dst, x, *_: kept.extend([dst, x])))
    compute(cpu, node, {a: X})
    cpu.close()
    del cpu, node
    assert [x.sum() is not None for x in kept] == [True, True]  # whatever is there by now
    assert kept[1].shape == (3, 5)


# -- functions in C

SOURCE = """
#include <stddef.h>
#include <stdint.h>
struct t {
    int32_t type; void *buffer; int64_t ne[4]; size_t nb[4]; int32_t op, op_params[16], flags;
    struct t *src[10], *view_src; size_t view_offs; void *data; char name[64]; void *extra;
};
static float *row(const struct t *t, int64_t i)
{
    return (float *)((char *)t->data + i * t->nb[1]);
}
static void scale(struct t *dst, const struct t *a, float by, int ith, int nth)
{
    for (int64_t r = ith; r < dst->ne[1]; r += nth)
        for (int64_t i = 0; i < dst->ne[0]; ++i) row(dst, r)[i] = row(a, r)[i] * by + (float)r;
}
void one(struct t *dst, const struct t *a, int ith, int nth, float *by)
{
    scale(dst, a, *by, ith, nth);
}
void three(struct t *dst, const struct t *a, const struct t *b, const struct t *c, int ith, int nth,
           void *none)
{
    scale(dst, a, none ? -1 : row(b, 0)[0] + row(c, 0)[1], ith, nth);
}
void any(struct t *dst, int ith, int nth, int *calls)
{
    __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
    scale(dst, dst->src[0], row(dst->src[1], 0)[0], ith, nth);
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("custom")
    (folder / "custom.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", "custom.so", "custom.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "custom.so"))


@pytest.mark.parametrize("n_tasks", [-1, 1, 2, 7])
def test_functions_in_c(
    by_threads: list[aggml.Backend], library: ctypes.CDLL, n_tasks: int
) -> None:
    x = floats(301, 100, seed=4)
    rows = np.arange(301, dtype=np.float32)[:, None]
    a, b = new_tensor("f32", ne=(100, 301), name="a"), new_tensor("f32", ne=(2,), name="b")
    values = {a: x, b: np.array([3, 4], np.float32)}
    calls, factor = ctypes.c_int(0), ctypes.c_float(0.5)
    address = ctypes.cast(library.one, ctypes.c_void_p).value
    assert address is not None
    for backend in by_threads:
        calls.value = 0
        nodes = {
            0.5: ops.map_custom1(a, library.one, n_tasks, factor),
            0.25: ops.map_custom1(
                ops.scale(a, 0.5), aggml.unsafe.c_function(address), n_tasks, ctypes.pointer(factor)
            ),
            7.0: ops.map_custom3(a, b, b, library.three, n_tasks),
            3.0: ops.custom_4d("f32", 100, 301, 1, 1, [a, b], 2, library.any, n_tasks, calls),
        }
        for by, node in nodes.items():
            result = compute(backend, node, values).reshape(301, 100)
            assert np.array_equal(result, x * np.float32(by) + rows)
        assert calls.value == (7 if n_tasks == -1 else n_tasks)  # 30100 elements, 4096 to a task


def test_a_python_function_wrapped_by_ctypes_is_one_in_c(any_backend: aggml.Backend) -> None:
    threads: set[int] = set()
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
    )

    def note(dst: int, a: int, ith: int, nth: int, userdata: int) -> None:
        threads.add(threading.get_ident())
        assert (nth, userdata) == (4, 77)

    a = leaf()
    compute(any_backend, ops.map_custom1_inplace(ops.neg(a), kind(note), 4, 77), {a: X})
    assert threads


# -- failing, waiting, aborting


async def test_what_a_function_raises_is_the_cause(cpu: CPUBackend) -> None:
    a, cause, healthy = leaf(), ValueError("no such luck"), False

    def fragile(dst: Array, a: Array, *_: object) -> None:
        if not healthy:
            raise cause
        dst[...] = a

    before = ops.neg(a).set_output()
    node = ops.map_custom1(before, fragile).set_name("fragile")
    end = ops.neg(node)
    graph = Graph(end)
    await cpu.prepare(graph)
    failed, behind = cpu.run(graph, {a: X}, end), cpu.get(end)
    fine = cpu.get(a)
    for future in (failed, behind):
        with pytest.raises(aggml.DeviceError, match=r"map_custom1.*no such luck") as caught:
            await future
        assert caught.value.__cause__ is cause
        assert caught.value.tensor == "fragile"
    assert np.array_equal(await fine, X)
    healthy = True
    assert np.array_equal(await cpu.run(graph, {a: X}, end), X)


async def test_a_leaf_that_a_failed_function_wrote_in_part_is_poisoned(cpu: CPUBackend) -> None:
    a, good = leaf(), leaf("good")
    cpu.alloc([a, good])
    cpu.set(a, X)
    cpu.set(good, X)

    def broken(dst: Array, *_: object) -> None:
        dst[0] = 0
        raise RuntimeError("half way")

    graph = Graph(ops.map_custom1_inplace(ops.view_2d(a, 5, 2, 20, 0), broken))
    cpu.alloc_graph(graph)
    with pytest.raises(aggml.DeviceError):
        await cpu.graph_compute(graph)
    with pytest.raises(aggml.DeviceError):
        await cpu.get(a)
    assert np.array_equal(await cpu.get(good), X)
    await cpu.accept(a)
    await cpu.get(a)


async def test_a_result_that_is_returned_is_refused(cpu: CPUBackend) -> None:
    a = leaf()
    graph = Graph(ops.map_custom1(a, lambda dst, a, *_: a + 1))
    cpu.alloc_graph(graph)
    with pytest.raises(InvalidArgument, match="written into dst"):
        await cpu.run(graph, {a: X}, graph.ends[0])


@pytest.mark.parametrize("how", ["wait", "await", "own"])
async def test_a_function_cannot_wait_for_its_own_stream(cpu: CPUBackend, how: str) -> None:
    a, later = leaf(), leaf("later")
    cpu.alloc([a, later])
    queued: list[aggml.Future[None]] = []

    def reenter(dst: Array, *_: object) -> None:
        future = cpu.set(later, X)  # enqueuing is fine: it runs after this graph
        queued.append(future)
        if how == "wait":
            future.wait(20)
        elif how == "await":
            future.__await__().send(None)
        else:
            graph = Graph(ops.neg(a))
            cpu.alloc_graph(graph)
            cpu.run(graph, None, graph.ends[0]).wait(20)

    graph = Graph(ops.map_custom1(a, reenter))
    cpu.alloc_graph(graph)
    with pytest.raises(InvalidState, match="cannot wait"):
        await cpu.run(graph, {a: X}, graph.ends[0])
    await queued[0]
    assert np.array_equal(await cpu.get(later), X)


@pytest.mark.parametrize("between", [0, 1, 40])
async def test_a_function_cannot_wait_for_what_waits_for_its_stream(
    cpu: CPUBackend, sim: SimBackend, between: int
) -> None:
    """By one stream, or by so many, and behind so many operations that the ring has grown."""
    a, there = leaf(), leaf("there")
    sim.alloc([there])
    streams = [aggml.Stream(f"between {i}") for i in range(between)]
    reasons: list[str] = []

    def reenter(dst: Array, a: Array, *_: object) -> None:
        before = sim.set(there, 2 * X)
        assert before.wait(20)  # queued before anything waits: fine
        mark: Any = cpu.stream
        for stream in streams:
            stream.delay(0)
            stream.wait(mark)
            mark = stream
        sim.stream.wait(mark)
        for _n in range(between):
            sim.memset(there, 0)
        late = sim.set(there, X)
        with pytest.raises(InvalidState, match=r"cannot wait.*in turn") as caught:
            late.wait(20)
        reasons.append(str(caught.value))
        dst[...] = a

    graph = Graph(ops.map_custom1(a, reenter))
    cpu.alloc_graph(graph)
    assert np.array_equal(await cpu.run(graph, {a: X}, graph.ends[0]), X)
    assert np.array_equal(await sim.get(there), X)
    assert cpu.name in reasons[0]


async def test_of_two_functions_that_wait_for_each_other_one_is_refused() -> None:
    one, two = aggml.Stream("one"), aggml.Stream("two")
    begun, go = threading.Barrier(2), threading.Event()
    refused: list[str] = []

    def wait_for(futures: list[aggml.Future[Any]]) -> None:
        begun.wait(20)
        assert go.wait(20)
        try:
            assert futures[0].wait(20)
        except InvalidState as error:
            refused.append(str(error))

    for_two: list[aggml.Future[Any]] = []
    for_one: list[aggml.Future[Any]] = []
    first, second = one.call(wait_for, for_two), two.call(wait_for, for_one)
    for_one.append(one.delay(0))
    for_two.append(two.delay(0))
    go.set()
    await aggml.gather(first, second, for_one[0], for_two[0])
    assert len(refused) == 1
    assert "cannot wait" in refused[0]


async def test_a_function_may_use_another_backend_and_wait(
    cpu: CPUBackend, sim: SimBackend
) -> None:
    a, there = leaf(), leaf("there")
    inner = Graph(ops.neg(there))
    sim.alloc_graph(inner)

    def elsewhere(dst: Array, a: Array, *_: object) -> None:
        future = sim.run(inner, {there: a}, inner.ends[0])
        assert future.wait(20)
        dst[...] = future.result()

    graph = Graph(ops.map_custom1(a, elsewhere))
    cpu.alloc_graph(graph)
    assert np.array_equal(await cpu.run(graph, {a: X}, graph.ends[0]), -X)


async def test_an_abort_ends_the_graph_behind_the_function(cpu: CPUBackend) -> None:
    a, begun, go = leaf(), threading.Event(), threading.Event()
    after: list[int] = []

    def slow(dst: Array, a: Array, *_: object) -> None:
        begun.set()
        assert go.wait(20)
        dst[...] = a

    node = ops.map_custom1(ops.map_custom1(a, slow), lambda dst, a, *_: after.append(1))
    graph = Graph(node)
    cpu.alloc_graph(graph)
    future, mark = cpu.run(graph, {a: X}, node), cpu.synchronize()
    while not begun.is_set():
        await aggml.Stream("tick").delay(0.001)
    future.abort()
    assert not mark.done()
    go.set()
    with pytest.raises(aggml.Aborted):
        await future
    assert after == []
    await cpu.run(graph, {a: X}, node)
    assert after == [1]


async def test_what_is_aborted_before_its_turn_calls_nothing(cpu: CPUBackend) -> None:
    a, called = leaf(), []
    graph = Graph(ops.map_custom1(a, lambda dst, *_: called.append(1)))
    cpu.alloc_graph(graph)
    with cpu.stream.hold():
        first, second = cpu.graph_compute(graph), cpu.graph_compute(graph)
        first.abort()
    with pytest.raises(aggml.Aborted):
        await first
    await second
    assert called == [1]


# -- plans, batches, devices, the scheduler


async def test_calls_are_steps_of_a_plan(cpu: CPUBackend) -> None:
    a = leaf()
    graph = Graph(ops.neg(ops.map_custom1(ops.sqr(a), double)))
    cpu.alloc_graph(graph)
    plan = cpu.graph_plan(graph)
    assert [step.op for step in plan.plan.steps] == ["sqr", "map_custom1", "neg"]
    cpu.set(a, X)
    await plan.compute()
    assert np.array_equal(await cpu.get(graph.ends[0]), -2 * X * X)


async def test_in_a_batch_and_many_times(cpu: CPUBackend) -> None:
    n = 40
    a = y = new_tensor("f32", ne=(64, 64), name="a")
    for _ in range(6):  # products in between are run by both threads
        y = ops.mul_mat(a, y)
        y = ops.map_custom1(y, lambda dst, x, *_: np.subtract(x, 1, out=dst))
    graph = Graph(y)
    cpu.alloc_graph(graph)
    x = floats(64, 64, seed=2) / 8
    futures = []
    for _ in range(n):
        with cpu.batch():
            cpu.set(a, x)
            cpu.graph_compute(graph)
            futures.append(cpu.get(y))
    results = await aggml.gather(*futures)
    expected = x
    for _ in range(6):
        expected = expected @ x.T - 1
    assert np.allclose(results[0], expected, atol=1e-3)
    assert all(np.array_equal(results[0], r) for r in results)


async def test_over_memory_that_the_caller_names() -> None:
    stream = aggml.Stream("mine")
    a = leaf()
    y = ops.map_custom1(a, double)
    memory = {a: X.copy(), y: np.zeros_like(X)}
    plan = aggml.compile_plan(Graph(y), addresses=lambda t: memory[t].ctypes.data)
    await stream.run_plan(plan)
    assert np.array_equal(memory[y], 2 * X)


async def test_on_a_simulated_device() -> None:
    device = SimDevice("SIM", latency=1e-4, speed=1e9)
    async with device.backend() as sim:
        a = leaf()
        y = ops.neg(ops.map_custom1(ops.neg(a), double))
        graph = Graph(y)
        await sim.prepare(graph)
        assert np.array_equal(await sim.run(graph, {a: X}, y), 2 * X)


async def test_a_stream_that_is_dropped_serves_what_is_queued() -> None:
    go = threading.Event()

    def slow(dst: Array, a: Array, *_: object) -> None:
        assert go.wait(20)
        dst[...] = a

    a = leaf()
    backend: Any = aggml.get_device("CPU").backend()
    graph = Graph(ops.map_custom1(ops.map_custom1(a, slow), double))
    backend.alloc_graph(graph)
    future = backend.run(graph, {a: X}, graph.ends[0])
    del backend
    go.set()
    assert np.array_equal(await future, 2 * X)


@pytest.mark.parametrize("unsupported", [(), ("map_custom1",), ("mul",)])
async def test_split_over_devices(unsupported: tuple[str, ...], cpu: CPUBackend) -> None:
    device = SimDevice("SIM", unsupported=unsupported, alignment=64)
    async with device.backend() as gpu:
        sched = Scheduler([gpu, cpu], parallel=True)
        w = new_tensor("f32", ne=(5, 3), name="w")
        gpu.alloc([w]).usage = aggml.BufferUsage.WEIGHTS
        await gpu.set(w, X + 1)
        a = leaf().set_input()
        node = ops.map_custom1(ops.add(a, w), double)
        y = ops.mul(node, w)
        graph = Graph(y)
        futures = [await sched.submit(graph, {a: X + i}, [y]) for i in range(5)]
        for i, future in enumerate(futures):
            (result,) = await future
            assert np.array_equal(result, 2 * (X + i + X + 1) * (X + 1))
        seen: dict[str, Array] = {}
        async with sched.evaluate(graph, {a: X}) as nodes:
            async for tensor, array in nodes:
                seen[tensor.op] = array
        assert np.array_equal(seen["map_custom1"], 2 * (X + X + 1))
        sched.close()


async def test_compared_on_two_devices(cpu: CPUBackend, sim: SimBackend) -> None:
    a = leaf()
    graph = Graph(ops.neg(ops.map_custom1(a, double)))
    cpu.alloc_graph(graph)
    await cpu.set(a, X)
    found = await aggml.compare_backends(graph, cpu, sim)
    assert [node.nmse for node in found.nodes] == [0.0, 0.0]
