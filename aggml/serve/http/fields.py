"""Reading the body of a request: each field is built, an alias, harmless, refused or unknown.

Fields that are known and not built are refused by name, unless their value asks for nothing. A
field that nobody knows is ignored, and named to the client (header `IGNORED`), in a metric and once
in the log; a strict service refuses it. So nothing is ignored in silence. Not here: the fields
themselves (schema.py).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from aggml import InvalidArgument
from aggml.serve.http.schema import (
    ALIASES,
    FORMS,
    OTHERS,
    OllamaBase,
    OllamaOptions,
    RequestError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aggml.serve.http.schema import Other

__all__ = ["IGNORED", "NO_DEFAULTS", "Defaults", "Ignored", "decode_body", "target_of"]

T = TypeVar("T", bound=Struct)
SHORT: Final = 1000  # bytes; a longer value is not neutral
NAME: Final = 64  # characters of a client's name that are told
NAMES: Final = 16  # of ignored fields that are told in one answer
NEVER_DEFAULT: Final = frozenset({"model", "adapter", "lora", "timeout", "stream", "user"})
#: Ollama's names of fields that others have.
OF_OLLAMA: Final = {
    **dict.fromkeys(
        ("max_tokens", "n_predict", "max_completion_tokens", "max_output_tokens"), "num_predict"
    ),
    "repetition_penalty": "repeat_penalty",
}
REMEMBERED: Final = 256  # names of ignored fields that are counted and logged one by one
#: A whole number as languages without whole numbers write it; JSON schemas call it an integer.
_WHOLE: Final = re.compile(rb"[0-9]\.0+(?![0-9])")
IGNORED: Final = "x-aggml-ignored"  # the header that names ignored fields

_log = logging.getLogger("serve")
_OTHERS: Final = {name: other for other in OTHERS for name in other.names}


class Ignored:
    """The names of the fields that were ignored, of all requests of a service.

    Attributes:
        strict: refuse such fields instead.
        counts: requests that had the field, by its name.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.counts: dict[str, int] = {}

    def note(self, names: list[str]) -> str:
        """Count and log the names; returns them as the value of a header."""
        told = [quote(name[:NAME], safe="[]/@:+ ") for name in names]
        for name in told:
            counted = name if name in self.counts or len(self.counts) < REMEMBERED else "others"
            if counted not in self.counts:
                _log.warning("requests have the unknown field %s, which is ignored", counted)
            self.counts[counted] = self.counts.get(counted, 0) + 1
        return ", ".join(told[:NAMES])


class _Form:
    """The decoders and the required fields of one class of requests."""

    def __init__(self, kind: type[Struct]) -> None:
        fields = msgspec.structs.fields(kind)
        self.decoders = {x.encode_name: msgspec.json.Decoder(x.type) for x in fields}
        self.required = [x.encode_name for x in fields if x.required]
        self.raw = [
            x.encode_name for x in fields if Raw in (x.type, *get_args(x.type))
        ]  # null is a value of these
        types = {x.encode_name: msgspec.inspect.type_info(x.type) for x in fields}
        self.nested = {name: kind for name, kind in types.items() if _has_names(kind)}


def _has_names(kind: msgspec.inspect.Type) -> bool:
    """Whether values of a type are, or contain, objects whose names are known."""
    match kind:
        case msgspec.inspect.StructType():
            return True
        case msgspec.inspect.ListType(item_type=item):
            return _has_names(item)
        case msgspec.inspect.UnionType(types=types):
            return any(_has_names(x) for x in types)
        case msgspec.inspect.Metadata(type=inner):
            return _has_names(inner)
    return False


def _strangers(value: object, kind: msgspec.inspect.Type, at: str) -> Iterator[str]:
    """The names in a value that its type does not have, with the places where they stand."""
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            yield from _strangers(value, inner, at)
        case msgspec.inspect.UnionType(types=types):
            # Of the types of a union one is an object at most.
            for one in types:
                if _has_names(one):
                    yield from _strangers(value, one, at)
        case msgspec.inspect.ListType(item_type=item) if isinstance(value, list):
            for i, x in enumerate(value):
                yield from _strangers(x, item, f"{at}[{i}]")
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, dict):
            known = {x.encode_name: x.type for x in fields}
            for name, x in value.items():
                if name not in known:
                    yield f"{at}.{name}"
                elif _has_names(known[name]):
                    yield from _strangers(x, known[name], f"{at}.{name}")


_KINDS: Final[tuple[type[Struct], ...]] = (*FORMS, OllamaOptions)
_FORMS: Final[dict[type[Struct], _Form]] = {kind: _Form(kind) for kind in _KINDS}
_NAMES: Final = msgspec.json.Decoder(dict[str, Raw])


def target_of(name: str, kind: type[Struct]) -> str | None:
    """The field of a form that an alias stands for; None: it is no alias there."""
    known = _FORMS[kind].decoders
    return next((x for x in ALIASES.get(name, ()) if x in known), None)


