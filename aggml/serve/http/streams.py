"""Sends answers as server-sent events, and notices clients that hang up; on any ASGI server.

Not here: the events themselves (forms.py).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aggml.serve.http.resuming import NOTE, so_far_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from aggml.serve.http.resuming import Note, Write

__all__ = [
    "EVENTS", "LARGEST", "EventStream", "HungUpError", "SlowError", "TooLargeError", "body_of",
    "first_of", "hung_up_cancels",
]  # fmt: skip

LARGEST: Final = 16 << 20  # bytes of a request's body, unless --max-body says otherwise
EVENTS: Final = "text/event-stream"
COMMENT: Final = b": still here\n\n"  # clients skip lines that begin with a colon


class HungUpError(Exception):
    """The client has closed the connection; nobody reads an answer."""


class TooLargeError(Exception):
    """The body of a request is larger than allowed."""


class SlowError(Exception):
    """The body of a request comes too slowly."""


def first_of(error: BaseException) -> BaseException:
    """The first exception inside the groups that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def body_of(request: Request, most: int = LARGEST, seconds: float = 60.0) -> bytes:
    """The body of a request.

    Args:
        request: its body has not been read.
        most: bytes of the body.
        seconds: in which the next part of the body must come.

    Raises:
        TooLargeError: the body has more than ``most`` bytes.
        SlowError: the next part of the body did not come in time.
        HungUpError: the client went before the body was complete.
    """
    body = bytearray()
    try:
        async with aclosing(_parts(request, seconds)) as parts:
            async for part in parts:
                body += part
                if len(body) > most:
                    raise TooLargeError(f"the body has more than {most} bytes")
    except ClientDisconnect as error:
        raise HungUpError from error
    return bytes(body)


async def _parts(request: Request, seconds: float) -> AsyncGenerator[bytes]:
    """The parts of a body."""
    async with aclosing(request.stream()) as parts:
        while True:
            part: bytes | None = None
            with anyio.move_on_after(seconds) as scope:
                part = await anext(parts, None)
            if scope.cancelled_caught:
                raise SlowError(f"the next part of the body did not come within {seconds:g} s")
            if part is None:
                return
            yield part


@asynccontextmanager
async def hung_up_cancels(
    receive: Receive, beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> AsyncIterator[None]:
    """Cancel the block once the client has gone; the request's body must have been read before.

    Args:
        receive: of the request.
        beside: runs until the end of the block.

    Raises:
        HungUpError: the client has gone.
    """
    gone = False

    async def cancel_when_gone() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_gone)
        if beside is not None:
            tasks.start_soon(beside)
        yield
        tasks.cancel_scope.cancel()
    if gone:
        raise HungUpError


class EventStream(Response):
    """Sends at once what ``produce`` writes. If the client goes, cancels it and calls ``gone``.

    Each message has a note beside its events, if a front asks for it (resuming.py).

    Args:
        produce: gets a function that sends bytes; may call it from several tasks.
        gone: called if the client went before the end.
        ping: seconds after which a comment is sent if nothing else was, so that nobody on the way
            takes the connection for dead; 0: never.
        media: the type of the answer; comments are sent in server-sent events alone.
    """

    media_type: str = EVENTS

    def __init__(
        self,
        produce: Callable[[Write], Awaitable[None]],
        gone: Callable[[], object],
        ping: float = 0.0,
        media: str = EVENTS,
    ) -> None:
        self.status_code = 200
        self.background: None = None
        self.media_type = media
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self.raw_headers = [x for x in self.raw_headers if x[0] != b"content-length"]
        self._produce = produce
        self._gone = gone
        self._ping = ping if media == EVENTS else 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events: the call that ASGI asks for."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        turn = anyio.Lock()
        noted = so_far_of(scope) is not None
        written = 0

        async def write(data: bytes, note: Note | None = None) -> None:
            nonlocal written
            more = {NOTE: note} if noted and note is not None else {}
            body = {"type": "http.response.body", "body": data, "more_body": True, **more}
            async with turn:
                written += 1
                try:
                    await send(body)
                except OSError as error:  # on some servers sending fails before `receive` tells it
                    raise HungUpError from error

        async def ping() -> None:
            while True:
                before = written
                await anyio.sleep(self._ping)
                if written == before:
                    await write(COMMENT)

        try:
            async with hung_up_cancels(receive, ping if self._ping else None):
                await self._produce(write)
        except Exception as error:
            if not isinstance(first_of(error), HungUpError):
                raise
            self._gone()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
