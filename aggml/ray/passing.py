"""What a client has of an answer, while replicas compute it: one, and others if that one is lost.

A stream of completions goes on from the tokens that were sent: a replica that is given the request
and a `SoFar` computes what follows. Any other answer is sent when it is complete, so that another
replica can begin it anew. Here: what to send, and whether there can be another replica. Not here:
calls of replicas (front.py), how a service goes on (aggml/serve/http/resuming.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.ray.errors import LOST
from aggml.serve.http.forms import Failure
from aggml.serve.http.resuming import SoFar
from aggml.serve.jobs import EngineError

if TYPE_CHECKING:
    from starlette.types import Send

    from aggml.serve.http.resuming import Note

__all__ = ["REPLICA", "Begin", "Part", "Passing"]

TRIES: Final = 3  # replicas that are lost one after the other, without an event of any
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


class Part(NamedTuple):
    """A part of a body, and what it tells its client if it is of a stream of completions."""

    data: bytes
    notes: list[Note]


class Passing:
    """Passes one answer on.

    Args:
        send: to the client, as ASGI has it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._since = time.monotonic()
        self._so_far = SoFar()
        self._sent: Begin | None = None  # the head that the client has
        self._begun: Begin | None = None  # the head that the present replica has sent
        self._whole: list[bytes] = []  # of an answer that is no stream
        self._blind = False  # events were sent of which there is no note
        self._lost = 0  # replicas, since the last event

    def so_far_now(self) -> SoFar:
        """What the next replica is told; its clock begins with its request."""
        self._so_far.seconds = time.monotonic() - self._since
        return self._so_far

    async def take(self, part: Begin | Part) -> None:
        """What a replica sends."""
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
            # A comment: clients of server-sent events pass over it.
            name = dict(begun.headers).get(REPLICA, b"another replica")
            await self._body(b": continued on " + name + b"\n\n")

    def can_go_on(self) -> bool:
        """A replica was lost: whether another one is asked."""
        self._begun = None
        self._lost += 1
        return self._lost < TRIES and not self._blind and not self._so_far.ended

    async def fail(self, error: Exception) -> None:
        """Tell the client: as the whole answer, or as the last event of a stream."""
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
        """Nothing follows."""
        if self._begun is not None and not self._begun.streams:
            if self._sent is None:
                await self._head(self._begun)
                await self._body(b"".join(self._whole))
            else:  # a replica that has not gone on with a stream says why
                await self._body(b"data: " + b"".join(self._whole) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _head(self, begun: Begin) -> None:
        self._sent = begun
        headers = list(begun.headers)
        start = {"type": "http.response.start", "status": begun.status, "headers": headers}
        await self._send(start)

    async def _body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