class Defaults:
    """The values of fields that requests leave out, where they are not those of the schema.

    Args:
        given: values by the names of fields, or by their aliases.

    Raises:
        InvalidArgument: no request has the field, or it cannot have that value.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._of: dict[type[Struct], dict[str, Any]] = {kind: {} for kind in _FORMS}
        for name, value in given.items():
            wrong = ""
            for kind, form in _FORMS.items():
                target = _default_target(name, kind)
                if target is None or target in form.required or target in NEVER_DEFAULT:
                    continue
                try:
                    read = form.decoders[target].decode(msgspec.json.encode(value))
                except (msgspec.DecodeError, TypeError) as error:
                    wrong = f": {error}"  # of this protocol; another one may have such values
                    continue
                self._of[kind][target] = read
            if not any(self._has(kind, name) for kind in _FORMS):
                why = wrong or " is for no field of requests that may be left out"
                raise InvalidArgument(f"[serve] the default of {name!r}{why}")

    def _has(self, kind: type[Struct], name: str) -> bool:
        return _default_target(name, kind) in self._of[kind]

    def of(self, kind: type[Struct]) -> dict[str, Any]:
        """The values for a form."""
        return self._of[kind]

    def within(self, kind: type[Struct], name: str, raw: Raw) -> Raw:
        """The value of a field with the defaults of the fields in it: Ollama's `options`."""
        if name != "options" or not issubclass(kind, OllamaBase) or not self._of[OllamaOptions]:
            return raw
        try:
            told = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return raw  # the message of the field tells it
        if told is not None and not isinstance(told, dict):
            return raw
        return Raw(msgspec.json.encode(self._of[OllamaOptions] | (told or {})))


def _default_target(name: str, kind: type[Struct]) -> str | None:
    """The field of a form that a default is for."""
    if name in _FORMS[kind].decoders:
        return name
    if kind is OllamaOptions:
        return OF_OLLAMA.get(name)
    return target_of(name, kind)


NO_DEFAULTS: Final = Defaults({})


def decode_body(
    body: bytes,
    kind: type[T],
    unknown: list[str] | None = None,
    defaults: Defaults = NO_DEFAULTS,
) -> T:
    """Decode the body of a request. Null stands for a field that is not given.

    Args:
        body: JSON in UTF-8.
        kind: the form of the request.
        unknown: gets the names of fields that nobody knows; None: they are refused.
        defaults: of the fields that are not there.

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
    if issubclass(kind, OllamaBase):
        given["options"] = defaults.within(kind, "options", given.get("options", Raw(b"null")))
    for name, raw in given.items():
        target = name if name in form.decoders else target_of(name, kind)
        if target is None:
            _check(name, raw, unknown)
        elif target != name and target in given:
            continue
        elif bytes(raw) != b"null" or target in form.raw:
            values[target] = _value(form.decoders[target], name, raw)
            if target in form.nested:
                found = _strangers(msgspec.json.decode(raw), form.nested[target], name)
                _note(found, unknown)
    for name in form.required:
        if name not in values:
            raise RequestError(400, f"the field {name!r} is missing", field=name)
    return kind(**(defaults.of(kind) | values))


def _note(names: Iterator[str], unknown: list[str] | None) -> None:
    for name in names:
        if unknown is None:
            raise _unknown(name)
        if len(unknown) < REMEMBERED:
            unknown.append(name)


def _value(decoder: msgspec.json.Decoder[Any], name: str, raw: Raw) -> object:
    try:
        found: object = decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _WHOLE.search(bytes(raw)):
            whole = _write_whole(raw)
            if whole != bytes(raw):
                return _value(decoder, name, Raw(whole))
        raise RequestError(400, f"{name}: {error}", field=name) from error
    return raw.copy() if isinstance(found, Raw) else found


def _write_whole(raw: Raw) -> bytes:
    """JSON with its whole numbers written without a point, as types of whole numbers ask for."""

    def whole(value: object) -> object:
        match value:
            case float() if value.is_integer() and abs(value) < 1 << 53:
                return int(value)
            case list():
                return [whole(x) for x in value]
            case dict():
                return {name: whole(x) for name, x in value.items()}
        return value

    try:
        return msgspec.json.encode(whole(msgspec.json.decode(raw)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bytes(raw)  # the message of the field tells it


def _unknown(name: str) -> RequestError:
    return RequestError(
        400, f"the field {name[:NAME]!r} is unknown: check its name or leave it out",
        field=name[:NAME],
    )  # fmt: skip


def _check(name: str, raw: Raw, unknown: list[str] | None) -> None:
    """Refuse a field that is not built, unless its value asks for nothing."""
    other = _OTHERS.get(name)
    if other is None:
        _note(iter([name]), unknown)
        return
    if other.neutral is None:
        return
    text = bytes(raw)
    try:
        value = msgspec.json.decode(text) if len(text) < SHORT else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"{name}: {error}", field=name) from error
    if value is None or any(_same(value, neutral) for neutral in other.neutral):
        return
    raise _not_built(name, other)


def _not_built(name: str, other: Other) -> RequestError:
    accepted = [msgspec.json.encode(x).decode() for x in other.neutral or ()]
    return RequestError(
        400, f"the field {name!r} is not supported: {other.why}; "
        + " or ".join(["leave it out", *accepted]), field=name,
    )  # fmt: skip


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal; true is not 1, but 1.0 is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
