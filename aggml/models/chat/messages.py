"""Messages of a conversation: those that a program gives are checked, those of the model are made.

Here: roles, contents, what an answer tells. Not here: the text of a conversation (template.py), its
tokens (prompt.py).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from aggml import InvalidArgument
from aggml.models.arguments import is_text, json_value, one_text, show
from aggml.models.vision.given import is_picture, picture_of, picture_of_part

if TYPE_CHECKING:
    from aggml.models.token_stream import Token
    from aggml.models.vision.given import GivenPicture

__all__ = [
    "ROLES", "ChatDelta", "ChatMessage", "ToolCall", "ToolCallDelta", "Usage", "pictures_in",
    "read_messages",
]  # fmt: skip

ChatFinish = Literal["stop", "length", "tool_calls"]
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
ALONE: Final = ": the model reads text alone; load it with mmproj= for pictures"
WITH_PICTURES: Final = ("system", "developer", "user", "tool")
KEYS: Final = (
    "role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content",
)  # fmt: skip
#: Keys that OpenAI's answers have; they may be there if they say nothing.
NOTHING: Final = ("refusal", "audio", "annotations", "function_call")


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens an answer took.

    Attributes:
        prompt_tokens: of the conversation before the answer.
        completion_tokens: of the answer.
        cached_tokens: how many of ``prompt_tokens`` had been computed for an earlier request.
        reasoning_tokens: how many of ``completion_tokens`` were thoughts.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _CallFields(NamedTuple):
    """What the tuple of a call has."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolCall(_CallFields):
    """A call of a function, as the model wants it: a tuple ``(id, name, arguments)``.

    Attributes:
        id: "call_" and 24 characters; the message with the result names it as ``tool_call_id``.
        name: of the function.
        arguments: by name.
        text: the arguments as the model wrote them, in JSON; it is no part of the tuple.
    """

    text: str

    def __new__(
        cls,
        id: str,  # noqa: A002 the field's name
        name: str,
        arguments: dict[str, Any],
        text: str | None = None,
    ) -> Self:
        """A call; without ``text``, that is what `json.dumps` makes of the arguments."""
        made = super().__new__(cls, id, name, arguments)
        made.text = json.dumps(arguments, ensure_ascii=False) if text is None else text
        return made


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call: the first one of each call has its id and name.

    Attributes:
        index: of the call among those of the answer.
        id: of the call; None but in its first piece.
        name: of the function; None but in the first piece.
        arguments: JSON that follows the pieces before.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The answer of a model to a conversation, which may be put behind it for the next turn.

    Attributes:
        content: the text.
        reasoning: what the model thought before; None if it did not.
        tool_calls: the functions that it wants to have called.
        finish_reason: why the answer ended, "stop", "length" or "tool_calls".
        usage: how many tokens there were.
        role: "assistant".
        tokens: those of the answer, with their ``logprob`` if ``logprobs`` was asked for.
    """

    content: str
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: ChatFinish | None = None
    usage: Usage = Usage()
    role: str = field(default="assistant", init=False)
    tokens: list[Token] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of an answer, as it comes.

    Attributes:
        content: text that follows the text of the pieces before; empty in the last one.
        reasoning: the same of its thoughts; None: this piece has none.
        tool_calls: pieces of calls.
        finish_reason: of the last piece: why the answer ended; None for the others.
        tokens: those that were taken for this piece, also such as add no text.
    """

    content: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    finish_reason: ChatFinish | None = None
    tokens: list[Token] = field(default_factory=list, compare=False, repr=False)


def read_messages(place: str, messages: Any, *, sees: bool = False) -> list[dict[str, Any]]:  # noqa: ANN401
    """The messages of a conversation with their roles, texts, names and calls.

    A text has a mark in the place of each picture; a message's "pictures" has these by their marks.

    Args:
        place: the call, for errors.
        messages: whatever was given.
        sees: whether they may have pictures.

    Raises:
        InvalidArgument: something is no message; the error names it, as ``messages[3].content``.
        Unsupported: a picture is an address.
    """
    if isinstance(messages, (str, Mapping, ChatMessage)):
        raise InvalidArgument(
            f"[{place}] messages is {show(messages)}, expected a list of messages: put brackets "
            "around one message, and make of a text {'role': 'user', 'content': text}"
        )
    if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"[{place}] messages is {show(messages)}, expected a list of messages"
        )
    if not messages:
        raise InvalidArgument(f"[{place}] messages is empty, there must be at least one message")
    return [_read_message(place, f"messages[{i}]", x, sees=sees) for i, x in enumerate(messages)]


