"""What all answers have in common: JSON, server-sent events, errors in the form of each protocol.

Not here: the answers of a protocol (openai.py and the others), sending (streams.py).
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from aggml import InvalidArgument, InvalidState, Unsupported
from aggml.models import DeadlineError, EngineError, FullError, ModelError, TooLongError
from aggml.serve.http.bodies import ENCODINGS
from aggml.serve.http.schema import FORMS, RequestError
from aggml.serve.http.streams import HungUpError, SlowError, TooLargeError, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "DAMAGED", "Failure", "anthropic_error", "as_json", "event_of", "line_of", "llama_error",
    "ollama_error",    "openai_error",
]  # fmt: skip

_log = logging.getLogger("serve")
DAMAGED: Final = "the model's numbers overflow, or its file is damaged"


def as_json(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with a body of JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")


def event_of(content: object, name: str | None = None) -> bytes:
    """A server-sent event of JSON, in one line for all clients.

    Many clients split the stream with str.splitlines, which ends a line at U+0085, U+2028 and
    U+2029, too. So these characters are escaped, as JSON allows.

    Args:
        content: of the event.
        name: the type of the event; None: it has none.
    """
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _one_line(content) + b"\n\n"


def line_of(content: object) -> bytes:
    """A line of JSON."""
    return _one_line(content) + b"\n"


def _one_line(content: object) -> bytes:
    body = msgspec.json.encode(content)
    if not body.isascii():
        for raw, spelt in _LINE_ENDS:
            body = body.replace(raw, spelt)
    return body


_LINE_ENDS: Final = tuple((x.encode(), f"\\u{ord(x):04x}".encode()) for x in "\x85\u2028\u2029")


class Failure:
    """The error that a client gets for an exception.

    Attributes:
        status: of HTTP.
        headers: of the answer.
        message: what is wrong.
        kind: of the error, in OpenAI's words.
        field: of the request; None: none.
        code: OpenAI's; None: none.
        more: further members of the error.
    """

    def __init__(self, error: BaseException) -> None:
        error = first_of(error)
        self.headers: dict[str, str] = {}
        self.kind = "invalid_request_error"
        self.message = str(error)
        if isinstance(error, EngineError):
            self.message = _without_place(self.message)
        self.field: str | None = None
        self.code: str | None = None
        self.more: dict[str, Any] = {}
        match error:
            case RequestError():
                self._refuse(error)
            case TooLargeError():
                self.status = 413
            case SlowError():
                self.status = 408
                self.headers["connection"] = "close"
            case TooLongError():
                self.status, self.field, self.code = 400, error.field, "context_length_exceeded"
                self.kind = "exceed_context_size_error"  # OpenAI's clients look at the code
                if error.tokens is not None and error.most is not None:
                    # The words by which clients know this error.
                    self.message = (
                        f"This model's maximum context length is {error.most} tokens, but the "
                        f"prompt has {error.tokens} tokens: make it shorter"
                    )
                    self.more = {"n_prompt_tokens": error.tokens, "n_ctx": error.most}
            case FullError():
                self.status, self.kind = 503, "overloaded_error"
                self.headers["retry-after"] = str(math.ceil(error.seconds))
            case DeadlineError():
                self.status, self.kind = 504, "timeout_error"
            case TimeoutError():
                self.status, self.kind = 504, "timeout_error"
                self.message = "the answer was not complete by the deadline"
            case HungUpError():
                self.status, self.message = 499, "the client has gone"
            case InvalidArgument() | Unsupported():
                self.status = 400
                self.field, self.message = _field_of(_without_place(self.message))
            case EngineError() | InvalidState():
                self.status, self.kind = 500, "server_error"
            case ModelError():
                self.status, self.message = 400, _without_place(self.message)
            case _:
                _log.error("a request failed", exc_info=error)
                self.status, self.kind, self.message = 500, "server_error", "internal error"

    def _refuse(self, error: RequestError) -> None:
        self.status, self.field, self.code = error.status, error.field, error.code
        self.more = error.more
        if error.retry is not None:
            self.headers["retry-after"] = str(math.ceil(error.retry))
        match error.status:
            case 401:
                self.headers["www-authenticate"] = "Bearer"
            case 415:
                self.headers["accept-encoding"] = ", ".join(ENCODINGS)
            case 429:
                self.kind = "rate_limit_error"
            case 503:
                self.kind = "overloaded_error"

    def response(self, form: Callable[[Failure], object] | None = None) -> Response:
        """The error as the whole answer, in the form of a protocol; None: OpenAI's."""
        return as_json((form or openai_error)(self), self.status, self.headers)

    def event(self) -> bytes:
        """The error as an event of OpenAI's streams: the status is already sent."""
        return event_of(openai_error(self))


def _without_place(message: str) -> str:
    """The message of an error without the call that raised it, which is not the client's."""
    if message.startswith("["):
        return message.partition("] ")[2] or message
    return message


#: Names of arguments in Python, and those of the fields that become them.
ARGUMENTS: Final = {
    "stop_ids": "stop_token_ids", "schema": "json_schema", "choices": "choice",
    "sequences": "input", "texts": "input", "think": "reasoning_effort",
    "template_args": "chat_template_kwargs", "continue_final": "continue_final_message",
}  # fmt: skip
_WORD: Final = re.compile(r"[a-z_]+")


def _field_of(message: str) -> tuple[str | None, str]:
    """The field that an error of an argument is about, and the error with its name."""
    found = _WORD.match(message)
    if found is None:
        return None, message
    field = ARGUMENTS.get(found[0], found[0])
    return (field if field in _FIELDS else None), field + message[found.end() :]


# `msgspec.structs.fields` reads the annotations, too: 35 ms for all forms.
_FIELDS: Final = frozenset(name for form in FORMS for name in form.__struct_encode_fields__)


def openai_error(failure: Failure) -> dict[str, Any]:
    """An error in the form of OpenAI."""
    return {
        "error": {
            "message": failure.message,
            "type": failure.kind,
            "param": failure.field,
            "code": failure.code,
            **failure.more,
        }
    }


_ANTHROPIC: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


def anthropic_error(failure: Failure) -> dict[str, Any]:
    """An error in the form of Anthropic."""
    usual = "invalid_request_error" if failure.status < 500 else "api_error"
    message = failure.message
    if failure.code == "context_length_exceeded" and "n_ctx" in failure.more:
        tokens, most = failure.more["n_prompt_tokens"], failure.more["n_ctx"]
        message = f"prompt is too long: {tokens} tokens > {most} maximum"
    kind = _ANTHROPIC.get(failure.status, usual)
    return {"type": "error", "error": {"type": kind, "message": message}}


_LLAMA: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    501: "not_supported_error", 503: "unavailable_error",
}  # fmt: skip


def llama_error(failure: Failure) -> dict[str, Any]:
    """An error in the form of llama-server."""
    usual = "invalid_request_error" if failure.status < 500 else "server_error"
    kind = _LLAMA.get(failure.status, usual)
    message = failure.message
    if failure.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
        if "n_ctx" in failure.more:
            tokens, most = failure.more["n_prompt_tokens"], failure.more["n_ctx"]
            message = (
                f"the request ({tokens} tokens) exceeds the available context size "
                f"({most} tokens), make it shorter"
            )
    told = {"code": failure.status, "message": message, "type": kind}
    return {"error": {**told, "param": failure.field, **failure.more}}


def ollama_error(failure: Failure) -> dict[str, Any]:
    """An error in the form of Ollama."""
    return {"error": failure.message}
