"""Grammar: what an answer must match, as it was given; checked as far as that takes no time.

Here: one form for JSON schemas, regular expressions, choices and grammars. Not here: compiling them
and what they allow at each token (constraints.py).
"""
# ruff: noqa: ANN401 - arguments are whatever was given until they are checked

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from aggml import InvalidArgument
from aggml.models.arguments import one_text, shown, text_list

__all__ = ["Grammar", "GrammarKind", "grammar_of", "schema_text"]

GrammarKind = Literal["schema", "regex", "choices", "gbnf", "lark"]

LONGEST: Final = 1 << 19  # characters of a grammar
DEEPEST: Final = 64  # levels of a schema
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
        texts = text_list(place, name, value)
        if not 0 < len(texts) <= CHOICES:
            raise InvalidArgument(
                f"[{place}] choices has {len(texts)} texts, must have 1 to {CHOICES}"
            )
        if "" in texts:
            raise InvalidArgument(
                f"[{place}] choices[{texts.index('')}] is empty, each must have a character"
            )
        return _checked(place, name, Grammar("choices", json.dumps(texts, ensure_ascii=False)))
    text = one_text(place, name, value)
    if not text.strip():
        raise InvalidArgument(f"[{place}] {name} is empty")
    kind: GrammarKind = "regex" if name == "regex" else "gbnf" if "::=" in text else "lark"
    return _checked(place, name, Grammar(kind, text))


def _checked(place: str, name: str, grammar: Grammar) -> Grammar:
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
            f"[{place}] {name} is {shown(value)}, expected a JSON schema: a dict, or its text"
        )
    if value is False:
        raise InvalidArgument(f"[{place}] {name} is false, which allows nothing")
    _check_depth(place, name, value, 0)
    try:
        text = json.dumps(value if isinstance(value, bool) else dict(value), ensure_ascii=False,
                          allow_nan=False, default=_plain)  # fmt: skip
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"[{place}] {name} cannot be written as JSON: {error}") from None
    return _checked(place, name, Grammar("schema", text)).text


def _plain(value: Any) -> Any:
    """Mappings that are no dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{shown(value)} is no JSON value")


def _check_depth(place: str, name: str, value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidArgument(f"[{place}] {name} has more than {DEEPEST} levels")
    if isinstance(value, Mapping):
        for one in value.values():
            _check_depth(place, name, one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _check_depth(place, name, one, depth + 1)
