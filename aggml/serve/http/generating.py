"""Fields of a request become arguments of `TextModel.generate` and `chat`, prompts become tokens.

Here: sampling, constraints, messages, tools, prompts. `generate` and `chat` check the values. Not
here: the fields of requests (schema.py), the routes of a protocol.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio.to_thread
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Meta

from aggml.models import TooLongError
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Raw

    from aggml.models import Model, TextModel
    from aggml.serve.http.exchange import Exchange
    from aggml.serve.http.schema import ContentPart, FunctionTool, Message, Sampling

__all__ = [
    "begin_text", "check_ending", "check_tokens", "continues", "decode_prompt", "effort_of",
    "encode", "encode_prompt", "encode_texts", "messages_of", "part_text", "sampling_options",
    "split_prompts", "tokens_to_keep", "too_long", "tools_of",
]  # fmt: skip

LONG_TEXT: Final = 500  # characters; longer texts are tokenized in a thread
LEAST_TOP_P: Final = 1e-9  # keeps the most probable token alone; 0 does so in a request
#: Names of samplers that llama.cpp has, with the names that `TextModel.generate` has for them.
SAMPLER_NAMES: Final = {
    "typ_p": "typical_p", "temp": "temperature", "top-k": "top_k", "top-p": "top_p",
    "min-p": "min_p", "typical": "typical_p", "typ-p": "typical_p", "top-n-sigma": "top_n_sigma",
}  # fmt: skip
#: The same by the letters of llama.cpp; "infill" is not in aggml.
SAMPLER_LETTERS: Final = {
    "e": "penalties", "d": "dry", "k": "top_k", "y": "typical_p", "p": "top_p", "s": "top_n_sigma",
    "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
}  # fmt: skip
#: Fields that become arguments of the same name, unless they have their default.
SAME_NAME: Final = (
    "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens",
    "typical_p", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_breakers", "dynatemp_range", "dynatemp_exponent", "mirostat",
    "mirostat_tau", "mirostat_eta", "include_stop", "allowed_ids", "bad_words",
)  # fmt: skip
_TextOrTokens = str | Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


# -- sampling and constraints


def sampling_options(
    given: Sampling, model: TextModel, exchange: Exchange, logprobs: int | None
) -> dict[str, Any]:
    """The fields as arguments of `TextModel.generate`, but for ``max_tokens``.

    Args:
        given: the request.
        model: answers it.
        exchange: takes the names of what is ignored.
        logprobs: how many of the most probable tokens are reported with each token; None: not even
            its own probability is.
    """
    ends = frozenset[int]() if given.ignore_eos else model.tokenizer.ends
    found: dict[str, Any] = {
        "temperature": max(0.0, given.temperature),
        "top_k": max(0, given.top_k),
        "top_p": max(LEAST_TOP_P, given.top_p),
        "seed": None if given.seed == -1 else given.seed and given.seed % (1 << 64),
        "stop": _stops(given.stop),
        "stop_ids": sorted(ends | frozenset(given.stop_token_ids)),
        "logit_bias": given.logit_bias,
        "logprobs": logprobs,
        "priority": given.priority,
        "deadline": given.timeout,
        "adapter": exchange.adapter,
        **_constraint(given),
    }
    defaults = _defaults_of(type(given))
    for name in SAME_NAME:
        value = getattr(given, name)
        # min_p has another default in each protocol, so it is passed on in any case.
        if name == "min_p" or value != defaults[name]:
            found[name] = value
    found.setdefault("min_tokens", given.min_tokens)
    if given.show_special or not given.skip_special_tokens:
        found["show_special"] = True
    if given.top_n_sigma > 0:
        found["top_n_sigma"] = given.top_n_sigma
    if given.dry_range != -1:
        found["dry_range"] = given.dry_range
    if given.samplers:
        found["samplers"] = _samplers(given.samplers, exchange)
    return found


@functools.cache  # reading annotations takes 4 ms, which no request may take on the event loop
def _defaults_of(form: type[Sampling]) -> dict[str, Any]:
    return {x.encode_name: x.default for x in msgspec.structs.fields(form)}


def _stops(given: str | list[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    return [x for x in texts if x]


def _samplers(given: list[str] | str, exchange: Exchange) -> list[str]:
    """The samplers by the names of `TextModel.generate`; "infill" is reported as ignored."""
    names = [SAMPLER_LETTERS.get(x, x) for x in given] if isinstance(given, str) else given
    found = []
    for name in names:
        if name == "infill":
            exchange.unknown.append("samplers[infill]")
        else:
            found.append(SAMPLER_NAMES.get(name, name))
    return found


def _constraint(given: Sampling) -> dict[str, Any]:
    """The argument that constrains the text of the answer; empty: there is no constraint.

    Raises:
        RequestError: more than one field constrains it.
    """
    found: list[tuple[str, str, Any]] = []
    if given.json_schema not in (None, ""):
        found.append(("json_schema", "schema", given.json_schema))
    if given.regex:
        found.append(("regex", "regex", given.regex))
    if given.choice:
        found.append(("choice", "choices", given.choice))
    if given.grammar:
        found.append(("grammar", "grammar", given.grammar))
    other = given.structured_outputs
    if other is not None:
        if other.json is not None:
            found.append(("structured_outputs", "schema", other.json))
        if other.json_object:
            found.append(("structured_outputs", "schema", {"type": "object"}))
        if other.regex:
            found.append(("structured_outputs", "regex", other.regex))
        if other.choice:
            found.append(("structured_outputs", "choices", other.choice))
        if other.grammar:
            found.append(("structured_outputs", "grammar", other.grammar))
    if len(found) > 1:
        names = " and ".join(x[0] for x in found[:2])
        raise RequestError(
            400, f"{found[1][0]}: {names} both say what the answer must be: give one of them",
            field=found[1][0],
        )  # fmt: skip
    return {argument: value for _, argument, value in found}


EFFORTS: Final[dict[str, bool | str]] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "high", "max": "high",
}  # fmt: skip


def effort_of(effort: str | None, budget: int | None = None) -> bool | int | str | None:
    """The argument ``think`` of `TextModel.chat`.

    Args:
        effort: one of `EFFORTS`; None: the request does not say.
        budget: the most tokens of thoughts; None or negative: the effort counts.
    """
    if budget is not None and budget >= 0:
        return budget
    return None if effort is None else EFFORTS[effort]


# -- messages and tools


def check_ending(generates: bool | None, *, continued: bool) -> None:
    """Refuse a request that begins a new message and also continues the last one.

    Args:
        generates: whether the prompt ends with the begin of a message of the assistant; None: the
            request does not say.
        continued: whether the prompt ends within the last message.

    Raises:
        RequestError: the prompt would have to end in both places.
    """
    if generates and continued:
        raise RequestError(
            400, "continue_final_message: add_generation_prompt begins a new message, and this "
            "continues the last one: give one of them", field="continue_final_message",
        )  # fmt: skip


def continues(
    wanted: bool | Literal["auto"], messages: Sequence[Message], *, generates: bool | None
) -> bool:
    """Whether the answer continues the last message.

    Args:
        wanted: as a request says it; "auto": if that is the assistant's and has no calls.
        messages: of the conversation.
        generates: whether the request says that a new message begins.

    Raises:
        RequestError: "auto" finds two messages of the assistant at the end.
    """
    if not messages:
        return wanted is True
    last = messages[-1]
    if last.role == "assistant" and last.prefix:
        return True
    if wanted != "auto":
        return wanted
    if generates or last.role != "assistant" or last.tool_calls:
        return False
    if len(messages) > 1 and messages[-2].role == "assistant":
        raise RequestError(
            400, "messages: two of the assistant are at the end, and the last one is to be "
            "continued: join them, or set continue_final_message", field="messages",
        )  # fmt: skip
    return True


def part_text(part: ContentPart, at: str) -> str:
    """The text of a part of a message.

    Raises:
        RequestError: it is a picture, a sound, ...
    """
    if part.type in ("text", "input_text", "output_text") and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("thinking", "reasoning"):
        return ""
    raise RequestError(
        400, f"{at}.type is {part.type[:64]!r}, expected 'text': the model reads text alone",
        field="messages",
    )  # fmt: skip


def _part(part: ContentPart, at: str, *, sees: bool) -> dict[str, Any]:
    """A part of a message as `TextModel.chat` takes it, which reads pictures itself."""
    if sees and part.type == "image_url":
        return {"type": "image_url", "image_url": part.image_url}
    return {"type": "text", "text": part_text(part, at)}


def messages_of(given: Sequence[Message], *, sees: bool = False) -> list[dict[str, Any]]:
    """Messages as `TextModel.chat` takes them.

    Args:
        given: the messages of a request.
        sees: whether they may have pictures.

    Raises:
        RequestError: a part is no text, and no picture that the model may see.
    """
    found = []
    for i, message in enumerate(given):
        content: Any = message.content
        if isinstance(message.content, list):
            at = f"messages[{i}].content"
            content = [_part(x, f"{at}[{j}]", sees=sees) for j, x in enumerate(message.content)]
        one: dict[str, Any] = {"role": message.role, "content": "" if content is None else content}
        if message.name is not None:
            one["name"] = message.name
        thoughts = message.reasoning_content or message.reasoning
        if thoughts:
            one["reasoning_content"] = thoughts
        if message.tool_calls:
            one["tool_calls"] = [
                {
                    "id": call.id or "",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": call.function.arguments or {},
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
        found.append(one)
    return found


def tools_of(given: Sequence[FunctionTool] | None) -> list[dict[str, Any]] | None:
    """Tools as `TextModel.chat` takes them; None: none."""
    if not given:
        return None
    found = []
    for tool in given:
        one: dict[str, Any] = {"name": tool.function.name}
        for name in ("description", "parameters", "strict"):
            value = getattr(tool.function, name)
            if value is not None:
                one[name] = value
        found.append({"type": "function", "function": one})
    return found


# -- prompts


def split_prompts(given: Raw, field: str, most: int) -> list[Raw]:
    """Split a field into its prompts, not decoded yet: decoding 1M tokens takes 25 ms.

    Args:
        given: the field's value.
        field: its name.
        most: the most prompts in one request.

    Raises:
        RequestError: there are no prompts, or too many.
    """
    text = bytes(given).lstrip()
    if text[:1] != b"[" or text[1:].lstrip()[:1] in b"0123456789-":
        return [given]
    found = msgspec.json.decode(text, type=list[msgspec.Raw])
    if any(bytes(x)[:1].isdigit() for x in found):  # texts and tokens of one prompt
        return [given]
    if not 1 <= len(found) <= most:
        raise RequestError(
            400, f"{field}: has {len(found)} inputs, a request must have 1 to {most}", field=field
        )
    return found


def decode_prompt(given: Raw, i: int, most: int, field: str) -> str | list[int]:
    """Decode a prompt: a text, or a list of tokens.

    Args:
        given: the prompt, not decoded yet.
        i: its number in the request.
        most: the most tokens; a longer list is refused without decoding it.
        field: the field in which it stands.

    Raises:
        RequestError: it is neither.
        TooLongError: it is a list of more tokens than ``most``.
    """
    text = bytes(given).lstrip()
    tokens = text.count(b",") + 1
    if text[:1] == b"[" and tokens > most:
        raise too_long(field, tokens, most)
    try:
        found: str | list[int] = msgspec.json.decode(text, type=_TextOrTokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            400, f"{field}: input {i} is neither a text nor a list of tokens", field=field
        ) from error
    return found


def tokens_to_keep(given: int | None, ctx: int, answer: int | None) -> int | None:
    """How many tokens of a prompt are kept, its last ones; None: all.

    Args:
        given: the field ``truncate_prompt``; negative: as many as leave room for the answer.
        ctx: the positions of a sequence.
        answer: the most tokens of the answer; None: the prompt gets at least half of the positions.
    """
    if not given:
        return None
    if given > 0:
        return given
    return max(1, ctx - min(ctx // 2 if answer is None else answer, ctx - 1))


def too_long(field: str, tokens: int, most: int) -> TooLongError:
    """The error for a prompt of more tokens than the context has positions."""
    return TooLongError(f"{field}: has {tokens} tokens, the most is {most}", field, tokens, most)


def check_tokens(ids: Sequence[int], vocabulary: int, field: str) -> None:
    """Check tokens that a client gave.

    Raises:
        RequestError: the model does not know one of them.
    """
    wrong = next((x for x in ids if not 0 <= x < vocabulary), None)
    if wrong is not None:
        raise RequestError(
            400, f"{field}: there is no token {wrong}, the model has 0 to {vocabulary - 1}",
            field=field,
        )  # fmt: skip


async def encode_prompt(
    model: TextModel,
    prompt: str | list[int],
    field: str,
    *,
    special: bool = True,
    cut: int | None = None,
) -> list[int]:
    """Token ids of a prompt.

    Args:
        model: continues it.
        prompt: a text, or a list of tokens.
        field: the field in which it stands.
        special: whether BOS and EOS are put around a text, as the model expects.
        cut: how many tokens are kept, the last ones; None: all.

    Raises:
        RequestError: it has no tokens, or tokens that the model does not know.
        TooLongError: it does not fit into the context.
    """
    if isinstance(prompt, list):
        check_tokens(prompt, model.vocabulary_size, field)
        ids = prompt
    elif special:
        ids = await encode(model.tokenizer.encode_prompt, prompt)
    else:
        ids = await encode(lambda x: model.tokenizer.encode(x, special=False), prompt)
    if cut is not None:
        ids = ids[-cut:]
    if not ids:
        raise RequestError(400, f"{field}: is empty, there must be at least one token", field=field)
    if len(ids) > model.ctx:
        raise too_long(field, len(ids), model.ctx)
    return ids


def begin_text(model: TextModel) -> list[int]:
    """The tokens of a prompt that a request does not give: the one that begins a text.

    Raises:
        RequestError: the model has no such token.
    """
    bos = model.tokenizer.bos
    if bos is None:
        raise RequestError(
            400,
            "prompt: is missing, and the model has no token that begins a text",
            field="prompt",
        )
    return [bos]


async def encode_texts(
    model: Model,
    given: Raw,
    field: str,
    exchange: Exchange,
    *,
    cut: bool = False,
    most: int | None = None,
) -> list[list[int]]:
    """Token ids of the texts to embed.

    Args:
        model: embeds them.
        given: the value of the field.
        field: its name.
        exchange: has the limits.
        cut: whether texts that are too long are cut; else they are refused.
        most: the most tokens of a text; None: as many as the model takes.

    Raises:
        RequestError: one is no text, has no tokens or unknown ones.
        TooLongError: one is too long.
    """
    most = model.ctx if most is None else min(most, model.ctx)
    prefix = getattr(model, "prompts", {}).get(getattr(model, "prompt", None), "")
    found = []
    for i, raw in enumerate(split_prompts(given, field, exchange.service.options.max_inputs)):
        parts = _llama_input(raw)
        one = decode_prompt(raw, i, (1 << 31) if cut else most, field) if parts is None else ""
        if parts is not None and not isinstance(parts, str):
            ids = await _tokenize_parts(model, parts, field)
        elif isinstance(one, str):
            text = one if parts is None else parts
            ids = await encode(model.tokenizer.encode_prompt, prefix + text)
        else:
            check_tokens(one, model.vocabulary_size, field)
            ids = one
        if len(ids) > most:
            if not cut:
                raise RequestError(
                    400, f"{field}: input {i} is too large: it has {len(ids)} tokens, but this "
                    f"model's maximum context length is {most} tokens", field=field,
                    code="context_length_exceeded",
                    more={"n_prompt_tokens": len(ids), "n_ctx": most},
                )  # fmt: skip
            ids = [*ids[: most - 1], ids[-1]] if most > 1 else ids[:1]
        if not ids:
            raise RequestError(400, f"{field}: input {i} has no tokens", field=field)
        found.append(ids)
        await checkpoint()
    return found


def _llama_input(given: Raw) -> str | list[int | str] | None:
    """An input in a form that llama-server takes beside OpenAI's; None: in none of these.

    Such forms are lists of tokens and texts, objects with ``prompt_string``, and objects with
    ``content``, which is a list of parts of text.
    """
    text = bytes(given).lstrip()
    if text[:1] == b"[" and b'"' in text:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(text, type=list[Annotated[int, Meta(ge=0)] | str])
    if text[:1] == b"{":
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found = msgspec.json.decode(text, type=_TextObject)
            if found.prompt_string is not None:
                return found.prompt_string
            if found.content and all(x.type == "text" for x in found.content):
                return "".join(x.text for x in found.content)
    return None


class _TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the ``content`` of a `_TextObject`."""

    type: str
    text: str


class _TextObject(msgspec.Struct, forbid_unknown_fields=True):
    """An input in the form of an object; it has one of the two fields."""

    prompt_string: str | None = None
    content: list[_TextPart] | None = None


async def _tokenize_parts(model: Model, parts: Sequence[int | str], field: str) -> list[int]:
    """Token ids of tokens and texts that follow each other.

    Raises:
        RequestError: the model does not know one of the tokens.
    """
    tokenizer = model.tokenizer
    check_tokens([x for x in parts if isinstance(x, int)], model.vocabulary_size, field)
    ids: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        elif i == 0:
            ids += await encode(tokenizer.encode_prompt, part)
        else:
            ids += await encode(lambda x: tokenizer.encode(x, special=False), part)
    return ids


async def encode(function: Callable[..., list[int]], *texts: str) -> list[int]:
    """Call a function that makes token ids of texts; for long texts in a thread."""
    if sum(map(len, texts)) > LONG_TEXT:
        return await anyio.to_thread.run_sync(function, *texts)
    return function(*texts)
