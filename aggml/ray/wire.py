"""Wire: the driver's connections to the first stage and to the last one.

They run on an asyncio loop in a separate thread, because the driver may use trio. Here: steps out,
results in, cancelling, failing all steps when a stage is lost. Not here: which slots go into a step
(dispatch.py), the stages' side of these connections (neighbours.py).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Protocol

from aggml.process.threads import new_thread
from aggml.ray.clocks import ask_time
from aggml.ray.errors import StageLost
from aggml.ray.frames import MessageKind
from aggml.ray.link import Link, Role, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.ray.clocks import Reading
    from aggml.ray.frames import Frame
    from aggml.ray.step import PipelineStep

__all__ = ["SentStep", "Wire", "raise_later"]


class _Log(Protocol):
    """Has the list in which a trace records steps: number, sent, landed; None: no trace runs."""

    log: list[tuple[int, float, float]] | None


class SentStep:
    """A step under way."""

    __slots__ = ("_number", "_wire")

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire = wire
        self._number = number

    def cancel(self) -> None:
        """Have the stage that computes the step abort it; the step then lands as failed."""
        self._wire.cancel(self._number)


class Wire:
    """The connections to both ends of the pipeline. Making and closing it blocks.

    Args:
        addresses: where the stages listen.
        key: of the pipeline.
        epoch: of its stages.
        log: has the list of steps for a trace.

    Raises:
        StageLost: a stage cannot be reached.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], key: bytes, epoch: int, log: _Log
    ) -> None:
        self._addresses = addresses
        self._key = key
        self._epoch = epoch
        self._last = len(addresses) - 1
        self._numbers = itertools.count(epoch << 32)  # different numbers in all epochs
        self._landing: dict[int, Callable[[Callable[[], Any]], None]] = {}
        self._links: dict[Role, Link] = {}
        self._lost: StageLost | None = None
        self._log = log
        self._times: dict[int, float] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = new_thread(self._run, "aggml-wire")
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        except BaseException:
            self.close()
            raise

    def send(self, step: PipelineStep, tell: Callable[[Callable[[], Any]], None]) -> SentStep:
        """Send a step.

        Args:
            step: the step.
            tell: called by another thread when the step has landed, with a function that returns
                the results or raises the error.
        """
        number = next(self._numbers)
        self._post(lambda: self._send(number, step, tell))
        return SentStep(self, number)

    def cancel(self, number: int) -> None:
        """Cancel a step, wherever it is."""
        self._post(lambda: self._to_first(MessageKind.CANCEL, number))

    def clock(self, number: int) -> Reading:
        """Ask a stage for its time; blocks.

        Raises:
            StageLost: it does not answer.
        """
        asking = ask_time(self._addresses[number], self._key, self._epoch)
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result()
        except OSError as error:
            raise StageLost(
                f"stage {number} does not answer when asked for its time: {error}", number
            ) from error

    def drop(self) -> None:
        """Break the connections as a failing network would; for tests."""
        self._post(self._drop)

    def close(self) -> None:
        """Close the connections and the thread; steps under way fail."""
        self._post(self._stop)
        self._thread.join()

    def _post(self, what: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError as error:  # the loop is closed
            raise StageLost("the pipeline is closed") from error

    # -- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(asyncio.sleep(0))  # calls `connection_lost` of all links
        finally:
            self._loop.close()

    def _drop(self) -> None:
        for one in self._links.values():
            one.abort()

    def _stop(self) -> None:
        self._fail(StageLost("the pipeline was closed"))
        self._loop.call_soon(self._loop.stop)

    async def _connect(self) -> None:
        for role, number in ((Role.BEFORE, 0), (Role.AFTER, self._last)):
            try:
                found = await connect(self._addresses[number], self._key, self, role, self._epoch)
            except OSError as error:
                raise StageLost(f"cannot connect to stage {number}: {error}", number) from error
            self._links[role] = found

    def _send(
        self, number: int, step: PipelineStep, tell: Callable[[Callable[[], Any]], None]
    ) -> None:
        if self._lost is not None:
            tell(raise_later(self._lost))
            return
        self._landing[number] = tell
        if self._log.log is not None:
            self._times[number] = time.perf_counter()
        self._to_first(MessageKind.STEP, (number, step))

    def _to_first(self, kind: MessageKind, value: object) -> None:
        first = self._links.get(Role.BEFORE)
        if first is not None:
            first.send(kind, value)

    def on_frame(self, link: Link, frame: Frame) -> None:
        """See `aggml.ray.link.Peer`."""
        if frame.kind is MessageKind.DONE:
            arrays = frame.arrays
            self._land(frame.value, lambda: arrays)
        elif frame.kind is MessageKind.FAILED:
            number, error = frame.value
            self._land(number, raise_later(error))
        elif frame.kind is MessageKind.LOST:
            number, why = frame.value
            self._fail(StageLost(f"stage {number} was lost: {why}", number))

    def _land(self, number: int, found: Callable[[], Any]) -> None:
        tell = self._landing.pop(number, None)
        sent = self._times.pop(number, None)
        if self._log.log is not None and sent is not None:
            self._log.log.append((number, sent, time.perf_counter()))
        if tell is not None:
            tell(found)

    def on_end(self, link: Link) -> None:
        """See `aggml.ray.link.Peer`."""
        for role, number in ((Role.BEFORE, 0), (Role.AFTER, self._last)):
            if self._links.get(role) is link:
                self._fail(StageLost(f"stage {number} was lost: its connection ended", number))

    def _fail(self, lost: StageLost) -> None:
        """Close the connections and fail all steps under way."""
        if self._lost is None:
            self._lost = lost
        links, self._links = list(self._links.values()), {}
        for one in links:
            one.close()
        landing, self._landing = list(self._landing.values()), {}
        for tell in landing:
            tell(raise_later(self._lost))


def raise_later(error: BaseException) -> Callable[[], Any]:
    """A function that raises the error."""

    def fail() -> Any:  # noqa: ANN401
        raise error

    return fail
