"""The fields of a request, which are built, harmless or refused; reading the bodies of requests.

A field is built if the request's class in schema.py has it. Other fields that clients are known to
send are in the table `OTHERS`. Harmless ones are ignored, the rest is refused; a field in neither
place is refused as unknown. So no field that would change an answer is ignored. Not here: types and
bounds of the built fields (schema.py).
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from aggml.serve.http.schema import (
    Chat,
    Completion,
    Embeddings,
    RequestError,
    Rerank,
    Transcription,
)

__all__ = ["FORMS", "OTHERS", "Other", "decoded"]

T = TypeVar("T", bound=Struct)
FORMS: Final[tuple[type[Struct], ...]] = (Completion, Chat, Embeddings, Rerank, Transcription)
SHORT: Final = 1000  # bytes; a longer value is not neutral


class Other(NamedTuple):
    """A field that is not built.

    Attributes:
        names: the field, and others for which the same holds.
        why: why it is harmless, or what is done instead; shown in documentation and refusals.
        neutral: values that ask for nothing, beside null. None: all values do.
    """

    names: tuple[str, ...]
    why: str
    neutral: tuple[object, ...] | None = ()

    @property
    def state(self) -> Literal["harmless", "refused"]:
        """Whether the field is harmless or refused."""
        return "harmless" if self.neutral is None else "refused"


OTHERS: Final = (
    Other(
        ("user", "safety_identifier", "metadata", "store", "request_id", "priority"),
        "for the operator's records",
        None,
    ),
    Other(
        (
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "cache_prompt",
            "prediction",
        ),
        "changes when an answer comes, not what it is",
        None,
    ),
    Other(("parallel_tool_calls",), "concerns tools, which are refused", None),
    Other(("echo",), "the prompt is not given back", (False,)),
    Other(("suffix",), "text is not filled in", ("",)),
    Other(("tools", "functions", "documents"), "the model is told of none", ([],)),
    Other(("rank_fields",), "the text of a document is looked at", (["text"],)),
    Other(("max_chunks_per_doc",), "documents are not cut into chunks", (1,)),
    Other(("max_tokens_per_doc",), "documents are not cut", (0,)),
    Other(("truncation",), "texts are not cut", (False,)),
    Other(("tool_choice", "function_call"), "the model is told of no tools", ("none", "auto")),
    Other(("response_format",), "answers are text", ({"type": "text"},)),
    Other(
        (
            "grammar",
            "json_schema",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "structured_outputs",
            "logits_processors",
        ),
        "answers are not held to a form",
        ("", {}),
    ),
    Other(("modalities",), "answers are text", (["text"],)),
    Other(("audio", "web_search_options"), "answers are text of the model", ()),
    Other(("reasoning_effort",), "the model is not told", ("none",)),
    Other(("verbosity",), "the model is not told", ("medium",)),
    Other(("chat_template", "chat_template_kwargs"), "the template is that of the model", ("", {})),
    Other(("add_generation_prompt",), "the answer is the assistant's", (True,)),
    Other(("continue_final_message",), "the answer is a message of its own", (False,)),
    Other(("use_beam_search", "early_stopping"), "there is one beam", (False,)),
    Other(("length_penalty",), "there is one beam", (1,)),
    Other(("include_stop_str_in_output",), "stop strings are cut off", (False,)),
    Other(("skip_special_tokens",), "special tokens are no text", (True,)),
    Other(("add_special_tokens",), "the prompt begins as the model wants", (True,)),
    Other(("truncate_prompt_tokens", "n_keep"), "prompts are not cut", (0,)),
    Other(("prompt_logprobs",), "logprobs are those of the answer", (0,)),
    Other(("repeat_penalty",), "its name here is repetition_penalty", (1,)),
    Other(("n_predict",), "its name here is max_tokens", (-1,)),
    Other(("typical_p", "tfs_z", "dynatemp_exponent"), "not among the samplers", (1,)),
    Other(
        ("mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range"),
        "not among the samplers",
        (0,),
    ),
)
_OTHERS: Final = {name: other for other in OTHERS for name in other.names}


class _Form:
    """The decoders and the required fields of one class of requests."""

    def __init__(self, kind: type[Struct]) -> None:
        fields = msgspec.structs.fields(kind)
        self.decoders = {x.encode_name: msgspec.json.Decoder(x.type) for x in fields}
        self.required = [x.encode_name for x in fields if x.required]
        self.raw = [x.encode_name for x in fields if x.type is Raw]  # null is a value of these


_FORMS: Final[dict[type, _Form]] = {kind: _Form(kind) for kind in FORMS}
_NAMES: Final = msgspec.json.Decoder(dict[str, Raw])


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request. Null stands for a field that is not given.

    Raises:
        RequestError: the body is no JSON, lacks a field, or has one that is refused, unknown or
            has a wrong value; the message names the field.
    """
    form = _FORMS[kind]
    try:
        given = _NAMES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"the body: {error}") from error
    values: dict[str, Any] = {}
    for name, raw in given.items():
        decoder = form.decoders.get(name)
        if decoder is None:
            _check(name, raw)
        elif bytes(raw) != b"null" or name in form.raw:
            values[name] = _value(decoder, name, raw)
    for name in form.required:
        if name not in values:
            raise RequestError(400, f"the field {name!r} is missing", field=name)
    return kind(**values)


def _value(decoder: msgspec.json.Decoder[Any], name: str, raw: Raw) -> object:
    try:
        found: object = decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"{name}: {error}", field=name) from error
    return raw.copy() if isinstance(found, Raw) else found


def _check(name: str, raw: Raw) -> None:
    """Refuse a field that is not built, unless its value asks for nothing."""
    other = _OTHERS.get(name)
    if other is None:
        raise RequestError(400, f"the field {name[:64]!r} is not known here", field=name[:64])
    if other.neutral is None:
        return
    text = bytes(raw)
    try:
        value = msgspec.json.decode(text) if len(text) < SHORT else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"{name}: {error}", field=name) from error
    if value is None or any(_same(value, neutral) for neutral in other.neutral):
        return
    raise RequestError(400, f"the field {name!r} is not supported: {other.why}", field=name)


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal; true is not 1, but 1.0 is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
