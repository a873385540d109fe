"""Waiting for something that sets no event: a counter, a line of metrics, the end of an object.

A test that could wait for an event, a Future or a hold of a stream does that instead. Here are the
only loops of the tests that look again after a pause; each has an end. Not here: turns of an event
loop (``asyncio.sleep(0)``), which pass no time.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until", "wait_until"]


async def until(holds: Callable[[], object], seconds: float = 120, pause: float = 0.001) -> None:
    """Wait until the condition holds, without taking a core meanwhile.

    Args:
        holds: the condition, a function that may be async.
        seconds: after this time it fails.
        pause: seconds between two looks.

    Raises:
        TimeoutError: it did not hold after so many seconds.
    """
    with anyio.fail_after(seconds):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await anyio.sleep(pause)


def wait_until(holds: Callable[[], object], seconds: float = 120, pause: float = 0.005) -> None:
    """`until` for tests without a loop.

    Raises:
        TimeoutError: it did not hold after so many seconds.
    """
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"still not, after {seconds} s")
        time.sleep(pause)
