"""gather and as_completed: waiting for several Futures.

Not here: the Future (future.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio.lowlevel

from aggml.errors import InvalidHandle
from aggml.process.foreign import short
from aggml.stream.future import Future
from aggml.stream.parker import Parker
from aggml.stream.reactor import current_reactor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aggml.native import _native

__all__ = ["as_completed", "gather"]

T = TypeVar("T")


def _list_of(place: str, futures: object) -> list[Any]:
    if isinstance(futures, Future) or not isinstance(futures, Iterable):
        raise InvalidHandle(f"[{place}] {short(futures)} is no list of Futures")
    return [*futures]


class _Completions(Generic[T]):
    """Yields each Future as it gets done. A cancellation ends the wait for all of them together.

    This is no generator: a generator that is not exhausted must be closed by hand, and trio warns.
    """

    def __init__(self, futures: Iterable[Future[T]], place: str = "as_completed") -> None:
        self._ready: deque[Future[T]] = deque()
        self._entries: list[_native.Waiter] = []
        self._waited: set[Future[T]] = set()
        given = _list_of(place, futures)
        for future in given:
            if not isinstance(future, Future):
                listed = place == "gather" and isinstance(future, (list, tuple))
                cure = ": call gather(*futures)" if listed else ""
                raise InvalidHandle(f"[{place}] {short(future)} is no Future{cure}")
        self._futures = list(dict.fromkeys(given))
        self._left = len(self._futures)
        self._parker: Parker | None = None

    def _start(self) -> Parker:
        lasts = [future._op_to_await() for future in self._futures]  # raises before anybody waits
        parker, reactor, ready = Parker(), current_reactor(), self._ready

        # It does not refer to self: a loop that is left early must not keep the rest.
        def arrive(future: Future[T]) -> None:
            ready.append(future)
            parker.unpark()

        for future, last in zip(self._futures, lasts, strict=True):
            future._enter()
            self._waited.add(future)
            entry = None if last is None else reactor.arm(last, partial(arrive, future))
            if entry is None:
                ready.append(future)
            else:
                self._entries.append(entry)
        return parker

    def __aiter__(self) -> _Completions[T]:
        return self

    async def __anext__(self) -> Future[T]:
        if self._left == 0:
            raise StopAsyncIteration
        if self._parker is None:
            try:
                self._parker = self._start()
            except Exception:  # misuse, no cancellation: nothing is aborted
                self.close()
                raise
        try:
            await anyio.lowlevel.checkpoint()
            while (future := self._next_arrival()) is None:
                await self._parker.park()
        except Exception:
            self.close()
            raise
        except BaseException:
            self.close(cancelled=True)
            raise
        self._left -= 1
        self._waited.discard(future)
        future._leave(cancelled=False)
        return future

    def _next_arrival(self) -> Future[T] | None:
        while self._ready:
            future = self._ready.popleft()
            if future in self._waited:  # after Ctrl-C a Future may arrive twice
                return future
        return None

    def close(self, *, cancelled: bool = False) -> None:
        """Stop waiting for all Futures."""
        self._left = 0
        for entry in self._entries:
            entry.cancel()
        while self._waited:
            self._waited.pop()._leave(cancelled=cancelled)

    def __del__(self) -> None:
        self.close()


def as_completed(futures: Iterable[Future[T]]) -> AsyncIterator[Future[T]]:
    """Yield the given Futures as they get done; ``result()`` of each gives the value or raises.

    Leaving the loop early aborts nothing.

    Cancellation: of a wait, aborts those that are abortable (``run``, ``submit``) and that nobody
    else waits for.
    """
    return _Completions(futures)


async def gather(*futures: Future[Any]) -> list[Any]:
    """Await all; returns the results in the order given.

    Raises:
        AggmlError: the first failure, as soon as it happens; the others go on.

    Cancellation: aborts those that are abortable (``run``, ``submit``) and that nobody else waits
    for.
    """
    completions = _Completions(futures, "gather")
    if not futures:
        await anyio.lowlevel.checkpoint()
    try:
        async for future in completions:
            future.result()
    finally:
        completions.close()
    return [future.result() for future in futures]
