"""Answers in the form of OpenAI's API: completions and chats, whole or as events; errors.

Not here: requests (schema.py), one choice and its tokens (choice.py), the computation (engine.py).
"""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from starlette.responses import Response

from aggml.models.engine.jobs import EngineError, FullError, TooLongError
from aggml.serve.http.bodies import ENCODINGS
from aggml.serve.http.choice import chat_logprobs, text_logprobs
from aggml.serve.http.resuming import Note
from aggml.serve.http.schema import RequestError
from aggml.serve.http.streams import HungUpError, TooLargeError, first_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.serve.http.choice import Choice, Told
    from aggml.serve.http.resuming import SoFar, Write

__all__ = ["Failure", "Form", "as_json", "event_of"]

_ids = itertools.count(1)
_log = logging.getLogger("serve")


def as_json(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with a body of JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")


# -- errors


class Failure:
    """The error that a client gets for an exception."""

    def __init__(self, error: BaseException) -> None:
        error = first_of(error)
        self.headers: dict[str, str] = {}
        message, kind = str(error), "invalid_request_error"
        field = code = None
        match error:
            case RequestError():
                self.status, field, code = error.status, error.field, error.code
                if self.status == 401:
                    self.headers["www-authenticate"] = "Bearer"
                if self.status == 415:
                    self.headers["accept-encoding"] = ", ".join(ENCODINGS)
            case TooLargeError():
                self.status = 413
            case TooLongError():
                self.status, field = 400, error.field
            case FullError():
                self.status, kind = 503, "overloaded_error"
                self.headers["retry-after"] = str(error.seconds)
            case TimeoutError():
                self.status, kind = 504, "timeout_error"
                message = "the answer was not complete by the deadline"
            case HungUpError():
                self.status, message = 499, "the client has gone"
            case EngineError():
                self.status, kind = 500, "server_error"
            case _:
                _log.error("a request failed", exc_info=error)
                self.status, kind, message = 500, "server_error", "internal error"
        self.content = {"error": {"message": message, "type": kind, "param": field, "code": code}}

    def response(self) -> Response:
        """The error as the whole answer."""
        return as_json(self.content, self.status, self.headers)

    def event(self) -> bytes:
        """The error as an event, for a stream that has begun: its status is already sent."""
        return event_of(self.content)


# -- answers

ENDED: Final = Note(ended=True)


def event_of(content: object) -> bytes:
    """A server-sent event of JSON, in one line for all clients.

    Many clients split the stream with str.splitlines, which ends a line at U+0085, U+2028 and
    U+2029, too. So these characters are escaped, as JSON allows.
    """
    body = msgspec.json.encode(content)
    if not body.isascii():
        for raw, spelt in _LINE_ENDS:
            body = body.replace(raw, spelt)
    return b"data: " + body + b"\n\n"


_LINE_ENDS: Final = tuple((x.encode(), f"\\u{ord(x):04x}".encode()) for x in "\x85\u2028\u2029")


class Form:
    """Writes an answer in the form of OpenAI's API.

    Args:
        choices: the texts of the answer, each with its tokens.
        chat: whether it has the form of chats; else that of completions.
        model: the name of the model in the answer.
        so_far: the part that another service has sent already, if any.
    """

    def __init__(
        self, choices: Sequence[Choice], *, chat: bool, model: str, so_far: SoFar | None = None
    ) -> None:
        self._choices = choices
        self._chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{so_far.name if so_far else next(_ids)}",
            "created": so_far.created if so_far else int(time.time()),
            "model": model,
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        found = []
        for choice in self._choices:
            content: dict[str, Any] = {"text": choice.text}
            if self._chat:
                content = {"message": {"role": "assistant", "content": choice.text}}
            end = {"finish_reason": choice.reason, "logprobs": self._told(choice, choice.told)}
            found.append({"index": choice.index, **content, **end})
        return {**self._head, "object": self._kind, "choices": found, "usage": self._usage()}

    async def events(self, write: Write, seconds: float, *, usage: bool) -> None:
        """Write the answer as server-sent events, those of several choices as they come.

        Args:
            write: sends them.
            seconds: until the answer must be complete; else an error is the last event.
            usage: whether the event before ``[DONE]`` tells how many tokens there were.
        """
        try:
            with anyio.fail_after(seconds):
                async with anyio.create_task_group() as tasks:
                    for choice in self._choices:
                        tasks.start_soon(self._events_of, choice, write)
        except Exception as error:
            if isinstance(first_of(error), HungUpError):
                raise
            await write(Failure(error).event(), ENDED)
            return
        last = self._event([], usage=self._usage()) if usage else b""
        await write(last + b"data: [DONE]\n\n", ENDED)

    async def _events_of(self, choice: Choice, write: Write) -> None:
        if choice.ended:
            return
        if self._chat and not choice.begun:
            await write(self._piece(choice, {"role": "assistant", "content": ""}), choice.note())
        async with aclosing(choice.pieces()) as pieces:
            async for text, told in pieces:
                await write(self._piece(choice, {"content": text}, told=told), choice.note())
        await write(self._piece(choice, {}, reason=choice.reason), choice.note(ended=True))

    def _piece(
        self,
        choice: Choice,
        delta: dict[str, str],
        *,
        told: Sequence[Told] = (),
        reason: str | None = None,
    ) -> bytes:
        content = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        logprobs = self._told(choice, told) if told else None
        end = {"finish_reason": reason, "logprobs": logprobs}
        return self._event([{"index": choice.index, **content, **end}])

    def _told(self, choice: Choice, told: Sequence[Told]) -> dict[str, Any] | None:
        """Probabilities of tokens; None if the request does not want them."""
        if not choice.tells:
            return None
        return chat_logprobs(told) if self._chat else text_logprobs(told)

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:  # noqa: ANN401 JSON
        kind = self._kind + ".chunk" if self._chat else self._kind
        event = {**self._head, "object": kind, "choices": choices, **more}
        return event_of(event)

    def _usage(self) -> dict[str, Any]:
        """The numbers of tokens. A prompt with several answers counts once."""
        firsts = {id(choice.prompt): choice for choice in reversed(self._choices)}
        made = sum(choice.made for choice in self._choices)
        prompt = sum(len(choice.prompt) for choice in firsts.values())
        cached = sum(choice.cached for choice in firsts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
