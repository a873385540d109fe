"""ChatPrompt: the tokens of a conversation, up to where the model's answer begins.

The text of a message stays text: a name of a control token in it, such as ``<|im_end|>``, would end
the message, so somebody else's text could speak for the system. Such a name is replaced by private
characters before the template sees it. They become the name's letters again when the tokens between
the template's own control tokens are made. Here: that, and arguments of templates. Not here:
templates (template.py), tokens of a text (../tokenizers).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.to_thread

from aggml import InvalidArgument
from aggml.models.arguments import show
from aggml.models.chat.messages import pictures_in
from aggml.models.errors import ModelError
from aggml.models.vision.given import GivenPicture
from aggml.models.vision.prompt import PicturePrompt

if TYPE_CHECKING:
    from aggml.models.chat.asking import ToolOffer
    from aggml.models.chat.template import ChatTemplate
    from aggml.models.chat.tools.format import ToolFormat
    from aggml.models.tokenizers import Vocabulary
    from aggml.models.tokenizers.quotes import Quotes

__all__ = ["Conversing", "Prompt", "encode_messages", "knows_tools", "read_template_args"]

SHOWN: Final = "[picture]"  # a picture in a text that people read

_KNOWS_TOOLS: Final = re.compile(r"\btools\b")


def knows_tools(template: str) -> bool:
    """Whether a template writes the functions that a model may call."""
    return _KNOWS_TOOLS.search(template) is not None


#: Names of a template that `template_args` may not replace.
OURS: Final = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"}
)


def read_template_args(place: str, given: Any) -> dict[str, Any]:  # noqa: ANN401
    """Further names for the template, such as ``enable_thinking``.

    Raises:
        InvalidArgument: no mapping from texts; a name that the conversation itself sets.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"[{place}] template_args is {show(given)}, expected names with their values"
        )
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(
                f"[{place}] template_args has the name {show(name)}, expected an identifier"
            )
        if name in OURS:
            raise InvalidArgument(
                f"[{place}] template_args has the name {name!r}, which the conversation sets"
            )
    return dict(given)


class Conversing(Protocol):
    """The part of a `TextModel` that makes a prompt of a conversation."""

    @property
    def tokenizer(self) -> Vocabulary:
        """Text to token ids and back."""
        ...

    @property
    def template(self) -> ChatTemplate:
        """From messages to text."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of an answer.

    Attributes:
        ids: its tokens; empty if it has pictures.
        text: its text, with quotes around names of control tokens in messages.
        plain: its text without quotes.
        mixed: its tokens and pictures; None: it has no pictures.
    """

    ids: list[int]
    text: str
    plain: str
    mixed: PicturePrompt | None = None


async def encode_messages(
    model: Conversing,
    messages: list[dict[str, Any]],
    template_args: Mapping[str, Any],
    offer: ToolOffer | None = None,
    form: ToolFormat | None = None,
    *,
    continue_final: bool = False,
    begins: bool = True,
) -> Prompt:
    """The prompt of a conversation, with one BOS if the model expects it.

    In a thread: reading a template takes 20 ms the first time, and one of a few lines may compute
    for 2 s before it is stopped.

    Args:
        model: has the template.
        messages: as `read_messages` gives them.
        template_args: as `read_template_args` gives them.
        offer: the functions that the model may call; None: none.
        form: how the model writes calls.
        continue_final: end within the last message, which is the assistant's.
        begins: end where a new message of the assistant begins, unless one is continued.

    Raises:
        ModelError: the template refuses the conversation, or fails.
    """

    def encode() -> Prompt:
        template, vocabulary = model.template, model.tokenizer
        pictures = pictures_in(messages)
        known = [{k: x for k, x in one.items() if k != "pictures"} for one in messages]
        more: dict[str, Any] = dict(template_args)
        source = template.whole_source
        if "developer" not in template.source:
            known = [x | {"role": "system"} if x["role"] == "developer" else x for x in known]
        tools = [] if offer is None or offer.choice == "none" else list(offer.tools)
        given = [{"type": "function", "function": x.given} for x in tools]
        quotes = vocabulary.quotes([*_texts(known), *_texts(given)])
        if quotes:
            known, given = _quote(known, quotes), _quote(given, quotes)
        if knows_tools(source):
            if given:
                more["tools"] = given
            known = _with_calls(template, known)
        else:
            known = _write_as_text(known, given)
        known = _with_thoughts(known)
        end, opens = "", begins and not continue_final
        if continue_final:
            end = "Z" + secrets.token_hex(8) + "Z"
            known = [*known[:-1], known[-1] | {"content": known[-1]["content"] + end}]
        try:
            text = template.render(
                template.adapt_contents(known), add_generation_prompt=opens, **more
            )
        except ModelError:  # some templates take no message of the system
            if not given or knows_tools(source) or len(known) < 2 or known[0]["role"] != "system":
                raise
            first, second, *rest = known
            joined = f"{first['content']}\n\n{second['content']}"
            known = [second | {"content": joined}, *rest]
            text = template.render(
                template.adapt_contents(known), add_generation_prompt=opens, **more
            )
        if continue_final:
            at = text.rfind(end)
            if at < 0:
                raise ModelError("the chat template does not write the message that is continued")
            text = text[:at]
        if pictures:
            return _encode_with_pictures(vocabulary, text, quotes, pictures)
        ids = vocabulary.encode_quoted(text, quotes) if quotes else vocabulary.encode_prompt(text)
        return Prompt(ids, text, quotes.unquote(text) if quotes else text)

    return await anyio.to_thread.run_sync(encode)


