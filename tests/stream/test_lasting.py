"""A task that awaits a long run waits for it at once, without a turn of the loop before.

Here: that this await is a checkpoint all the same, and cancels like any other. Not here: waits for
short work (test_future.py), a loop that ends (test_endings.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from anyio.lowlevel import checkpoint
from support import assert_checkpoint, on_trio

import aggml
from aggml import Graph, ops
from aggml.stream.reactor import current_reactor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Product:
    """A product of 256 x 256 x ``columns`` elements on a backend."""

    def __init__(self, be: aggml.Backend, columns: int) -> None:
        self.be = be
        self.x = aggml.new_tensor("f32", ne=(256, columns)).set_input()
        self.y = ops.mul_mat(self.x, self.x)
        self.graph = Graph(self.y)
        be.alloc_graph(self.graph)

    def run(self) -> aggml.Future[Any]:
        x = np.ones((self.x.ne[1], 256), np.float32)
        return self.be.run(self.graph, {self.x: x}, self.y)


@pytest.fixture
async def be(cpu_device: aggml.Device) -> AsyncIterator[aggml.Backend]:
    async with cpu_device.backend(n_threads=2) as be:
        yield be


def _op(future: aggml.Future[Any]) -> Any:
    assert future._ops
    return future._ops[-1]


async def test_only_long_runs_last(be: aggml.Backend) -> None:
    assert _op(Product(be, 512).run()).lasts
    assert not _op(Product(be, 2).run()).lasts
    assert not _op(be.stream.mark()).lasts
    assert (await Product(be, 512).run() == 256).all()


async def test_awaiting_it_is_a_checkpoint_before_and_behind_its_end(be: aggml.Backend) -> None:
    future = Product(be, 512).run()
    with assert_checkpoint():
        await future
    assert future.done()
    with assert_checkpoint():
        await future


async def test_it_waits_in_its_first_turn(be: aggml.Backend) -> None:
    product = Product(be, 512)
    await product.run()
    waits = current_reactor().notifier.waiters
    found = []

    async def wait(future: aggml.Future[Any]) -> None:
        found.append(await future)

    async with anyio.create_task_group() as tasks:
        with be.stream.hold():
            tasks.start_soon(wait, product.run())
            for _ in range(2 if on_trio() else 1):  # trio runs the tasks of a turn in any order
                await checkpoint()
            assert len(waits()) == 1
            assert not found
    assert (found[0] == 256).all()


async def test_a_cancelled_scope_ends_it_before_it_waits(be: aggml.Backend) -> None:
    product = Product(be, 512)
    await product.run()
    with be.stream.hold():
        future = product.run()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await future
        assert scope.cancelled_caught
    with pytest.raises(aggml.Aborted):  # nobody else waited for it
        await future
    assert not current_reactor().notifier.waiters()
    assert (await product.run() == 256).all()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_scope_ends_it_although_it_is_done_before_the_loop_turns(
    be: aggml.Backend,
) -> None:
    """As a loop sees it whose thread got no core between the two: it runs the task a turn later."""
    product, gate = Product(be, 512), aggml.Stream("gate")
    await product.run()
    futures: list[aggml.Future[Any]] = []
    order: list[str] = []

    async def begin(first: aggml.Future[None]) -> None:
        await first
        with anyio.CancelScope() as scope:
            scope.cancel()
            be.stream.native.hold()
            futures.append(product.run())
            await futures[0]
            order.append("went on")
        assert scope.cancelled_caught
        order.append("cancelled")

    async def end(second: aggml.Future[None]) -> None:
        await second
        be.stream.native.release()
        futures[0].wait(60)  # in the same turn of the loop
        order.append("done")

    async with anyio.create_task_group() as tasks:
        with gate.hold():
            tasks.start_soon(begin, gate.mark())
            await checkpoint()
            last = gate.mark()
            tasks.start_soon(end, last)
            for _ in range(3):
                await checkpoint()
        assert last.wait(60)  # without a turn of the loop: then both tasks are due
    assert order == ["done", "cancelled"]
