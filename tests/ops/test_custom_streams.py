"""Functions of the user that fail, wait or are aborted; in plans, on devices, in schedulers.

Not here: the operands that they get, functions in C (test_custom.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import floats
from ops.doubling import Array, X, double, leaf

import aggml
from aggml import Graph, InvalidArgument, InvalidState, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


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
    with pytest.raises(InvalidArgument, match="write its result into dst"):
        await cpu.run(graph, {a: X}, graph.ends[0])


@pytest.mark.parametrize("how", ["wait", "await", "own"])
async def test_a_function_cannot_wait_for_its_own_stream(cpu: CPUBackend, how: str) -> None:
    a, later = leaf(), leaf("later")
    cpu.alloc([a, later])
    queued: list[aggml.Future[None]] = []

    def reenter(dst: Array, *_: object) -> None:
        future = cpu.set(later, X)  # enqueuing is allowed: the set runs after this graph
        queued.append(future)
        if how == "wait":
            future.wait(60)
        elif how == "await":
            future.__await__().send(None)
        else:
            graph = Graph(ops.neg(a))
            cpu.alloc_graph(graph)
            cpu.run(graph, None, graph.ends[0]).wait(60)

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
    """The wait goes through ``between`` other streams, and past so many operations."""
    a, there = leaf(), leaf("there")
    sim.alloc([there])
    streams = [aggml.Stream(f"between {i}") for i in range(between)]
    reasons: list[str] = []

    def reenter(dst: Array, a: Array, *_: object) -> None:
        before = sim.set(there, 2 * X)
        # it was queued before any stream waits for this function, so it can end
        assert before.wait(60)
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
            late.wait(60)
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
        begun.wait(60)
        assert go.wait(60)
        try:
            assert futures[0].wait(60)
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
        assert future.wait(60)
        dst[...] = future.result()

    graph = Graph(ops.map_custom1(a, elsewhere))
    cpu.alloc_graph(graph)
    assert np.array_equal(await cpu.run(graph, {a: X}, graph.ends[0]), -X)


async def test_an_abort_ends_the_graph_behind_the_function(cpu: CPUBackend) -> None:
    a, begun, go = leaf(), threading.Event(), threading.Event()
    after: list[int] = []

    def slow(dst: Array, a: Array, *_: object) -> None:
        begun.set()
        assert go.wait(60)
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
    for _ in range(6):  # both threads run the products between the custom nodes
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
        assert go.wait(60)
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
        gpu.alloc([w], usage="weights")
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
