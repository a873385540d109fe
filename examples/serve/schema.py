"""What requests may hold, in the words of OpenAI's API; fields that are not named are ignored.

Not here: what becomes of them (app.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

T = TypeVar("T")
MOST: Final = 256  # inputs in one request
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
_TextOrTokens = str | Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class RequestError(Exception):
    """A request that cannot be answered: HTTP status, kind and reason."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class StreamOptions(Struct):
    """What a stream tells beyond the answer."""

    include_usage: bool = False


class Generation(Struct, kw_only=True):
    """What both kinds of completion share; top_k and timeout (seconds) are additions."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.8
    top_p: Annotated[float, Meta(gt=0, le=1)] = 0.95
    top_k: Annotated[int, Meta(ge=0)] = 40
    n: Annotated[int, Meta(ge=1, le=16)] | None = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    timeout: Annotated[float, Meta(gt=0)] | None = None

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [x for x in given if x]


class Completion(Generation, kw_only=True):
    """A text to go on with."""

    prompt: Raw  # a text, a list of tokens, or a list of these: see prompts()
    max_tokens: Count | None = 16
    echo: bool | None = False
    logprobs: int | None = None


class Message(Struct):
    """One of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """The content as text.

        Raises:
            RequestError: it has parts that are no text.
        """
        if isinstance(self.content, list):
            for part in self.content:
                if part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise RequestError(400, f"content of type {part.get('type')!r}, not text")
            return "".join(part["text"] for part in self.content)
        return self.content or ""


class Chat(Generation, kw_only=True):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False


class Embeddings(Struct, kw_only=True):
    """Texts to embed."""

    input: Raw  # as the prompt of a completion
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    timeout: Annotated[float, Meta(gt=0)] | None = None


def prompts(given: Raw) -> list[Raw]:
    """One or several, each still as it came: a million tokens take 25 ms to decode.

    Raises:
        RequestError: there are none, or too many.
    """
    text = bytes(given).lstrip()
    if text[:1] != b"[" or text[1:].lstrip()[:1] in b"0123456789-":
        return [given]
    found = msgspec.json.decode(text, type=list[Raw])
    if not 1 <= len(found) <= MOST:
        raise RequestError(400, f"{len(found)} inputs in one request, not 1 to {MOST}")
    return found


def prompt_of(given: Raw, i: int, most: int) -> str | list[int]:
    """An input: a text, or a list of tokens.

    Args:
        given: as it came.
        i: which of the request's.
        most: tokens that it may have; of a longer list no more than its length is looked at.

    Raises:
        RequestError: it is something else, or too long.
    """
    text = bytes(given).lstrip()
    tokens = text.count(b",") + 1
    if text[:1] == b"[" and tokens > most:
        raise RequestError(400, f"input {i} has some {tokens} tokens, of {most} at most")
    try:
        found: str | list[int] = msgspec.json.decode(text, type=_TextOrTokens)
    except msgspec.ValidationError as error:
        raise RequestError(400, f"input {i} is neither a text nor a list of tokens") from error
    return found


def decoded(body: bytes, kind: type[T]) -> T:
    """A request's body.

    Raises:
        RequestError: it is no JSON, or not of that form.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, str(error)) from error
