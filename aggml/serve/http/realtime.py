"""Sessions of live speech over a WebSocket, by the events of OpenAI's realtime API.

A session has four tasks. One reads events; one sends them, in the order in which they were made;
one transcribes turns, one after the other; one detects turns, unless the client commits them. What
waits between them is bounded, so a client that sends faster than is computed has to wait. If the
client goes, all of them are cancelled. Not here: the settings (realtime_settings.py), the fields
(schema.py), what the bytes of a sound mean (raw_sound.py).
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import HTTPConnection

from aggml.models import FullError, SpeechModel, VoiceModel
from aggml.models.speech import as_text
from aggml.serve.http.cors import allows_origin
from aggml.serve.http.fields import decode_body
from aggml.serve.http.forms import Failure, openai_error
from aggml.serve.http.realtime_settings import (
    SessionSettings,
    TurnSettings,
    as_new_form,
    describe_flat,
    describe_session,
    update_settings,
)
from aggml.serve.http.schema import ModelRequest, RealtimeEvent, RequestError
from aggml.serve.http.streams import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream
    from starlette.types import Message, Receive, Scope, Send

    from aggml.models import Segment
    from aggml.serve.http.pacing import Door
    from aggml.serve.http.raw_sound import SoundForm
    from aggml.serve.http.service import Service

__all__ = ["PATHS", "RealtimeRoute", "SpeechSession"]

PATHS: Final = ("/v1/realtime", "/realtime")
MOST_SOUND: Final = 15 << 20  # bytes of a turn: 5 minutes at 24,000 samples of 16 bits a second
MOST_WAITING: Final = 16 << 20  # bytes of turns that wait for their transcription
MOST_UNHEARD: Final = 64  # seconds of sound that wait for the detector
MOST_UNSENT: Final = 64  # events that wait to be sent
LONGEST: Final = 60.0  # seconds after which the detector cuts a turn
SHORTEST: Final = 0.1  # seconds of speech; also the least that can be committed
LARGE: Final = 1 << 16  # bytes of an event that a thread decodes
LONGEST_ID: Final = 512  # characters of an event's id
LAST: Final = 5.0  # seconds to send the last events
GOING_AWAY: Final = 1001  # codes of WebSockets
FAILED: Final = 1011
SECRET: Final = "openai-insecure-api-key."  # begins a subprotocol with which browsers bring a key
PROTOCOL: Final = "realtime"
OLD: Final = "realtime=v1"  # of the header OpenAI-Beta: the client knows the older events

_log = logging.getLogger("serve")


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn that is to be transcribed.

    Attributes:
        item: its id.
        sound: bytes as the client sent them, or samples at 16 kHz.
        seconds: how long it is.
        settings: those of its time.
    """

    item: str
    sound: bytes | npt.NDArray[np.float32]
    seconds: float
    settings: SessionSettings

    def __len__(self) -> int:
        return len(self.sound) if isinstance(self.sound, bytes) else self.sound.nbytes


