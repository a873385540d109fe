"""Neighbours: a stage's connections to the previous stage and to the next one.

The driver comes before the first stage and after the last one. A step goes from stage to stage
without passing the driver. If a connection ends, the stage closes its other ones, too, so that the
driver learns of it at once, whichever stage died. Here: steps in, results out, cancelling. Not
here: how a step is computed (stage.py), the connections themselves (link.py).
"""

from __future__ import annotations

import asyncio
import pickle
import time
from typing import TYPE_CHECKING, Any

from aggml import Aborted, AggmlError
from aggml.ray.errors import StageLost
from aggml.ray.frames import MessageKind
from aggml.ray.link import Link, Role, connect, listen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aggml.ray.frames import Frame
    from aggml.ray.step import PipelineStep

__all__ = ["Neighbours"]

Array = Any  # numpy's, of one of several types


class Neighbours:
    """The connections of one stage. All of it runs on one asyncio loop.

    Args:
        number: of the stage; -1 means the driver.
        last: whether this is the last stage, whose results go to the driver.
        compute: computes a step, from the results of the previous stage to those of this one.
        tell: called for each step that has left, with its number, when it arrived and when it left.
    """

    def __init__(
        self,
        number: int,
        *,
        last: bool,
        compute: Callable[[PipelineStep, list[Array] | None], Awaitable[list[Array]]],
        tell: Callable[[int, float, float], None],
    ) -> None:
        self._number = number
        self._last = last
        self._compute = compute
        self._tell = tell
        self._epoch = -1
        self._server: Any = None
        self._key = b""
        self._links: dict[Role, Link] = {}
        self._clocks: set[Link] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the step's number

    async def listen(self, host: str, key: bytes) -> tuple[str, int]:
        """Listen on an address of this node; returns it with its port."""
        if self._server is None:
            self._key = key
            self._server, self._port = await listen(host, key, self, self._accept)
        return host, self._port

    def begin(self, epoch: int) -> None:
        """Drop the connections of older epochs, and the steps that came over them."""
        self._epoch = epoch
        self._drop()

    async def connect(self, epoch: int, address: tuple[str, int]) -> None:
        """Connect to the next stage.

        Raises:
            StageLost: it does not listen any more.
        """
        try:
            # The next stage takes steps from here, so for it this side is the one before.
            found = await connect(address, self._key, self, Role.BEFORE, epoch)
        except OSError as error:
            behind = self._number + 1
            raise StageLost(
                f"stage {self._number} cannot connect to stage {behind}: {error}", behind
            ) from error
        if epoch == self._epoch:
            self._links[Role.AFTER] = found
        else:
            found.close()

    async def close(self) -> None:
        """Close all connections, cancel the steps and stop listening."""
        self._drop()
        if self._server is not None:
            self._server.close()

    def _drop(self) -> None:
        links, self._links = list(self._links.values()), {}
        for one in [*links, *self._clocks]:
            one.close()
        self._clocks.clear()
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    # -- incoming messages

    def _accept(self, found: Link) -> None:
        assert found.role is not None
        if found.role is Role.CLOCK:
            self._clocks.add(found)
        elif found.epoch == self._epoch and found.role not in self._links:
            self._links[found.role] = found
        else:
            found.close()

    def on_frame(self, link: Link, frame: Frame) -> None:
        """See `aggml.ray.link.Peer`."""
        if frame.kind is MessageKind.STEP:
            number, step = frame.value
            now = time.perf_counter()
            task = asyncio.get_running_loop().create_task(
                self._step(number, step, frame.arrays, now)
            )
            self._tasks[number] = task
            task.add_done_callback(lambda done: self._finish_step(number, done))
        elif frame.kind is MessageKind.CANCEL and frame.value in self._tasks:
            self._tasks[frame.value].cancel()
        elif frame.kind is MessageKind.LOST:
            self._lose(*frame.value)
        else:  # it is about a step that has left this stage: a later stage or the driver has it
            self._pass(frame)

    def _pass(self, frame: Frame) -> None:
        after = self._links.get(Role.AFTER)
        if after is not None and not (self._last and frame.kind is MessageKind.CANCEL):
            after.send(frame.kind, frame.value, frame.arrays)

    def on_end(self, link: Link) -> None:
        """See `aggml.ray.link.Peer`."""
        self._clocks.discard(link)
        if self._links.get(Role.BEFORE) is link:
            self._lose(self._number - 1, "its connection ended")
        elif self._links.get(Role.AFTER) is link:
            self._lose(-1 if self._last else self._number + 1, "its connection ended")

    def _lose(self, number: int, why: str) -> None:
        """Report a lost stage in both directions, and close all connections."""
        for one in self._links.values():
            one.send(MessageKind.LOST, (number, why))
        self._drop()

    # -- outgoing messages

    async def _step(
        self, number: int, step: PipelineStep, before: list[Array], came: float
    ) -> None:
        kind, arrays = MessageKind.DONE, []
        value: object = number
        try:
            arrays = await self._compute(step, before or None)
            if not self._last:
                kind, value = MessageKind.STEP, (number, step)
        except Exception as error:
            kind, value = MessageKind.FAILED, (number, _portable(error))
        # From here on a message that cancels the step has to be passed to the next stage.
        if self._tasks.get(number) is asyncio.current_task():
            del self._tasks[number]
        after = self._links.get(Role.AFTER)
        if after is None:
            return
        await after.drain()
        went = time.perf_counter()  # before sending, because the other side may get it at once
        after.send(kind, value, arrays)
        self._tell(number, came, went)

    def _finish_step(self, number: int, task: asyncio.Task[None]) -> None:
        """Report a cancelled step as failed, also if it was cancelled before its task began."""
        if self._tasks.get(number) is task:
            del self._tasks[number]
            after = self._links.get(Role.AFTER)
            if task.cancelled() and after is not None:
                after.send(MessageKind.FAILED, (number, Aborted(f"step {number} was cancelled")))


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else an AggmlError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return AggmlError(f"{type(error).__name__}: {error}")
    return error
