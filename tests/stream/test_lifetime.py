"""Lifetime: objects dropped while work needs them, loops that end first.

Not here: backends that close (test_closing.py), processes that end (process/test_processes.py).
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import trio
import trio.testing
from support import N, holding, placed, ramp, sum_on
from waiting import until

import aggml

if TYPE_CHECKING:
    from conftest import AnyDevice

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend, SimDevice


class Watched(np.ndarray[Any, Any]):
    """An array whose end can be watched by a weak reference."""


def watched(n: int = N) -> tuple[Watched, weakref.ref[Watched]]:
    array = ramp(n).view(Watched)
    return array, weakref.ref(array)


async def test_dropping_the_source_array(be: aggml.Backend) -> None:
    a = placed(be)
    x, alive = watched()
    with be.stream.hold():
        be.set(a, x)
        del x
        gc.collect()
        assert alive() is not None  # borrowed until the operation is done
    assert np.array_equal(await be.get(a), ramp())
    be.stream.native.release_finished()
    assert alive() is None


async def test_dropping_the_future_and_the_array_it_would_give(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    with be.stream.hold():
        be.get(a)
        gc.collect()
        after = be.get(a)
    assert np.array_equal(await after, ramp())


async def test_dropping_the_tensor_and_its_buffer(be: aggml.Backend) -> None:
    a = placed(be)
    buffer = a.buffer
    assert buffer is not None
    alive, memory = weakref.ref(a), weakref.ref(buffer)
    with be.stream.hold():
        be.set(a, ramp())
        got = be.get(a)
        del a, buffer
        gc.collect()
        # the bytes stay valid: either the memory or a copy of it is alive
        assert memory() is not None or alive() is None
    assert np.array_equal(await got, ramp())
    be.stream.native.release_finished()
    gc.collect()
    assert alive() is None
    assert memory() is None


async def test_dropping_graph_memory_tensors_and_all(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        del s
        gc.collect()
    assert np.array_equal(await run, 2 * ramp())


async def test_dropping_the_backend_with_work_in_flight(device: AnyDevice) -> None:
    be = device.backend()
    a = holding(be, ramp())
    native = be.stream.native
    native.hold()
    got = be.get(a)
    gone = weakref.ref(be)
    del be
    gc.collect()
    assert gone() is None
    assert not got.done()
    native.release()
    del native
    assert np.array_equal(await got, ramp())


async def test_dropping_everything_with_work_in_flight(device: AnyDevice) -> None:
    x, alive = watched(1 << 16)
    be = device.backend()
    be.stream.delay(0.02)
    be.set(placed(be, 1 << 16), x)
    del be, x
    await until(lambda: alive() is None)  # nothing tells of the end of an array


async def test_dropping_a_backend_that_is_held_lets_go_of_its_arrays(device: AnyDevice) -> None:
    x, alive = watched(1 << 16)
    be = device.backend()
    be.stream.native.hold()
    be.set(placed(be, 1 << 16), x)
    del be, x
    await until(lambda: alive() is None)  # nothing tells of the end of an array


async def test_a_stream_that_ran_dry_holds_no_arrays(be: aggml.Backend) -> None:
    a = placed(be, 1 << 16)
    x, alive = watched(1 << 16)
    be.stream.delay(0.001)
    be.set(a, x)
    del x
    await until(lambda: alive() is None)  # nothing tells of the end of an array


async def test_an_awaited_run_lets_go_of_its_inputs(be: aggml.Backend) -> None:
    s = sum_on(be)
    x, alive = watched()
    await be.run(s.graph, {s.a: x, s.b: ramp()}, s.y)
    del x
    await until(lambda: alive() is None)  # nothing tells of the end of an array


async def test_closing_a_buffer_with_work_in_flight(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    buffer = a.buffer
    assert buffer is not None
    with be.stream.hold():
        got = be.get(a)
        buffer.close()
        assert "closed" in repr(buffer)
        with pytest.raises(aggml.NotAllocated):
            be.get(a)
    assert np.array_equal(await got, ramp())
    be.alloc([a])
    await be.set(a, ramp(start=1))
    assert np.array_equal(await be.get(a), ramp(start=1))


async def test_closing_graph_memory_with_work_in_flight(be: aggml.Backend) -> None:
    s = sum_on(be)
    mem = s.graph.memory
    assert mem is not None
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        mem.close()
        with pytest.raises(aggml.NotAllocated):
            s.run(be, ramp(), ramp())
    assert np.array_equal(await run, 2 * ramp())
    be.alloc_graph(s.graph)
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


# -- loops that end with work pending


@pytest.mark.parametrize("second", ["asyncio", "trio"])
@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_a_loop_closed_with_work_pending_then_another(
    be: aggml.Backend, first: str, second: str
) -> None:
    s = sum_on(be)
    futures: list[aggml.Future[object]] = []

    async def leave() -> None:
        futures.append(be.get(s.a))
        futures.append(s.run(be, ramp(), ramp()))
        futures[0].add_done_callback(lambda _: None)
        with anyio.move_on_after(0.001):
            await futures[0]

    async def again() -> None:
        await futures[0]
        assert np.array_equal(await futures[1], 2 * ramp())  # type: ignore[arg-type]
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())

    be.stream.native.hold()
    anyio.run(leave, backend=first)
    gc.collect()
    be.stream.native.release()
    anyio.run(again, backend=second)


def test_a_loop_of_asyncio_closed_by_hand_with_a_task_that_waits(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    loop = asyncio.new_event_loop()

    async def wait() -> object:
        return await got

    be.stream.native.hold()
    got = be.get(a)
    task = loop.create_task(wait())
    for _ in range(3):  # turns in which the task comes to its wait
        loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    be.stream.native.release()
    assert got.wait(60)
    assert np.array_equal(got.result(), ramp())


def test_a_trio_run_that_crashes_while_tasks_wait(be: aggml.Backend) -> None:
    s = sum_on(be)

    async def crash() -> None:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await run

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            raise RuntimeError("crash")

    be.stream.native.hold()
    run = s.run(be, ramp(), ramp())
    with pytest.raises(ExceptionGroup):
        trio.run(crash)
    be.stream.native.release()
    assert run.wait(60)
    assert isinstance(run.exception(), aggml.Aborted)  # aborted: its last waiter was cancelled


async def test_many_short_lived_backends_with_work_in_flight(sim_device: SimDevice) -> None:
    for _ in range(50):
        be = sim_device.backend()
        s = sum_on(be)
        s.run(be, ramp(), ramp())
        del be, s
    gc.collect()


async def test_a_reference_cycle_through_a_future_is_collected(be: aggml.Backend) -> None:
    class Node:
        future: object

    node = Node()
    alive = weakref.ref(node)
    with be.stream.hold():
        future = be.get(holding_later(be))
        called = anyio.Event()
        future.add_done_callback(lambda _, node=node: called.set())  # type: ignore[misc]
        node.future = future
        del node
    await (
        called.wait()
    )  # The await of the Future may return first, while the reactor still holds the callback.
    del future
    gc.collect()
    assert alive() is None


def holding_later(be: aggml.Backend) -> aggml.Tensor:
    a = placed(be)
    be.memset(a, 0)
    return a


async def test_sim_and_cpu_are_left_in_any_order(sim: SimBackend, cpu: CPUBackend) -> None:
    a, b = holding(sim, ramp()), placed(cpu)
    with sim.hold():
        copied = sim.copy(a, b, to=cpu)
        cpu.close()
        sim.close()
    await copied
    await cpu.aclose()
    await sim.aclose()
