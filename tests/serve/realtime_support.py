"""A client of sessions of live speech that calls the application without a server.

It hangs up wherever it is told to: before, between and after messages of either side. Not here:
the tests (test_realtime.py), clients over sockets (test_realtime_clients.py).
"""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from serve.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.applications import Starlette

COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


def as_pcm(sound: Any) -> Any:
    """Samples at 16 kHz as integers at 24 kHz; a sample of three is repeated."""
    n = len(sound) * 3 // 2
    return np.round(sound[np.arange(n) * 2 // 3] * 32767).astype("<i2")


def append(data: bytes) -> dict[str, Any]:
    """The event that sends sound."""
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


def without_turns(rate: int) -> dict[str, Any]:
    """The event after which the client commits."""
    sound = {"turn_detection": None, "format": {"type": "audio/pcm", "rate": rate}}
    return {
        "type": "session.update",
        "session": {"type": "transcription", "audio": {"input": sound}},
    }


class Talk:
    """The client's side of a session.

    Args:
        hang_up: after how many messages of both sides the client goes; None: at the end.
        reads: whether it reads what is sent.

    Attributes:
        events: all that came.
        status: of the handshake.
        body: of a refused handshake.
        protocol: that was chosen.
        gone: the client has hung up.
        ended: the application has returned.
    """

    def __init__(self, hang_up: int | None, reads: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 0
        self.body: Any = None
        self.protocol: str | None = None
        self.gone, self.ended = anyio.Event(), anyio.Event()
        self._reads = reads
        self._left = hang_up
        self._opened = anyio.Event()
        self._code: int | None = None
        self._changed = anyio.Event()
        self._taken = 0
        self._to, self._from_client = anyio.create_memory_object_stream[dict[str, Any]](0)

    # -- the server's side

    async def receive(self) -> dict[str, Any]:
        if self.gone.is_set():
            return {"type": "websocket.disconnect", "code": 1006}
        found: dict[str, Any] = {"type": "websocket.disconnect", "code": 1006}
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                nonlocal found
                found = await self._from_client.receive()
                tasks.cancel_scope.cancel()

            async def left() -> None:
                await self.gone.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(one)
            tasks.start_soon(left)
        return found

    async def send(self, message: dict[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        if self.gone.is_set():
            raise OSError("the client has gone")
        match message["type"]:
            case "websocket.accept":
                self.status, self.protocol = 101, message["subprotocol"]
                self._opened.set()
            case "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.http.response.body":
                self.body = json.loads(message["body"])
                self._opened.set()
            case "websocket.close":
                self._code = message["code"]
                self.status = self.status or 403
                self._opened.set()
            case _:
                if not self._reads:
                    await self.gone.wait()
                self.events.append(json.loads(message["text"]))
        self._changed.set()
        self._changed = anyio.Event()
        self._count()

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.gone.set()
                self._changed.set()

    # -- the client's side

    async def opened(self) -> None:
        await self._opened.wait()

    async def put_text(self, text: str | bytes) -> None:
        kind = "text" if isinstance(text, str) else "bytes"
        await self._to.send({"type": "websocket.receive", kind: text})

    async def put(self, **event: Any) -> None:
        await self.put_text(json.dumps(event))

    async def try_put(self, **event: Any) -> bool:
        """Send an event unless one side has gone; whether it was taken."""
        taken = False
        async with anyio.create_task_group() as tasks:

            async def until(event_: anyio.Event) -> None:
                await event_.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, self.gone)
            tasks.start_soon(until, self.ended)
            await self.put(**event)
            taken = True
            tasks.cancel_scope.cancel()
        if taken:
            self._count()
        return taken and not self.gone.is_set()

    async def update(self, sound: dict[str, Any]) -> None:
        session = {"type": "transcription", "audio": {"input": sound}}
        await self.put(type="session.update", session=session)

    async def take(self, kind: str) -> dict[str, Any]:
        """The next event, which must be of this kind."""
        while self._taken >= len(self.events):
            await self._changed.wait()
        found = self.events[self._taken]
        self._taken += 1
        assert found["type"] == kind, found
        return found

    async def until(self, kind: str, *, gone: bool = False) -> dict[str, Any]:
        """The first event of a kind among those that were not cleared.

        Args:
            kind: of the event.
            gone: whether an empty one is returned once the client has hung up.
        """
        while True:
            for event in self.events:
                if event["type"] == kind:
                    return event
            if gone and self.gone.is_set():
                return {}
            await self._changed.wait()

    async def transcript(self) -> tuple[dict[str, Any], list[str]]:
        """The next transcription, and its deltas."""
        deltas = []
        while True:
            while self._taken >= len(self.events):
                await self._changed.wait()
            event = self.events[self._taken]
            self._taken += 1
            if event["type"] == DELTA:
                deltas.append(event["delta"])
            elif event["type"] == COMPLETED:
                return event, deltas

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [x for x in self.events if x["type"] == kind]

    async def closed(self) -> int | None:
        """The code with which the server closes."""
        while self._code is None:
            await self._changed.wait()
        return self._code

    def close(self) -> None:
        self._to.close()
        self._from_client.close()


@asynccontextmanager
async def talking(
    app: Starlette, *, path: str = "/v1/realtime", query: str = "intent=transcription",
    headers: dict[str, str] | None = None, protocols: Sequence[str] = (),
    hang_up: int | None = None, reads: bool = True,
) -> AsyncIterator[Talk]:  # fmt: skip
    """A session; at the end of the block the client hangs up, and the application must return."""
    talk = Talk(hang_up, reads)
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "scheme": "ws", "http_version": "1.1",
        "headers": [(k.encode(), x.encode()) for k, x in (headers or {}).items()],
        "client": ("127.0.0.1", 1), "server": ("here", 80), "subprotocols": list(protocols),
        "state": {}, "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "websocket.connect"}
        return await talk.receive()

    async def run() -> None:
        try:
            await app(scope, receive, talk.send)  # type: ignore[arg-type]
        finally:
            talk.ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            if hang_up is None:
                await talk.opened()
            yield talk
            talk.gone.set()
            with anyio.fail_after(PATIENCE):
                await talk.ended.wait()
        finally:
            talk.close()
