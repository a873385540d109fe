"""Tasks that wait at the end of a trio run, when the system task that runs callbacks is gone.

Then the waiting tasks read the reactor's descriptor themselves. A task that empties it must let the
other tasks check again. Not here: other events at the end of a run (test_endings.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from aggml.stream.waits import wait_op

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    import aggml


class _Behind:
    """An operation that is done as soon as ``other`` is. Its `done` blocks the loop until then."""

    lasts = False

    def __init__(self, other: aggml.Future[None]) -> None:
        self.other = other

    def done(self) -> bool:
        return self.other.wait(60)

    def __await__(self) -> Generator[Any, Any, None]:
        op: Any = self
        return wait_op(op)


@pytest.mark.parametrize("waiting", [1, 3])
def test_a_task_that_calls_back_what_is_done_wakes_who_waits_for_it(
    cpu_device: aggml.Device, waiting: int
) -> None:
    """The descriptor was signalled for the others, and is empty when they come to read it."""
    be, held, ended = cpu_device.backend(n_threads=1), [], []

    async def stream() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            with trio.CancelScope(shield=True) as scope:
                be.stream.native.hold()
                future = be.stream.delay(0)

                async def wait() -> None:
                    await future
                    ended.append(1)

                async def call_back() -> None:
                    threading.Timer(0.01, be.stream.native.release).start()
                    await _Behind(future)

                async with trio.open_nursery() as nursery:
                    for _ in range(waiting):
                        nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.deadline = trio.current_time() + 20
                    nursery.start_soon(call_back)

    async def main() -> None:
        held.append(stream())
        await anext(held[0])

    trio.run(main)
    assert len(ended) == waiting
    be.close()