class _Backlog:
    """Things that wait in order, with a bound on the sum of their sizes.

    Args:
        most: the bound. A single thing may be larger.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._things: deque[Any] = deque()
        self._size = 0  # of what waits or is being treated
        self._count = 0
        self._changed = anyio.Event()

    def __len__(self) -> int:
        return self._count

    def put(self, thing: object, size: int = 1) -> None:
        """Add a thing, whether or not there is room."""
        self._things.append((thing, size))
        self._size += size
        self._count += 1
        self._notify()

    async def room(self, size: int = 1) -> None:
        """Wait until there is room."""
        while self._count and self._size + size > self._most:
            await self._changed.wait()

    async def none(self) -> None:
        """Wait until all things are treated."""
        while self._count:
            await self._changed.wait()

    async def next(self) -> tuple[Any, int]:
        """The next thing and its size; `finish` must follow."""
        while not self._things:
            await self._changed.wait()
        found: tuple[Any, int] = self._things.popleft()
        return found

    def finish(self, size: int) -> None:
        """A thing is treated."""
        self._size -= size
        self._count -= 1
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Detection:
    """A detector at work on the sound of a session.

    Args:
        form: what the bytes of the sound mean.

    Attributes:
        rest: a cut sample.
        found: turns so far.
    """

    def __init__(self, form: SoundForm) -> None:
        self.form = form
        self.put, self.take = anyio.create_memory_object_stream[bytes](MOST_UNHEARD)
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.rest = b""
        self.found = 0

    def close(self) -> None:
        """Note that the detector has ended."""
        self.put.close()
        self.take.close()
        self.done.set()


class RealtimeRoute:
    """Opens sessions: the ASGI application of the route.

    Args:
        service: has the models.
        door: lets in one client in each turn of the loop.
    """

    def __init__(self, service: Service, door: Door) -> None:
        self._service = service
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A session, from its handshake to its end: the call that ASGI asks for."""
        service = self._service
        counted = service.metrics.requests
        await receive()  # websocket.connect
        async with AsyncExitStack() as stack:
            try:
                await self._door.enter()
                session = self._admit(HTTPConnection(scope), stack, receive, send)
                stack.enter_context(service.sessions.enter(session))
            except Exception as error:
                failure = Failure(error)
                counted.labels(PATHS[0], str(failure.status)).inc()
                with suppress(OSError):
                    await _refuse(scope, send, failure)
                return
            scope.setdefault("state", {})["exchange"] = session
            counted.labels(PATHS[0], "101").inc()
            head = [(b"x-request-id", session.id.encode())]
            chosen = PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None
            with suppress(OSError):
                await send({"type": "websocket.accept", "subprotocol": chosen, "headers": head})
                await session.run()

    def _admit(
        self, request: HTTPConnection, stack: AsyncExitStack, receive: Receive, send: Send
    ) -> SpeechSession:
        """The session of a client that may have one.

        Raises:
            RequestError: the key is wrong, the client asks too much, or for something else.
            FullError: the server is stopping.
        """
        service = self._service
        if service.stopping:
            raise FullError("the server is stopping", LAST)
        _check_origin(request.headers, service.options.cors)
        key = service.keys.check(_with_key(request))
        address = "" if request.client is None else request.client.host
        stack.enter_context(service.shares.take(address if key is None else key))
        intent = request.query_params.get("intent", "transcription")
        if intent != "transcription":
            raise RequestError(
                400, f"intent is {intent[:64]!r}: there are transcription sessions alone",
                field="intent",
            )  # fmt: skip
        if not service.has(SpeechModel) and service.host is None:
            raise RequestError(
                404, "this server has no model for transcriptions", code="model_not_found"
            )
        model = request.query_params.get("model")
        if model is not None:
            service.check(model, SpeechModel, "transcriptions")
        turns = TurnSettings() if service.has(VoiceModel) else None
        settings = SessionSettings(model=model, turns=turns)
        old = OLD in request.headers.get("openai-beta", "")
        return SpeechSession(service, settings, receive, send, key=key, old=old)


def _with_key(request: HTTPConnection) -> Mapping[str, str]:
    """The headers; the key of a subprotocol, as browsers send it, stands where others send it."""
    for name in request.scope.get("subprotocols", ()):
        if name.startswith(SECRET):
            return {**request.headers, "authorization": f"Bearer {name.removeprefix(SECRET)}"}
    return request.headers


def _check_origin(headers: Mapping[str, str], allowed: Sequence[str]) -> None:
    """Refuse pages of other origins: no browser asks a server before it opens a WebSocket.

    Raises:
        RequestError: the page is of another origin, and ``--cors`` does not allow it.
    """
    origin = headers.get("origin")
    if origin is None or allows_origin(allowed, origin):
        return
    if origin.partition("://")[2] != headers.get("host"):
        raise RequestError(403, f"pages of {origin[:128]} may not ask: see --cors", field="origin")