def _read_message(place: str, name: str, message: Any, *, sees: bool) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(message, ChatMessage):
        return _answer_of(message)
    if not isinstance(message, Mapping):
        raise InvalidArgument(
            f"[{place}] {name} is {show(message)}, expected a message: "
            "{'role': 'user', 'content': text}"
        )
    for key in message:
        if key not in KEYS and not (key in NOTHING and _says_nothing(message[key])):
            raise InvalidArgument(
                f"[{place}] {name} has the key {show(key)}, expected {', '.join(KEYS)}"
            )
    role = message.get("role")
    if "role" not in message:
        raise InvalidArgument(f"[{place}] {name}.role is missing")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidArgument(
            f"[{place}] {name}.role is {show(role)}, expected one of {', '.join(ROLES)}"
        )
    found: dict[str, Any] = {"role": role}
    calls = message.get("tool_calls")
    calls = None if calls is None else _read_calls(place, f"{name}.tool_calls", calls)
    thoughts = "reasoning" if "reasoning" in message else "reasoning_content"
    told = message.get(thoughts)
    told = None if told is None else one_text(place, f"{name}.{thoughts}", told)
    if role != "assistant" and (calls or told):
        key = "tool_calls" if calls else thoughts
        raise InvalidArgument(
            f"[{place}] {name}.{key} is {show(message[key])}, but only the assistant has that"
        )
    if calls:
        found["tool_calls"] = calls
    if told:
        found["reasoning"] = told
    content = message.get("content")
    if content is None and (calls or told):
        content = ""
    elif "content" not in message:
        raise InvalidArgument(f"[{place}] {name}.content is missing")
    pictures: dict[str, GivenPicture] | None = {} if sees else None
    found["content"] = _read_content(place, f"{name}.content", content, pictures)
    if pictures:
        if role not in WITH_PICTURES:
            raise InvalidArgument(
                f"[{place}] {name}.content has a picture, but its role is {role!r}, expected one "
                f"of {', '.join(WITH_PICTURES)}"
            )
        found["pictures"] = pictures
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            found[key] = one_text(place, f"{name}.{key}", message[key])
    return found


def _says_nothing(value: Any) -> bool:  # noqa: ANN401
    """Whether a key that OpenAI's answers have is empty."""
    return value is None or (isinstance(value, (str, Sequence, Mapping)) and len(value) == 0)


def _answer_of(message: ChatMessage) -> dict[str, Any]:
    """An answer of an earlier call."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": x.id, "type": "function", "function": {"name": x.name, "arguments": x.arguments}}
            for x in message.tool_calls
        ]
    if message.reasoning:
        found["reasoning"] = message.reasoning
    return found


def _read_calls(place: str, name: str, calls: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Calls of an assistant's message, in OpenAI's form, with the arguments as a dict."""
    if not isinstance(calls, (list, tuple)):
        raise InvalidArgument(f"[{place}] {name} is {show(calls)}, expected a list of calls")
    found = []
    for i, call in enumerate(calls):
        at = f"{name}[{i}]"
        if isinstance(call, ToolCall):
            call = {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(function, Mapping):
            raise InvalidArgument(
                f"[{place}] {at} is {show(call)}, expected {{'id': ..., 'type': 'function', "
                "'function': {'name': ..., 'arguments': ...}}"
            )
        if "name" not in function:
            raise InvalidArgument(f"[{place}] {at}.function.name is missing")
        title = one_text(place, f"{at}.function.name", function["name"])
        if not is_text(call.get("type", "function"), "function"):
            raise InvalidArgument(
                f"[{place}] {at}.type is {show(call['type'])}, expected 'function'"
            )
        given = function.get("arguments")
        if given is None or (isinstance(given, str) and not given.strip()):
            given = {}
        if isinstance(given, str):
            try:
                given = json.loads(one_text(place, f"{at}.function.arguments", given))
            except (ValueError, RecursionError):
                raise InvalidArgument(
                    f"[{place}] {at}.function.arguments is {show(given)}, expected JSON"
                ) from None
        if not isinstance(given, Mapping):
            raise InvalidArgument(
                f"[{place}] {at}.function.arguments is {show(given)}, expected an object"
            )
        given = json_value(place, f"{at}.function.arguments", given)
        number = call.get("id")
        number = "" if number is None else one_text(place, f"{at}.id", number)
        number = number or f"call_{i}"
        about = {"name": title, "arguments": given}
        found.append({"id": number, "type": "function", "function": about})
    return found


def pictures_in(messages: Sequence[Mapping[str, Any]]) -> dict[str, GivenPicture]:
    """The pictures of messages that `read_messages` gave, by the marks in their texts."""
    found: dict[str, GivenPicture] = {}
    for message in messages:
        found |= message.get("pictures", {})
    return found


def _read_content(
    place: str,
    name: str,
    content: Any,  # noqa: ANN401 whatever was given
    pictures: dict[str, GivenPicture] | None,
) -> str:
    """The text of a message, with a mark for each picture, under which it is put.

    ``pictures`` None: pictures are refused.
    """
    if isinstance(content, str):
        return one_text(place, name, content)
    if not isinstance(content, (list, tuple)):
        raise InvalidArgument(
            f"[{place}] {name} is {show(content)}, expected a text or a list of parts "
            "{'type': 'text', 'text': text}"
        )
    texts = []
    for i, part in enumerate(content):
        at = f"{name}[{i}]"
        if isinstance(part, str):
            texts.append(one_text(place, at, part))
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if pictures is not None and (is_picture(part) or is_text(kind, "image_url", "image")):
            # Nobody who writes a message can guess a mark.
            mark = f"Z{secrets.token_hex(12)}Z"
            pictures[mark] = (
                picture_of_part(place, at, part) if isinstance(part, Mapping)
                else picture_of(place, at, part)
            )  # fmt: skip
            texts.append(mark)
            continue
        if not isinstance(part, Mapping):
            raise InvalidArgument(
                f"[{place}] {at} is {show(part)}, expected a text or a part "
                "{'type': 'text', 'text': text}"
            )
        if not is_text(kind, "text"):
            raise InvalidArgument(
                f"[{place}] {at}.type is {show(part.get('type'))}, expected 'text'"
                + (" or 'image_url'" if pictures is not None else ALONE)
            )
        if set(part) != {"type", "text"}:
            raise InvalidArgument(
                f"[{place}] {at} has the keys {show(sorted(map(str, part)))}, expected type, text"
            )
        texts.append(one_text(place, f"{at}.text", part["text"]))
    return "".join(texts)
