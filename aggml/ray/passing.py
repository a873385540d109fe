"""Passing: sends one answer to a client, even if the replica that computes it is lost.

A stream of completions is continued after the tokens that were sent: another replica gets the
request and a `SoFar`, and computes the rest. Any other answer is sent only when it is complete, so
that another replica can start it again. Here: what to send, and whether another replica can take
over. Not here: calls of replicas (front.py), continuing in a service
(aggml/serve/http/resuming.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.models import EngineError
from aggml.ray.errors import LOST
from aggml.serve.http.forms import Failure
from aggml.serve.http.resuming import SoFar

if TYPE_CHECKING:
    from starlette.types import Send

    from aggml.serve.http.resuming import Note

__all__ = ["REPLICA", "Begin", "BodyPart", "Passing"]

TRIES: Final = 3  # give up after so many replicas are lost in a row without sending an event
REPLICA: Final = b"x-aggml-replica"
EVENTS: Final = b"text/event-stream"


class Begin(NamedTuple):
    """The head of an answer; its body follows in parts."""

    status: int
    headers: list[tuple[bytes, bytes]]

    @property
    def streams(self) -> bool:
        """Whether events follow, which are sent as they come."""
        return any(k == b"content-type" and v.startswith(EVENTS) for k, v in self.headers)


class BodyPart(NamedTuple):
    """A part of a body; in a stream of completions, with notes of what it tells the client."""

    data: bytes
    notes: list[Note]


class Passing:
    """Passes one answer on to a client.

    Args:
        send: ASGI's function that sends to the client.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._since = time.monotonic()
        self._so_far = SoFar()
        self._sent: Begin | None = None  # the head that the client has
        self._begun: Begin | None = None  # the head that the current replica has sent
        self._whole: list[bytes] = []  # the body so far, if the answer is no stream
        self._blind = False  # events without a note were sent: no replica can continue after them
        self._lost = 0  # replicas that were lost since the last event

    def so_far_now(self) -> SoFar:
        """What the client has so far, for the next replica.

        It includes the seconds since the request came, because the replica's own clock starts anew.
        """
        self._so_far.seconds = time.monotonic() - self._since
        return self._so_far

    async def take(self, part: Begin | BodyPart) -> None:
        """Take a part of the answer from a replica."""
        if isinstance(part, Begin):
            await self._begin(part)
        elif self._begun is not None and self._begun.streams:
            self._lost = 0
            for note in part.notes:
                self._so_far.add(note)
            self._blind = self._blind or not part.notes
            await self._body(part.data)
        else:
            self._whole.append(part.data)

    async def _begin(self, begun: Begin) -> None:
        self._begun = begun
        self._whole.clear()
        if not begun.streams:
            return
        if self._sent is None:
            await self._head(begun)
        else:
            # A line that begins with ":" is a comment: clients of server-sent events ignore it.
            name = dict(begun.headers).get(REPLICA, b"another replica")
            await self._body(b": continued on " + name + b"\n\n")

    def can_go_on(self) -> bool:
        """Note that the replica was lost; returns whether another one may continue."""
        self._begun = None
        self._lost += 1
        return self._lost < TRIES and not self._blind and not self._so_far.ended

    async def fail(self, error: Exception) -> None:
        """Send an error to the client: as the whole answer, or as the last event of a stream."""
        if self._so_far.ended:
            return
        what = "was lost" if isinstance(error, LOST) else "has failed"
        message = f"the replica that computed this {what}: {type(error).__name__}"
        failure = Failure(EngineError(message))
        if self._sent is None:
            response = failure.response()
            self._begun = Begin(response.status_code, response.raw_headers)
            self._whole = [bytes(response.body)]
        else:
            self._begun = None
            await self._body(failure.event())

    async def end(self) -> None:
        """End the answer; one that is no stream is sent now."""
        if self._begun is not None and not self._begun.streams:
            if self._sent is None:
                await self._head(self._begun)
                await self._body(b"".join(self._whole))
            else:  # the replica could not continue the stream; its answer says why
                await self._body(b"data: " + b"".join(self._whole) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _head(self, begun: Begin) -> None:
        self._sent = begun
        headers = list(begun.headers)
        start = {"type": "http.response.start", "status": begun.status, "headers": headers}
        await self._send(start)

    async def _body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