async def _refuse(scope: Scope, send: Send, failure: Failure) -> None:
    """Answer a handshake with an error."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": GOING_AWAY, "reason": ""})
        return
    body = msgspec.json.encode(openai_error(failure))
    head = {"content-type": "application/json", "content-length": str(len(body)), **failure.headers}
    raw = [(k.encode(), x.encode()) for k, x in head.items()]
    start = {"type": "websocket.http.response.start", "status": failure.status, "headers": raw}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body})


class SpeechSession:
    """A session.

    Args:
        service: has the models.
        settings: at the beginning.
        receive, send: of ASGI; the handshake is done.
        key: the name of the client's key.
        old: whether the client knows the older events.

    Attributes:
        id: of the session.
        model: the name of the model that transcribed last.
        unknown: names of fields that nobody knows, for records.
    """

    def __init__(
        self, service: Service, settings: SessionSettings, receive: Receive, send: Send, *,
        key: str | None = None, old: bool = False,
    ) -> None:  # fmt: skip
        self.id: str = _new_id("sess")
        self.key = key
        self.model: str | None = None
        self.unknown: list[str] = []
        self._service = service
        self._settings = settings
        self._receive, self._send = receive, send
        self._old = old
        self._tasks: TaskGroup | None = None
        self._events = _Backlog(MOST_UNSENT)
        self._turns = _Backlog(MOST_WAITING)
        self._buffer = bytearray()  # what the client has not committed
        self._detection: _Detection | None = None
        self._heard = 0.0  # seconds of sound, since the beginning of the session
        self._last: str | None = None  # the item before
        self._gone = False
        self._why: RequestError | None = None
        self._ended = anyio.Event()

    # -- the beginning and the end

    async def run(self) -> None:
        """Answer events until the client goes, or the session is ended."""
        code = GOING_AWAY
        self._emit_session("created")
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for task in (self._send_events, self._transcribe_turns, self._read_events):
                    tasks.start_soon(task)
                await self._ended.wait()
                await self._stop_detection()
                await self._turns.none()
                if self._why is not None:
                    self._emit_error(self._why)
                with anyio.move_on_after(LAST):
                    await self._events.none()
                tasks.cancel_scope.cancel()
        except Exception as error:
            if not isinstance(first_of(error), OSError):  # else the client has gone
                _log.error("a session failed", exc_info=error)
            code, self._gone = FAILED, self._gone or isinstance(first_of(error), OSError)
        if self._gone:
            if self._turns:
                self._service.metrics.hung_up.inc()
            return
        with anyio.move_on_after(LAST), suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code, "reason": ""})

    def stop(self) -> None:
        """Take no more from the client; end when its turns are transcribed."""
        self._end(RequestError(503, "the server is stopping", code="server_stopping"))

    def cut_off(self) -> None:
        """End at once."""
        self.stop()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def _end(self, why: RequestError) -> None:
        if self._why is None:
            self._why = why
        self._ended.set()

    # -- events

    def _emit(self, kind: str, **members: object) -> None:
        self._events.put({"type": kind, "event_id": _new_id("event"), **members})

    def _emit_session(self, what: str, **members: object) -> None:
        if self._old:
            session = describe_flat(self._settings, self.id)
            self._emit(f"transcription_session.{what}", session=session, **members)
        else:
            self._emit(
                f"session.{what}", session=describe_session(self._settings, self.id), **members
            )

    def _emit_error(self, error: Exception, event_id: str | None = None) -> None:
        self._emit("error", error=_error_of(error) | {"event_id": event_id})

    async def _send_events(self) -> None:
        while True:
            event, size = await self._events.next()
            text = msgspec.json.encode(event).decode()
            await self._send({"type": "websocket.send", "text": text})
            self._events.finish(size)

    async def _read_events(self) -> None:
        idle = self._service.options.session_idle
        while True:
            message: Message | None = None
            with anyio.move_on_after(idle):
                message = await self._receive()
            if message is None:
                if not self._turns:
                    why = f"nothing came for {idle:g} s"
                    self._end(RequestError(408, why, code="session_expired"))
                continue
            if message["type"] == "websocket.disconnect":
                self._gone = True
                assert self._tasks is not None
                self._tasks.cancel_scope.cancel()
                return
            if self._ended.is_set():
                continue
            await self._until_read()
            await self._handle(message.get("text") or message.get("bytes") or b"")

    async def _until_read(self) -> None:
        """Wait until the client has read most events; end the session if it does not read."""
        idle = self._service.options.session_idle
        with anyio.move_on_after(idle) as scope:
            await self._events.room()
        if scope.cancelled_caught:
            self.cut_off()

    async def _handle(self, data: str | bytes) -> None:
        event_id: str | None = None
        try:
            read = partial(_read, data)
            head = await anyio.to_thread.run_sync(read) if len(data) > LARGE else read()
            event_id = head.event_id
            if head.wrong is not None:
                raise head.wrong
            unknown: list[str] = []
            decode = partial(
                decode_body, head.body, RealtimeEvent,
                None if self._service.ignored.strict else unknown,
            )  # fmt: skip
            event = await anyio.to_thread.run_sync(decode) if len(data) > LARGE else decode()
            await self._apply(event, unknown)
        except Exception as error:
            self._emit_error(error, event_id)

    async def _apply(self, event: RealtimeEvent, unknown: list[str]) -> None:
        told_unknown: dict[str, Any] = {}
        if unknown:
            told_unknown["aggml_ignored"] = self._service.ignored.note(unknown)
            self.unknown = list(dict.fromkeys([*self.unknown, *unknown]))[:16]
        match event.type:
            case "input_audio_buffer.append":
                await self._append(event.audio)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._buffer.clear()
                await self._stop_detection()
                self._emit("input_audio_buffer.cleared")
            case _:
                self._old = self._old or event.type == "transcription_session.update"
                await self._update(event, told_unknown)

    async def _update(self, event: RealtimeEvent, members: dict[str, Any]) -> None:
        if event.session is None:
            raise RequestError(400, "the field 'session' is missing", field="session")
        old, new = self._settings, update_settings(self._settings, event.session)
        self._check(new)
        if self._buffer and new.form != old.form:
            raise RequestError(
                400, f"the form of the sound cannot change while the buffer has "
                f"{len(self._buffer)} bytes of another one: commit or clear them first",
                field="session.audio.input.format",
            )  # fmt: skip
        if (new.turns, new.form) != (old.turns, old.form):
            await self._finish_detection()
        self._settings = new
        self._emit_session("updated", **members)
        if new.turns is not None and self._buffer:
            sound, self._buffer = bytes(self._buffer), bytearray()
            self._heard -= new.form.seconds(len(sound))
            await self._append(sound)

    def _check(self, new: SessionSettings) -> None:
        """Check settings against the models that there are.

        Raises:
            RequestError: there is no such model, or it lacks the language.
        """
        service = self._service
        place = "session.audio.input."
        if new.turns is not None and not service.has(VoiceModel) and service.host is None:
            raise RequestError(
                400, "turn_detection: this server has no detector of speech; give it the file "
                "silero_vad_16k.safetensors as one more model, or set turn_detection to null and "
                "commit the buffer", field=f"{place}turn_detection",
            )  # fmt: skip
        if new.model is not None:
            service.check(new.model, SpeechModel, "transcriptions")
        known = service.languages(new.model)
        if new.language is not None and known and new.language not in known:
            raise RequestError(
                400, f"language: {new.language[:64]!r} is not one of {', '.join(known)}",
                field=f"{place}transcription.language",
            )  # fmt: skip

    # -- sound

    async def _append(self, sound: bytes | None) -> None:
        if sound is None:
            raise RequestError(400, "the field 'audio' is missing", field="audio")
        settings = self._settings
        if settings.turns is None:
            if len(self._buffer) + len(sound) > MOST_SOUND:
                raise RequestError(
                    400, f"audio: the buffer has {len(self._buffer)} bytes, and may have "
                    f"{MOST_SOUND}: commit or clear it", field="audio",
                    code="input_audio_buffer_full",
                )  # fmt: skip
            self._buffer += sound
            self._heard += settings.form.seconds(len(sound))
            return
        detection = self._detection
        if detection is None or detection.done.is_set():
            detection = self._detection = _Detection(settings.form)
            assert self._tasks is not None
            self._tasks.start_soon(self._detect, detection, settings, self._heard)
        self._heard += settings.form.seconds(len(sound))
        sound = detection.rest + sound
        whole = len(sound) // settings.form.width * settings.form.width
        detection.rest = sound[whole:]
        size = settings.form.width * settings.form.rate
        for first in range(0, whole, size):
            # It may have failed, and has told so.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await detection.put.send(sound[first : min(first + size, whole)])

    async def _commit(self) -> None:
        settings = self._settings
        seconds = settings.form.seconds(len(self._buffer))
        if settings.turns is not None:
            if not await self._finish_detection():
                raise _empty("nobody has spoken since the last turn")
            return
        if seconds < SHORTEST:
            raise _empty(
                f"the buffer has {1000 * seconds:.0f} ms of sound, and needs {1000 * SHORTEST:.0f}"
            )
        sound, self._buffer = bytes(self._buffer), bytearray()
        await self._submit(_Turn(_new_id("item"), sound, seconds, settings))

    async def _submit(self, turn: _Turn) -> None:
        """Tell a turn, and let it be transcribed."""
        size = len(turn)
        await self._turns.room(size)
        before = {"previous_item_id": self._last}
        self._emit("input_audio_buffer.committed", item_id=turn.item, **before)
        item = {
            "id": turn.item, "object": "realtime.item", "type": "message", "role": "user",
            "status": "completed", "content": [{"type": "input_audio", "transcript": None}],
        }  # fmt: skip
        for kind in ("created",) if self._old else ("added", "done"):
            self._emit(f"conversation.item.{kind}", item=item, **before)
        self._last = turn.item
        if turn.settings.transcribes:
            self._turns.put(turn, size)

    # -- turns

    async def _stop_detection(self) -> None:
        """End the detector; what was spoken since the last turn is lost."""
        if self._detection is not None:
            self._detection.scope.cancel()
            await self._detection.done.wait()
            self._detection = None

    async def _finish_detection(self) -> int:
        """End the detector, and the turn that goes on; returns how many turns that gave."""
        detection, self._detection = self._detection, None
        if detection is None:
            return 0
        before = detection.found
        detection.put.close()
        await detection.done.wait()
        return detection.found - before

    async def _detect(
        self, detection: _Detection, settings: SessionSettings, begin: float
    ) -> None:  # fmt: skip
        assert settings.turns is not None
        rules, item = settings.turns, ""

        def report_begin(start: float) -> None:
            nonlocal item
            item = _new_id("item")
            at = round(1000 * (begin + start))
            self._emit("input_audio_buffer.speech_started", audio_start_ms=at, item_id=item)

        try:
            with detection.scope:
                async with AsyncExitStack() as stack:
                    _, model = await self._service.lease(
                        stack, ModelRequest(), [VoiceModel], "detecting speech"
                    )
                    assert isinstance(model, VoiceModel)
                    spans = model.listen(
                        _samples(detection.take, settings.form), settings.form.rate,
                        threshold=max(rules.threshold, 0.001), longest=LONGEST, shortest=SHORTEST,
                        silence=rules.silence_duration_ms / 1000,
                        pad=rules.prefix_padding_ms / 1000, began=report_begin,
                    )  # fmt: skip
                    await stack.enter_async_context(aclosing(spans))
                    async for span in spans:
                        at = round(1000 * (begin + span.end))
                        self._emit(
                            "input_audio_buffer.speech_stopped", audio_end_ms=at, item_id=item
                        )
                        seconds = span.end - span.start
                        await self._submit(_Turn(item, span.samples, seconds, settings))
                        detection.found += 1
        except Exception as error:
            self._emit_error(error)
        finally:
            detection.close()

    # -- transcriptions

    async def _transcribe_turns(self) -> None:
        while True:
            turn, size = await self._turns.next()
            try:
                with anyio.fail_after(self._service.options.deadline):
                    text = await self._transcribe(turn)
            except Exception as error:
                self._emit(
                    "conversation.item.input_audio_transcription.failed", item_id=turn.item,
                    content_index=0, error=_error_of(error),
                )  # fmt: skip
            else:
                self._emit(
                    "conversation.item.input_audio_transcription.completed", item_id=turn.item,
                    content_index=0, transcript=text,
                    usage={"type": "duration", "seconds": round(turn.seconds, 2)},
                )  # fmt: skip
            self._turns.finish(size)
            await self._until_read()

    async def _transcribe(self, turn: _Turn) -> str:
        settings = turn.settings
        found: list[Segment] = []
        async with AsyncExitStack() as stack:
            request = ModelRequest(model=settings.model)
            lease = self._service.lease(stack, request, [SpeechModel], "transcriptions")
            self.model, model = await lease
            assert isinstance(model, SpeechModel)
            heard: npt.ArrayLike = turn.sound
            rate = None
            if isinstance(turn.sound, bytes):
                heard = await anyio.to_thread.run_sync(settings.form.samples, turn.sound)
                rate = settings.form.rate
            said = model.transcribe(
                heard, rate, language=settings.language, prompt=settings.context
            )
            await stack.enter_async_context(aclosing(said))
            async for segment in said:
                delta = segment.text if found else segment.text.lstrip()
                found.append(segment)
                self._emit(
                    "conversation.item.input_audio_transcription.delta", item_id=turn.item,
                    content_index=0, delta=delta,
                )  # fmt: skip
                await self._until_read()
        return as_text(found)


async def _samples(
    source: MemoryObjectReceiveStream[bytes], form: SoundForm
) -> AsyncGenerator[npt.NDArray[np.int16]]:
    async with source:
        async for piece in source:
            yield form.samples(piece)


def _error_of(error: BaseException) -> dict[str, Any]:
    """An error as events have it."""
    found: dict[str, Any] = openai_error(Failure(error))["error"]
    return found


def _empty(why: str) -> RequestError:
    return RequestError(
        400, f"there is nothing to commit: {why}", code="input_audio_buffer_commit_empty"
    )


class _Head(msgspec.Struct):
    """What an event has before its fields are read."""

    type: msgspec.Raw = msgspec.Raw(b"")
    event_id: msgspec.Raw = msgspec.Raw(b"")
    session: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True)
class _Read:
    """An event whose fields are not read yet."""

    event_id: str | None
    body: bytes
    wrong: RequestError | None = None


_HEAD: Final = msgspec.json.Decoder(_Head)
_KINDS: Final = (
    "session.update", "transcription_session.update", "input_audio_buffer.append",
    "input_audio_buffer.commit", "input_audio_buffer.clear",
)  # fmt: skip


def _read(data: str | bytes) -> _Read:
    """An event's id, and its body in the new form; says what is wrong instead of raising."""
    event_id: str | None = None
    try:
        head = _HEAD.decode(data)
        given = _plain(head.event_id)
        event_id = given if isinstance(given, str) and len(given) <= LONGEST_ID else None
        kind = _plain(head.type)
        if kind is None:
            raise RequestError(400, "the field 'type' is missing", field="type")
        if kind not in _KINDS:
            raise RequestError(
                400, f"type: {str(kind)[:64]!r} is not one of {', '.join(_KINDS)}", field="type",
                code="invalid_value",
            )  # fmt: skip
        session = _plain(head.session)
        if isinstance(session, dict):
            whole = msgspec.json.decode(data)
            data = msgspec.json.encode({**whole, "session": as_new_form(session)})
    except RequestError as error:
        return _Read(event_id, b"", error)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        wrong = RequestError(400, f"the event cannot be read as a JSON object: {error}")
        return _Read(event_id, b"", wrong)
    return _Read(event_id, data.encode() if isinstance(data, str) else data)


def _plain(raw: msgspec.Raw) -> object:
    found: object = msgspec.json.decode(raw) if bytes(raw) else None
    return found
