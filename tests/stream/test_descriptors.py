"""A process without file descriptors: an await raises OSError, and no work is aborted."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from support import in_threads, ramp, sum_on

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aggml.devices.sim import SimBackend

WAYS: dict[str, Callable[[aggml.Future[Any]], Awaitable[Any]]] = {}


def way(function: Callable[[aggml.Future[Any]], Awaitable[Any]]) -> None:
    WAYS[function.__name__] = function


@way
async def awaits(future: aggml.Future[Any]) -> None:
    await future


@way
async def shields(future: aggml.Future[Any]) -> None:
    await future.shield()


@way
async def gathers(future: aggml.Future[Any]) -> None:
    await aggml.gather(future)


@way
async def completes(future: aggml.Future[Any]) -> None:
    async for _ in aggml.as_completed([future]):
        pass


@way
async def calls_back(future: aggml.Future[Any]) -> None:
    future.add_done_callback(print)


@way
async def blocks(future: aggml.Future[Any]) -> None:
    future.wait()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process can open no further file in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open(os.devnull, os.O_RDONLY)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", WAYS)
def test_waiting_without_descriptors_is_no_cancellation(name: str, loop: str) -> None:
    async def main(be: SimBackend) -> None:
        s = sum_on(be)
        be.stream.native.hold()
        future = s.run(be, ramp(), ramp())
        with no_descriptors(), pytest.raises(OSError, match="descriptor") as caught:
            await WAYS[name](future)
        assert isinstance(caught.value, aggml.TooManyFiles)
        assert caught.value.errno
        assert not future.done()
        be.stream.native.release()
        with anyio.fail_after(60):
            assert np.array_equal(await future, 2 * ramp())

    # a loop of its own, which has no reactor yet
    be = SimDevice("SIM").backend()
    in_threads([lambda: anyio.run(main, be, backend=loop)])
    be.close()


async def test_a_wait_that_failed_leaves_the_last_waiter_its_power(sim: SimBackend) -> None:
    s = sum_on(sim)
    with sim.hold():
        future = s.run(sim, ramp(), ramp())

        def waits() -> None:
            async def main() -> None:
                with no_descriptors(), pytest.raises(OSError, match="descriptor"):
                    await future

            anyio.run(main)

        in_threads([waits])
        with anyio.move_on_after(0):
            await future
    await future.wait_until_done()
    assert isinstance(future.exception(), aggml.Aborted)
