"""Failures: what they poison, which work fails with them, what cures, faults at operation k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from support import N, Sum, holding, placed, ramp, sum_on
from waiting import until

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


class Injected(Exception):
    pass


async def failure(future: aggml.Future[object]) -> aggml.AggmlError:
    with pytest.raises(aggml.AggmlError) as caught:
        await future
    return caught.value


async def test_get_behind_a_failed_set_fails_with_the_same_cause_and_nobody_else(
    sim_device: SimDevice, sim: SimBackend
) -> None:
    a, b = holding(sim, ramp(), "a"), holding(sim, ramp(start=5), "b")
    cause = Injected("cable pulled")
    with sim.hold():
        sim_device.fail_at(0, "transfer", cause)
        set_, get, elsewhere = sim.set(a, ramp()), sim.get(a), sim.get(b)
    errors = [await failure(set_), await failure(get), await failure(set_)]
    assert all(e.__cause__ is cause for e in errors)
    assert errors[0] is not errors[2]  # each await raises an exception object of its own
    assert "cable pulled" in str(errors[0])
    assert (errors[0].device, errors[0].operation, errors[0].tensor) == ("SIM", "set", "a")
    assert np.array_equal(await elsewhere, ramp(start=5))


@pytest.mark.parametrize("reader", ["get", "copy", "graph_compute", "run", "another backend"])
async def test_what_reads_a_poisoned_storage_fails_without_running(
    sim_device: SimDevice, sim: SimBackend, cpu: CPUBackend, reader: str
) -> None:
    s = sum_on(sim)
    sim.set(s.b, ramp())
    twin, host = holding(sim, ramp(start=7)), holding(cpu, ramp(start=8))
    cause = Injected()
    sim_device.fail_at(0, "transfer", cause)
    sim.set(s.a, ramp())
    start: dict[str, Callable[[], aggml.Future[Any]]] = {
        "get": lambda: sim.get(s.a),
        "copy": lambda: sim.copy(s.a, twin),
        "graph_compute": lambda: sim.graph_compute(s.graph),
        "run": lambda: sim.run(s.graph, {s.b: ramp()}, s.y),
        "another backend": lambda: sim.copy(s.a, host, to=cpu),
    }
    future = start[reader]()
    assert (await failure(future)).__cause__ is cause
    poisoned = {
        "copy": (sim, twin),
        "graph_compute": (sim, s.y),
        "run": (sim, s.y),
        "another backend": (cpu, host),
    }
    if reader in poisoned:  # and so on: an operation that failed poisons its own target, too
        be, tensor = poisoned[reader]
        assert (await failure(be.get(tensor))).__cause__ is cause
        await be.set(tensor, ramp())
        assert np.array_equal(await be.get(tensor), ramp())


@pytest.mark.parametrize("cure", ["set", "memset", "copy", "accept", "run", "copy across"])
async def test_a_full_write_cures(
    sim_device: SimDevice, sim: SimBackend, cpu: CPUBackend, cure: str
) -> None:
    s = sum_on(sim)
    sim.set(s.b, ramp())
    good, host = holding(sim, ramp()), holding(cpu, ramp())
    sim_device.fail_at(0, "transfer")
    await failure(sim.set(s.a, ramp(start=3)))
    await failure(sim.get(s.a))
    if cure == "run":
        assert np.array_equal(await sim.run(s.graph, {s.a: ramp()}, s.y), 2 * ramp())
    else:
        await {
            "set": lambda: sim.set(s.a, ramp()),
            "memset": lambda: sim.memset(s.a, 0),
            "copy": lambda: sim.copy(good, s.a),
            "accept": lambda: sim.accept(s.a),
            "copy across": lambda: cpu.copy(host, s.a, to=sim),
        }[cure]()
    got = await sim.get(s.a)
    if cure not in ("accept", "memset"):
        assert np.array_equal(got, ramp())


async def test_accept_is_ordered(sim_device: SimDevice, sim: SimBackend) -> None:
    a = holding(sim, ramp())
    with sim.hold():
        sim_device.fail_at(0, "transfer")
        set_, before, accepted, after = sim.set(a, ramp()), sim.get(a), sim.accept(a), sim.get(a)
    await failure(set_)
    await failure(before)
    await accepted
    await after


async def test_a_write_of_a_view_poisons_the_storage_below_it(
    sim_device: SimDevice, sim: SimBackend
) -> None:
    a = holding(sim, ramp())
    half = ops.view_1d(a, N // 2, 0)
    sim_device.fail_at(0, "transfer")
    await failure(sim.set(half, ramp(N // 2)))
    await failure(sim.get(a))
    await sim.set(half, ramp(N // 2))  # a write of a part of the tensor does not lift the poison
    await failure(sim.get(a))
    await sim.set(a, ramp())
    assert np.array_equal(await sim.get(half), ramp(N // 2))


async def test_a_set_with_offset_that_never_began_spoils_nothing(be: aggml.Backend) -> None:
    """An operation aborted before it started wrote no byte, so its tensor is not poisoned."""
    a = holding(be, ramp())
    with be.stream.hold():
        partial = be.set(a, ramp(4), offset=16)
        partial.abort()
    with pytest.raises(aggml.Aborted):
        await partial
    assert np.array_equal(await be.get(a), ramp())


async def test_a_set_with_offset_of_poisoned_data_is_no_cure(
    sim_device: SimDevice, sim: SimBackend
) -> None:
    a = holding(sim, ramp())
    sim_device.fail_at(0, "transfer")
    await failure(sim.set(a, ramp()))
    await sim.set(a, ramp(4), offset=16)
    await failure(sim.get(a))
    await sim.set(a, ramp(), offset=0)  # offset 0 and the whole size: all bytes are written
    assert np.array_equal(await sim.get(a), ramp())


def kv_graph(rows: int = 4) -> tuple[aggml.Tensor, aggml.Tensor, aggml.Tensor, Graph]:
    """set_rows of (N, 1) values into a cache of (N, rows), a leaf."""
    cache = aggml.new_tensor("f32", ne=(N, rows), name="cache")
    values = aggml.new_tensor("f32", ne=(N, 1), name="values")
    row = aggml.new_tensor("i64", ne=(1,), name="row")
    return cache, values, row, Graph(ops.set_rows(cache, values, row))


async def test_a_bad_row_is_found_before_the_first_byte(be: aggml.Backend) -> None:
    cache, values, row, graph = kv_graph()
    be.alloc_graph(graph)
    contents = ramp(4 * N).reshape(4, N)
    await be.set(cache, contents)
    for bad in (-1, 4, 1 << 40):
        be.set(values, ramp())
        be.set(row, np.array([bad], np.int64))
        error = await failure(be.graph_compute(graph))
        assert isinstance(error, aggml.OutOfBounds)
        assert str(bad) in str(error)
        assert np.array_equal(await be.get(cache), contents)  # neither poisoned nor changed
    be.set(row, np.array([2], np.int64))
    await be.graph_compute(graph)
    contents[2] = ramp()
    assert np.array_equal(await be.get(cache), contents)


async def test_an_aborted_write_into_a_cache_leaves_it_whole(be: aggml.Backend) -> None:
    cache, values, row, graph = kv_graph()
    be.alloc_graph(graph)
    contents = ramp(4 * N).reshape(4, N)
    await be.set(cache, contents)
    with be.stream.hold():
        be.set(values, ramp())
        be.set(row, np.array([1], np.int64))
        compute = be.graph_compute(graph)
        compute.abort()
    with pytest.raises(aggml.Aborted):
        await compute
    assert np.array_equal(await be.get(cache), contents)


async def test_cpy_into_a_part_of_a_leaf_and_a_failed_source(
    sim_device: SimDevice, sim: SimBackend
) -> None:
    cache = aggml.new_tensor("f32", ne=(N, 4), name="cache")
    x = aggml.new_tensor("f32", ne=(N,), name="x")
    graph = Graph(ops.cpy(x, ops.view_1d(cache, N, 4 * N)))
    sim.alloc_graph(graph)
    contents = ramp(4 * N).reshape(4, N)
    await sim.set(cache, contents)
    sim_device.fail_at(0, "transfer")
    sim.set(x, ramp())
    await failure(sim.graph_compute(graph))
    assert np.array_equal(await sim.get(cache), contents)  # the kernel never ran
    await sim.set(x, ramp())
    await sim.graph_compute(graph)
    contents[1] = ramp()
    assert np.array_equal(await sim.get(cache), contents)


async def test_bad_index_of_get_rows(be: aggml.Backend) -> None:
    table = aggml.new_tensor("f32", ne=(N, 4), name="table")
    ids = aggml.new_tensor("i32", ne=(2,), name="ids")
    y = ops.get_rows(table, ids).set_name("y")
    graph = Graph(y)
    be.alloc_graph(graph)
    contents = ramp(4 * N).reshape(4, N)
    be.set(table, contents)
    error = await failure(be.run(graph, {ids: np.array([0, 7], np.int32)}, y))
    assert isinstance(error, aggml.OutOfBounds)
    assert isinstance(error, IndexError)
    assert "7" in str(error)
    got = await be.run(graph, {ids: np.array([3, 1], np.int32)}, y)
    assert np.array_equal(got, contents[[3, 1]])


# -- what synchronize raises


async def test_synchronize_raises_the_failures_that_nobody_saw(be: aggml.Backend) -> None:
    a = placed(be)
    await be.synchronize()
    seen, unseen = Injected("seen"), Injected("unseen")
    first = be.stream.fail(seen)
    be.stream.fail(unseen, writes=[a])
    be.get(a)  # it fails with the read, so synchronize does not report it separately
    await failure(first)
    with pytest.raises(ExceptionGroup) as caught:
        await be.synchronize()
    (only,) = caught.value.exceptions
    assert only.__cause__ is unseen
    assert be.device.name in str(caught.value)
    await be.synchronize()  # each failure is reported once


async def test_synchronize_may_be_awaited_again_with_the_same_outcome(be: aggml.Backend) -> None:
    be.stream.fail(Injected("unseen"))
    done = be.synchronize()
    outcomes = []
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as caught:
            await done
        outcomes.append([e.__cause__ for e in caught.value.exceptions])
    assert outcomes[0] == outcomes[1]
    await be.synchronize()


async def test_synchronize_does_not_tell_of_aborts(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        be.set(s.a, ramp())
        be.set(s.b, ramp())
        be.graph_compute(s.graph).abort()
    await be.synchronize()


async def test_closing_logs_what_nobody_saw(
    device: aggml.Device, caplog: pytest.LogCaptureFixture
) -> None:
    async with device.backend() as be:
        be.stream.fail(Injected("nobody looked"))
    assert "nobody looked" in caplog.text


# -- a lost device


async def test_a_lost_device_fails_everything_with_the_first_error(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    first = Injected("fell off the bus")
    with be.stream.hold():
        queued = [be.get(a), be.set(a, ramp()), be.memset(a, 1)]
        be.stream.lose(first)
        be.stream.lose(Injected("later"))
    for future in queued:
        assert (await failure(future)).__cause__ is first
    with pytest.raises(aggml.AggmlError, match="lost"):
        be.get(a)
    with anyio.fail_after(60):
        await be.aclose()
    assert be.closed


async def test_losing_the_device_ends_a_delay_under_way(be: aggml.Backend) -> None:
    first = Injected("fell off the bus")
    delay = be.stream.delay(1000)
    with anyio.fail_after(60):
        await until(lambda: delay.times.started is not None)
        be.stream.lose(first)
        assert (await failure(delay)).__cause__ is first


# -- faults at the k-th operation, for all k


async def steps(sim: SimBackend, s: Sum, twin: aggml.Tensor) -> list[aggml.Future[Any]]:
    """3 sets, 1 compute, 2 gets, a run (2 sets, compute, get): 10 operations that can fail."""
    x = ramp()
    futures: list[aggml.Future[Any]] = []
    with sim.hold():
        futures += [sim.set(s.a, x), sim.set(s.b, x), sim.set(twin, x)]
        futures += [sim.graph_compute(s.graph), sim.get(s.y), sim.get(twin), s.run(sim, x + 1, x)]
    for future in futures:
        await future.wait_until_done()
    return futures


@pytest.mark.parametrize("k", range(11))
async def test_a_fault_at_the_kth_operation(k: int) -> None:
    device = SimDevice("SIM")
    cause = Injected(f"operation {k}")
    async with device.backend() as sim:
        s, twin = sum_on(sim), placed(sim)
        device.fail_at(k, "any", cause)
        futures = await steps(sim, s, twin)
        errors = [future.exception() for future in futures]
        readers = {0: {0, 3, 4}, 1: {1, 3, 4}, 2: {2, 5}, 3: {3, 4}, 4: {4}, 5: {5}}
        failed = {i for i, error in enumerate(errors) if error is not None}
        # The run (6) sets its inputs itself. It fails only if one of its own four operations does.
        assert failed == readers.get(k, {6} if k < 10 else set())
        assert all(error is None or error.__cause__ is cause for error in errors)
        await sim.synchronize()  # raises nothing: all failures were asked for above
        if k < 10:
            assert np.array_equal(await s.run(sim, ramp(), ramp()), 2 * ramp())
        await steps(sim, s, twin)
        again = await steps(sim, s, twin)
        assert all(future.exception() is None for future in again)
        assert np.array_equal(again[-1].result(), 2 * ramp() + 1)


@pytest.mark.parametrize("k", range(5))
async def test_a_fault_at_the_kth_allocation(k: int) -> None:
    device = SimDevice("SIM")
    async with device.backend() as sim:
        device.fail_at(k, "alloc", Injected())
        failed = 0
        for _ in range(5):
            try:
                s = sum_on(sim)
            except MemoryError as error:
                failed += isinstance(error.__cause__, Injected)
                continue
            assert np.array_equal(await s.run(sim, ramp(), ramp()), 2 * ramp())
        assert failed == 1