def _encode_with_pictures(
    vocabulary: Vocabulary, text: str, quotes: Quotes | None, pictures: Mapping[str, GivenPicture]
) -> Prompt:
    """The prompt of a text with marks of pictures.

    Raises:
        ModelError: the template leaves a picture out, or writes it twice.
    """
    parts: list[str | list[int] | GivenPicture] = []
    plain = text
    for part in re.split("(" + "|".join(map(re.escape, pictures)) + ")", text):
        if part in pictures:
            parts.append(pictures[part])
            plain = plain.replace(part, SHOWN)
        elif part and quotes:
            parts.append(vocabulary.encode_quoted(part, quotes, special=False))
        elif part:
            parts.append(vocabulary.encode(part, special=False))
    written = sum(isinstance(x, GivenPicture) for x in parts)
    if written != len(pictures):
        raise ModelError(
            f"the chat template writes {written} pictures, the messages have {len(pictures)}"
        )
    plain = quotes.unquote(plain) if quotes else plain
    return Prompt([], text, plain, PicturePrompt(tuple(parts)))


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 JSON
    """All texts in messages or tools, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _quote(value: Any, quotes: Quotes) -> Any:  # noqa: ANN401 JSON
    """The same with names of control tokens in quotes."""
    if isinstance(value, str):
        return quotes.quote(value)
    if isinstance(value, Mapping):
        return {_quote(key, quotes): _quote(one, quotes) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quote(one, quotes) for one in value]
    return value


def _with_calls(template: ChatTemplate, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with calls in the form that a template takes: arguments as a dict, or as JSON."""
    if not any("tool_calls" in x or x["role"] == "tool" for x in messages):
        return messages
    nine = "length != 9" in template.whole_source  # of Mistral: ids of nine letters and digits
    as_text = any("tool_calls" in x for x in messages) and template.takes_json_arguments
    found = []
    for message in messages:
        known = dict(message)
        if "tool_calls" in known:
            known["tool_calls"] = [
                _call_for(x, as_text=as_text, nine=nine) for x in known["tool_calls"]
            ]
        if nine and "tool_call_id" in known:
            known["tool_call_id"] = _nine(known["tool_call_id"])
        found.append(known)
    # A result names its function by its call's id; some templates want the name.
    names = {
        call["id"]: call["function"]["name"] for x in found for call in x.get("tool_calls", ())
    }
    return [
        x if x["role"] != "tool" or "name" in x or x.get("tool_call_id") not in names
        else x | {"name": names[x["tool_call_id"]]}
        for x in found
    ]  # fmt: skip


def _call_for(call: dict[str, Any], *, as_text: bool, nine: bool) -> dict[str, Any]:
    function = dict(call["function"])
    if as_text:
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "id": _nine(call["id"]) if nine else call["id"], "function": function}


def _nine(given: str) -> str:
    """An id of nine letters and digits."""
    if len(given) == 9 and given.isalnum() and given.isascii():
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:9]


def _with_thoughts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with thoughts under all the names by which templates look for them."""
    return [
        x if "reasoning" not in x
        else {**x, "reasoning_content": x["reasoning"], "thinking": x["reasoning"]}
        for x in messages
    ]  # fmt: skip


TOLD: Final = """You may call these functions, each given with the JSON schema of its arguments:
{tools}
To call one, write nothing but its name and its arguments, in JSON between tags:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


def _write_as_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Write functions, calls and results as texts, for templates that know no tools."""
    found: list[dict[str, Any]] = []
    for message in messages:
        known = {k: v for k, v in message.items() if k not in ("tool_calls", "tool_call_id")}
        if "tool_calls" in message:
            calls = "\n".join(
                f"<tool_call>\n{json.dumps(x['function'], ensure_ascii=False)}\n</tool_call>"
                for x in message["tool_calls"]
            )
            known["content"] = f"{known['content']}\n{calls}".strip()
        if message["role"] == "tool":
            text = f"<tool_response>\n{known['content']}\n</tool_response>"
            known = {"role": "user", "content": text}
            if found and found[-1].get("content", "").endswith("</tool_response>"):
                found[-1]["content"] += "\n" + text
                continue
        found.append(known)
    if tools:
        lines = "\n".join(json.dumps(x["function"], ensure_ascii=False) for x in tools)
        told = TOLD.format(tools=lines)
        if found and found[0]["role"] == "system":
            found[0] = found[0] | {"content": f"{found[0]['content']}\n\n{told}"}
        else:
            found.insert(0, {"role": "system", "content": told})
    return found
