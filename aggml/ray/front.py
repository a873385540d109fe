"""The way of a request through Ray Serve: through a deployment in front, to a replica and back.

Ray Serve's router sees the head of an HTTP request, but not its body. So a deployment in front
reads the body and calls the replicas through a handle; the handle's router gets the beginning of
the prompt. Here: both ends of such a call. Not here: the choice of a replica (routing.py),
continuing an answer on another replica (passing.py), the service (aggml.serve).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ray.exceptions as of_ray
from ray import serve
from ray.serve.exceptions import RayServeException

from aggml.ray.errors import LOST
from aggml.ray.passing import REPLICA, Begin, BodyPart, Passing
from aggml.ray.routing import pieces_of
from aggml.ray.scaling import Replica
from aggml.serve.http.app import application
from aggml.serve.http.resuming import NOTE, RESUMING, SoFar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aggml.serve.http import Options

__all__ = ["Behind", "Front", "Head", "stream_answer"]

LARGEST: Final = 65 << 20  # bytes read of a body; above the replica's limit, so that it refuses
ENDS: Final = 5.0  # seconds that the service has to end a request whose client has gone
WAITING: Final = 64  # the most parts of an answer that wait for the deployment in front

_log = logging.getLogger("serve")


class Head(NamedTuple):
    """The head of a request, as it goes to a replica."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    root: str


# -- in a replica


async def stream_answer(
    app: ASGIApp, head: Head, body: bytes, so_far: SoFar
) -> AsyncGenerator[Begin | BodyPart, None]:
    """The answer of an ASGI application: its head, then its body as it comes.

    Cancellation, and closing the generator: the application gets ``http.disconnect``.
    """
    parts: asyncio.Queue[Begin | BodyPart | None] = asyncio.Queue(WAITING)
    gone = asyncio.Event()
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if gone.is_set():
            raise OSError("the client has gone")
        if message["type"] == "http.response.start":
            headers = [(bytes(k), bytes(v)) for k, v in message.get("headers", ())]
            await parts.put(Begin(message["status"], headers))
        elif message.get("body"):
            note = message.get(NOTE)
            await parts.put(BodyPart(bytes(message["body"]), [] if note is None else [note]))

    async def run() -> None:
        try:
            await app(_scope(head, so_far), receive, send)
        finally:
            if not gone.is_set():
                await parts.put(None)

    task = asyncio.create_task(run())
    try:
        part: Begin | BodyPart | None = BodyPart(b"", [])
        while part is not None:
            part = await parts.get()
            if isinstance(part, Begin):
                yield part
                continue
            together = []
            while isinstance(part, BodyPart):
                together.append(part)
                if parts.empty():
                    break
                part = parts.get_nowait()
            if together:
                data = b"".join(x.data for x in together)
                yield BodyPart(data, [note for x in together for note in x.notes])
        await task
    finally:
        gone.set()
        while not parts.empty():
            parts.get_nowait()
        if not task.done():
            await asyncio.wait([task], timeout=ENDS)
            task.cancel()
        with contextlib.suppress(BaseException):
            await task


def _scope(head: Head, so_far: SoFar) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": head.method,
        "path": head.path,
        "raw_path": head.path.encode(),
        "query_string": head.query,
        "root_path": head.root,
        "headers": head.headers,
        "server": None,
        "client": None,
        "extensions": {RESUMING: so_far},
    }


class Behind(Replica):
    """A replica that answers the deployment in front.

    Ray Serve allows one ASGI deployment in each Serve application, and that is the front. So this
    class opens and closes the ASGI application of the service itself.
    """

    async def __init__(self, options: Options) -> None:  # type: ignore[misc] # Ray awaits it
        self._asgi_app = application(options)
        self._ends = asyncio.Event()
        opened = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(opened))
        await opened

    async def _live(self, opened: asyncio.Future[None]) -> None:
        """Keep the models open until this replica ends; anyio needs one task for both ends."""
        try:
            async with self._asgi_app.router.lifespan_context(self._asgi_app):
                opened.set_result(None)
                await self._ends.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def __del__(self) -> None:
        """Close the models after giving running requests time to end; Ray Serve awaits this."""
        self._ends.set()
        await asyncio.wait([self._life])

    async def answer(
        self, head: tuple[Any, ...], body: bytes, so_far: SoFar, pieces: list[bytes]
    ) -> AsyncGenerator[Begin | BodyPart, None]:
        """The answer to a request: its head, then its body as it comes.

        Args:
            head: a `Head`.
            body: the whole body of the request.
            so_far: what the client already has of the answer, from a replica that was lost.
            pieces: only used by the router.
        """
        del pieces
        name = serve.get_replica_context().replica_id.unique_id.encode()
        answer = stream_answer(self._asgi_app, Head(*head), body, so_far)
        async with contextlib.aclosing(answer) as parts:
            async for part in parts:
                if isinstance(part, Begin):
                    yield Begin(part.status, [*part.headers, (REPLICA, name)])
                else:
                    yield part


# -- in front


class Front:
    """Reads a request and gives it to the replica with the longest beginning of its prompt.

    If a replica is lost, another one continues the answer (passing.py).
    """

    def __init__(self, replicas: Any) -> None:  # noqa: ANN401 a handle of Ray Serve
        self._replicas = replicas.options(stream=True)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The ASGI application, for Ray Serve. It is a plain function, because uvicorn runs it."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._application(scope, receive, send)

        return app

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            raise RuntimeError(f"only http is served, not {scope['type']}")
        body = bytearray()
        more = True
        while more and len(body) <= LARGEST:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        head = Head(
            scope["method"], scope["path"], scope.get("query_string", b""), headers,
            scope.get("root_path", ""),
        )  # fmt: skip
        answer = asyncio.create_task(self._answer(head, bytes(body), send))
        watch = asyncio.create_task(_wait_until_gone(receive))
        try:
            await asyncio.wait([answer, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not answer.done():
                answer.cancel()
            await asyncio.wait([answer, watch])
        if not answer.cancelled():
            answer.result()

    async def _answer(self, head: Head, body: bytes, send: Send) -> None:
        """Pass an answer on; if a replica is lost, from another one."""
        pieces = pieces_of(body) if head.method == "POST" else []
        passing = Passing(send)
        while True:
            try:
                parts = self._parts(head, body, passing.so_far_now(), pieces)
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        await passing.take(part)
                break
            except (of_ray.RayError, RayServeException) as error:
                _log.warning("a replica has not answered: %s", type(error).__name__)
                if not (isinstance(error, LOST) and passing.can_go_on()):
                    await passing.fail(error)
                    break
        await passing.end()

    async def _parts(
        self, head: Head, body: bytes, so_far: SoFar, pieces: list[bytes]
    ) -> AsyncGenerator[Begin | BodyPart, None]:
        """The answer of a replica; closing the generator ends the computation."""
        response = self._replicas.answer.remote(tuple(head), body, so_far, pieces)
        try:
            async for part in response:
                yield part
        except BaseException:
            response.cancel()
            raise


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
