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
        ("safety_identifier", "metadata", "store", "request_id"),
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
    Other(("echo",), "answers do not repeat the prompt", (False,)),
    Other(("suffix",), "the model continues texts, and does not fill gaps in them", ("",)),
    Other(
        ("tools", "functions", "documents"), "the model is not told of tools or documents", ([],)
    ),
    Other(("rank_fields",), "documents are ranked by their field text", (["text"],)),
    Other(("max_chunks_per_doc",), "documents are not cut into chunks, but ranked whole", (1,)),
    Other(("max_tokens_per_doc",), "documents are not shortened, but ranked whole", (0,)),
    Other(("truncation",), "texts that are too long are refused, and not cut", (False,)),
    Other(("tool_choice", "function_call"), "the model is not told of tools", ("none", "auto")),
    Other(("response_format",), "answers are free text", ({"type": "text"},)),
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
        "answers are free text: no grammar, schema or list of choices restricts them",
        ("", {}),
    ),
    Other(("modalities",), "answers are text", (["text"],)),
    Other(
        ("audio", "web_search_options"),
        "the model writes text, and neither speaks nor searches",
        (),
    ),
    Other(("reasoning_effort",), "models have no such setting here", ("none",)),
    Other(("verbosity",), "models have no such setting here", ("medium",)),
    Other(
        ("chat_template", "chat_template_kwargs"),
        "the chat template of the model file is used",
        ("", {}),
    ),
    Other(
        ("add_generation_prompt",), "the answer always begins a message of the assistant", (True,)
    ),
    Other(("continue_final_message",), "the answer is always a new message", (False,)),
    Other(("use_beam_search", "early_stopping"), "there is no beam search", (False,)),
    Other(("length_penalty",), "there is no beam search", (1,)),
    Other(
        ("include_stop_str_in_output",),
        "the text that ends an answer is never part of it",
        (False,),
    ),
    Other(("skip_special_tokens",), "special tokens are never part of the text", (True,)),
    Other(
        ("add_special_tokens",), "the special tokens that the model needs are always added", (True,)
    ),
    Other(
        ("truncate_prompt_tokens", "n_keep"),
        "prompts that are too long are refused, and not cut",
        (0,),
    ),
    Other(("prompt_logprobs",), "logprobs are given for the answer only", (0,)),
    Other(("repeat_penalty",), "its name here is repetition_penalty", (1,)),
    Other(("n_predict",), "its name here is max_tokens", (-1,)),
    Other(("typical_p", "tfs_z", "dynatemp_exponent"), "there is no such sampler here", (1,)),
    Other(
        ("mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range"),
        "there is no such sampler here",
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
        raise RequestError(400, f"the body cannot be read as a JSON object: {error}") from error
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
        raise RequestError(
            400, f"the field {name[:64]!r} is unknown: check its name or leave it out",
            field=name[:64],
        )  # fmt: skip
    if other.neutral is None:
        return
    text = bytes(raw)
    try:
        value = msgspec.json.decode(text) if len(text) < SHORT else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"{name}: {error}", field=name) from error
    if value is None or any(_same(value, neutral) for neutral in other.neutral):
        return
    accepted = [msgspec.json.encode(x).decode() for x in other.neutral]
    raise RequestError(
        400, f"the field {name!r} is not supported: {other.why}; "
        + " or ".join(["leave it out", *accepted]), field=name,
    )  # fmt: skip


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal; true is not 1, but 1.0 is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
