"""On trio, a task that waits alone waits for the descriptor itself, in place of the reactor's pump.

Here: that nobody is forgotten meanwhile. Not here: the end of a run with tasks that nobody leads
(test_endings.py), what every wait does (test_future.py, test_cancellation.py).
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from aggml.stream.reactor import known_reactor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import aggml
    from aggml.stream.reactor import Reactor

pytestmark = pytest.mark.parametrize("anyio_backend", ["trio"])


class Held:
    """A stream on which nothing runs, and an operation of it, until `end`."""

    def __init__(self, be: aggml.Backend) -> None:
        self.be = be
        self._stack = ExitStack()
        self._stack.enter_context(be.stream.hold())
        self.future = be.stream.mark()

    def end(self) -> None:
        self._stack.close()


@pytest.fixture
async def backends(
    anyio_backend: str, cpu_device: aggml.Device
) -> AsyncIterator[tuple[aggml.Backend, aggml.Backend]]:
    async with cpu_device.backend(n_threads=1) as a, cpu_device.backend(n_threads=1) as b:
        await _rest(a)
        yield a, b


async def _wait(future: aggml.Future[Any], done: Callable[[], object] = lambda: None) -> None:
    await future
    done()


async def _rest(be: aggml.Backend) -> None:
    """Let the pump find that nobody waits any more: then it rests."""
    for _ in range(2):  # the first time the pump may not have begun when the task waits
        held = Held(be)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait, held.future)
            await wait_all_tasks_blocked()
            held.end()
        await wait_all_tasks_blocked()
    assert _reactor().resting is not None


def _reactor() -> Reactor:
    reactor = known_reactor()
    assert reactor is not None
    return reactor


async def test_a_task_alone_leads(backends: tuple[aggml.Backend, aggml.Backend]) -> None:
    for _ in range(3):
        held = Held(backends[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait, held.future)
            await wait_all_tasks_blocked()
            assert _reactor().led
            assert _reactor().resting is not None
            held.end()
        assert not _reactor().led


@pytest.mark.parametrize("first", [0, 1])
async def test_who_waits_beside_it_is_woken(
    first: int, backends: tuple[aggml.Backend, aggml.Backend]
) -> None:
    both, woken = [Held(be) for be in backends], []
    async with trio.open_nursery() as nursery:
        for i, held in enumerate(both):
            nursery.start_soon(_wait, held.future, lambda i=i: woken.append(i))
            await wait_all_tasks_blocked()
        assert _reactor().led
        for i in (first, 1 - first):
            both[i].end()
            while i not in woken:
                await trio.lowlevel.checkpoint()
            assert len(woken) == 1 + (i != first)


async def test_another_takes_over_when_it_is_cancelled(
    backends: tuple[aggml.Backend, aggml.Backend],
) -> None:
    a, b = (Held(be) for be in backends)
    scope = trio.CancelScope()

    async def lead() -> None:
        with scope:
            await a.future

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await wait_all_tasks_blocked()
        assert _reactor().led
        nursery.start_soon(_wait, b.future)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert not _reactor().led
        b.end()
    assert scope.cancelled_caught
    a.end()


async def test_a_callback_is_made_although_no_task_waits(
    backends: tuple[aggml.Backend, aggml.Backend],
) -> None:
    held, called = Held(backends[0]), trio.Event()
    held.future.add_done_callback(lambda _: called.set())
    await wait_all_tasks_blocked()
    assert _reactor().resting is None
    held.end()
    await called.wait()


async def test_a_callback_beside_a_leader(backends: tuple[aggml.Backend, aggml.Backend]) -> None:
    a, b = (Held(be) for be in backends)
    called = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_wait, a.future)
        await wait_all_tasks_blocked()
        assert _reactor().led
        b.future.add_done_callback(lambda _: called.set())
        b.end()
        await called.wait()
        a.end()


@pytest.mark.parametrize("seed", range(20))
async def test_any_order_of_ends_and_cancellations(
    seed: int, backends: tuple[aggml.Backend, aggml.Backend]
) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        both = [Held(be) for be in backends]
        scopes = [trio.CancelScope() for _ in range(5)]
        woken = 0

        async def wait(scope: trio.CancelScope, future: aggml.Future[Any]) -> None:
            nonlocal woken
            with scope:
                await future
            woken += 1

        steps: list[Callable[[], object]] = [held.end for held in both]
        steps += [scope.cancel for scope in scopes[:2]]
        rng.shuffle(steps)
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(wait, scope, rng.choice(both).future)
                if rng.random() < 0.5:
                    await wait_all_tasks_blocked()
            for step in steps:
                step()
                for _ in range(rng.randrange(4)):
                    await trio.lowlevel.checkpoint()
        assert woken == len(scopes)


def test_a_leader_outlives_the_pump(anyio_backend: str, cpu_device: aggml.Device) -> None:
    """A system task that is shielded leads when the run ends; another one ends what it awaits."""
    seen: list[str] = []

    async def main() -> None:
        be = cpu_device.backend(n_threads=1)
        await _rest(be)
        held, reactor = Held(be), _reactor()

        async def lead() -> None:
            with trio.CancelScope(shield=True):
                await held.future
                seen.append("led")

        async def end() -> None:
            with trio.CancelScope(shield=True):
                while reactor.pumped:
                    await trio.lowlevel.checkpoint()
                held.end()
                await be.stream.mark()
                seen.append("ended")
                await be.aclose()

        trio.lowlevel.spawn_system_task(lead)
        await wait_all_tasks_blocked()
        assert reactor.led
        trio.lowlevel.spawn_system_task(end)

    trio.run(main)
    assert sorted(seen) == ["ended", "led"]
