"""Grammar: what an answer must match, as it was given; checked as far as that takes no time.

Here: one form for JSON schemas, regular expressions, choices and grammars. Not here: compiling them
and what they allow at each token (constraints.py).
"""
# ruff: noqa: ANN401 - arguments are whatever was given until they are checked

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard
from urllib.parse import quote

from aggml import InvalidArgument
from aggml.models.arguments import json_text, one_text, show, text_list

__all__ = [
    "CHOICES", "JSON_FORM", "Grammar", "GrammarKind", "arguments_json", "ascii_classes",
    "close_objects", "grammar_of", "inline_json", "json_pattern", "plain_schema", "schema_text",
]  # fmt: skip

GrammarKind = Literal["schema", "regex", "choices", "gbnf", "lark"]

LONGEST: Final = 1 << 19  # characters of a grammar
CHOICES: Final = 4096


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must match.

    Attributes:
        kind: of the text.
        text: a schema and choices are JSON.
    """

    kind: GrammarKind
    text: str

    @property
    def name(self) -> str:
        """The argument of `generate` that gives such a text."""
        return "grammar" if self.kind in ("gbnf", "lark") else self.kind


def grammar_of(place: str, name: str, value: Any) -> Grammar:
    """The argument ``name``, one of schema, regex, choices and grammar, checked.

    Raises:
        InvalidArgument: it has another type, or is too long.
    """
    if name == "schema":
        return Grammar("schema", schema_text(place, name, value))
    if name == "choices":
        texts = text_list(place, name, value, ordered=False)
        if not 0 < len(texts) <= CHOICES:
            raise InvalidArgument(
                f"[{place}] choices has {len(texts)} texts, must have 1 to {CHOICES}"
            )
        if "" in texts:
            raise InvalidArgument(
                f"[{place}] choices[{texts.index('')}] is empty, each must have a character"
            )
        return _check_grammar(
            place, name, Grammar("choices", json.dumps(texts, ensure_ascii=False))
        )
    text = one_text(place, name, value)
    if not text.strip():
        raise InvalidArgument(f"[{place}] {name} is empty")
    kind: GrammarKind = "regex" if name == "regex" else "gbnf" if "::=" in text else "lark"
    return _check_grammar(place, name, Grammar(kind, text))


def _check_grammar(place: str, name: str, grammar: Grammar) -> Grammar:
    if len(grammar.text) > LONGEST:
        raise InvalidArgument(
            f"[{place}] {name} has {len(grammar.text)} characters, at most {LONGEST} are allowed"
        )
    return grammar


def schema_text(place: str, name: str, value: Any) -> str:
    """A JSON schema as JSON.

    Raises:
        InvalidArgument: it is none, or too long or too deep.
    """
    if isinstance(value, str):
        try:
            value = json.loads(one_text(place, name, value))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"[{place}] {name} is no JSON: {error}") from None
    if not isinstance(value, (Mapping, bool)):
        raise InvalidArgument(
            f"[{place}] {name} is {show(value)}, expected a JSON schema: a dict, or its text"
        )
    if value is False:
        raise InvalidArgument(f"[{place}] {name} is false, which allows nothing")
    text = json_text(place, name, value)
    return _check_grammar(place, name, Grammar("schema", text)).text


#: JSON as `json.dumps` writes it. Any number of blanks would let a model write them for ever.
JSON_FORM: Final[dict[str, bool | str]] = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
}  # fmt: skip
_PIECES: Final = re.compile(r"\\.|\[\^?\]?|\]|&&|--|~~", re.DOTALL)
_ASCII: Final = {"\\d": "0-9", "\\w": "0-9A-Za-z_"}
#: Characters that a class has by all standards, and those that it has by one of them.
_KINDS: Final = {
    "\\d": (_ASCII["\\d"], r"\p{N}"),
    "\\w": (_ASCII["\\w"], r"\p{L}\p{M}\p{N}\p{Pc}"),
    "\\s": (
        r"\t-\r\x20\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
        r"\s\x1c-\x1f\ufeff",
    ),
}


def ascii_classes(regex: str) -> str:
    r"""A regular expression in which ``\d`` and ``\w`` are digits and letters of ASCII alone.

    So they are in ECMAScript, whose expressions JSON schemas have. In llguidance they are those of
    all scripts, some of which validators do not know.
    """
    inside = False

    def translate(found: re.Match[str]) -> str:
        nonlocal inside
        text = found[0]
        if text[0] == "[":
            inside = True
        elif text == "]":
            inside = False
        known = _ASCII.get(text)
        if known is None:
            return text
        return known if inside else f"[{known}]"

    return _PIECES.sub(translate, regex)


def json_pattern(regex: str) -> str:
    r"""A pattern of a JSON schema, as llguidance takes it; see also `ascii_classes`.

    Validators differ in what ``\d``, ``\w``, ``\s`` and their opposites are: ECMAScript has digits
    and letters of ASCII, Python those of all scripts. Here they are what all of them take.

    Within ``[...]`` brackets, ``&&``, ``--`` and ``~~`` are characters in ECMAScript, and operators
    in llguidance. And a class that has all control characters, as ``[^"]`` has, there allows every
    escape of JSON, even ``\"``. Therefore U+0000 is taken out of classes that begin with ``[^``.
    """
    inside = negated = False

    def translate(found: re.Match[str]) -> str:
        nonlocal inside, negated
        text = found[0]
        if text[0] == "[":
            if inside:  # a character of the class, which a "]" after it ends
                inside = text[-1] != "]"
                return "\\" + text
            inside, negated = True, text[1:2] == "^"
            return "[^\\x00" + text[2:].replace("]", "\\]") if negated else text
        if text == "]":
            inside = False
        if inside and text in ("&&", "--", "~~"):
            return f"\\{text[0]}\\{text[1]}"
        by_all, by_some = _KINDS.get(text.lower(), ("", ""))
        if not by_all:
            return text
        # A negated class leaves out whatever one of the standards counts to it.
        excludes = inside and negated
        if text[1].islower():
            kind = by_some if excludes else by_all
            return kind if inside else f"[{kind}]"
        return f"[^{by_all if excludes else by_some}]"

    return _PIECES.sub(translate, regex)


#: Characters of a URI, which `plain_schema` leaves as they are; "%" begins a quoted one.
_OF_URIS: Final = "!#$%&'()*+,/:;=?@[]~"
#: Keywords whose values are schemas by names that the author of the schema chose.
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


#: How far from a whole ``exclusiveMinimum`` or ``exclusiveMaximum`` an answer's number is at least.
_LEAST: Final = 1e-9


def plain_schema(schema: Any) -> Any:
    """A schema as llguidance needs it: its patterns, its references, its exclusive bounds.

    Patterns are translated by `json_pattern`. References become URIs, because programs write them
    as they name their classes: ``#/$defs/Größe``. An exclusive bound becomes a bound, because
    llguidance lets a number be 5 under ``exclusiveMinimum: 5``, and -5 under ``exclusiveMaximum:
    -5``, if the other bound is less than 1 away.
    """
    if isinstance(schema, list):
        return [plain_schema(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            found[key] = json_pattern(value)
        elif key == "$ref" and isinstance(value, str):
            found[key] = quote(value, safe=_OF_URIS)
        elif key in _BY_NAME and isinstance(value, dict):
            by_regex = key == "patternProperties"
            found[key] = {
                json_pattern(k) if by_regex else k: plain_schema(v) for k, v in value.items()
            }
        elif key in ("enum", "const", "default", "examples"):
            found[key] = value
        else:
            found[key] = plain_schema(value)
    for excluded, bound, least, farther in (
        ("exclusiveMinimum", "minimum", _LEAST, ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", "maximum", -_LEAST, ("minimum", "exclusiveMinimum")),
    ):
        outer, own = found.get(excluded), found.get(bound)
        whole = own if outer is True else outer  # in old schemas it is true, beside the bound
        if not _is_whole(whole) or whole * least < 0:
            continue
        if any(_is_beside(whole, found.get(x)) for x in farther):
            del found[excluded]
            inner = [whole + least, *([own] if _is_number(own) else [])]
            found[bound] = max(inner) if least > 0 else min(inner)
    return found


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> TypeGuard[float]:
    """Whether it is a whole number, but not so large that no number lies close beside it."""
    return _is_number(value) and abs(value) < 1e6 and value == int(value)


def _is_beside(whole: float, other: Any) -> bool:
    """Whether no other whole number lies between the two."""
    return _is_number(other) and abs(other - whole) < 1


def inline_json(schema: Any) -> str:
    """JSON of a schema, as it may stand in a grammar of Lark."""
    given = {} if schema is True else plain_schema(schema)
    return f"%json {json.dumps({**given, 'x-guidance': JSON_FORM}, ensure_ascii=False)}"


def arguments_json(schema: Any) -> str:
    """As `inline_json`, for the arguments of a function.

    They have no properties but those that the schema names, unless it says that they may: a model
    that is free to add some goes on adding them, and no function expects them.
    """
    return inline_json(close_objects(schema))


def close_objects(schema: Any) -> Any:
    """A schema whose objects have the properties that are named there, and no others.

    It is left as it is where several schemas hold for one object (``allOf``, or ``$ref`` beside
    properties), because each of them would forbid the properties of the others.
    """
    return schema if _joins(schema) else _close_schema(schema)


def _joins(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_joins, schema))
    if not isinstance(schema, dict):
        return False
    several = "properties" in schema and any(x in schema for x in ("$ref", "anyOf", "oneOf"))
    return several or "allOf" in schema or any(map(_joins, schema.values()))


def _close_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close_schema(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties"):
            inner = isinstance(value, dict)
            found[key] = {k: _close_schema(v) for k, v in value.items()} if inner else value
        elif key in ("items", "prefixItems", "anyOf", "oneOf", "additionalProperties"):
            found[key] = _close_schema(value)
        else:
            found[key] = value
    opens = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties")
    if isinstance(found.get("properties"), dict) and not any(x in found for x in opens):
        known = found["properties"]
        if all(x in known for x in found.get("required", ())):
            found["additionalProperties"] = False
    return found
