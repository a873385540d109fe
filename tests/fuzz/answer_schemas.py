"""Draws JSON schemas of every kind that answers can be restricted to, and checks values.

Patterns are drawn from pieces, not from a list. Each schema has values, and some of them are short.
Not here: asking for answers (answers.py).
"""
# ruff: noqa: RUF001 - texts in other letters are what is tested

from __future__ import annotations

import datetime
import ipaddress
import re
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import jsonschema

if TYPE_CHECKING:
    import random

__all__ = ["drawn_schema", "validate"]

WORDS: Final = (
    "a", "name", "größe", "日本", "😀", 'q"uote', "back\\slash", "line\nfeed", "", "$ref", "type",
    "a b", "\u2028", "é", "e\u0301", "\u0001", "</s>", "/", "<0x41>",
)  # fmt: skip
DEEPEST: Final = 3


class _Drawing:
    """One schema while it is drawn.

    Args:
        source: of choices.
    """

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.named: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        """The schema with its definitions."""
        r = self.source
        where = r.choice(["$defs", "definitions"])
        names = r.sample(["short", "a/b", "c~d", "größe", "e f"], r.randint(0, 2))
        for name in names:
            self.named[self._pointer(where, name)] = (name, self.leaf())
        drawn: Any = self.recursive(where) if r.random() < 0.2 else self.any_of_kind(0)
        found: dict[str, Any] = drawn if isinstance(drawn, dict) else {"anyOf": [drawn]}
        parts = dict(self.named.values())
        if parts:
            found = {where: parts, **found}
        if r.random() < 0.2:
            found |= {"title": "T", "description": "é", "$comment": "x", "examples": [1]}
        if r.random() < 0.1:
            found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        return found

    def _pointer(self, where: str, name: str) -> str:
        """A reference to a definition: as a URI, or as programs write it."""
        pointer = f"#/{where}/" + name.replace("~", "~0").replace("/", "~1")
        return pointer if self.source.random() < 0.5 else quote(pointer, safe="#/~$")

    def recursive(self, where: str) -> dict[str, Any]:
        """A schema in which a definition has itself, behind a choice, a list or an option."""
        r = self.source
        name = "Größe eins"
        again = {"$ref": self._pointer(where, name)}
        inner: Any = r.choice([
            {"anyOf": [{"type": "null"}, again]},
            {"anyOf": [again, self.leaf()]},
            {"type": "array", "items": again, "maxItems": r.randint(1, 2)},
        ])  # fmt: skip
        node = {
            "type": "object",
            "properties": {"v": self.leaf(), "next": inner},
            "required": ["v", "next"] if r.random() < 0.7 else ["v"],
            "additionalProperties": False,
        }
        self.named[again["$ref"]] = (name, node)
        return again if r.random() < 0.5 else {"type": "array", "items": again, "maxItems": 2}

    def any_of_kind(self, depth: int) -> Any:
        """A schema of any kind; at the deepest level one without parts."""
        r = self.source
        if depth >= DEEPEST or r.random() < 0.25:
            return self.leaf()
        kinds = [self.object_, self.object_, self.object_, self.array, self.array, self.tuple_,
                 self.any_of, self.one_of, self.all_of, self.ref]  # fmt: skip
        return r.choice(kinds)(depth)

    # -- without parts

    def leaf(self) -> Any:
        r = self.source
        kinds = [self.integer, self.number, self.text, self.pattern, self.format_, self.enum,
                 self.const, self.types]  # fmt: skip
        return r.choice(kinds)()

    def integer(self) -> Any:
        r = self.source
        low = r.choice([0, 1, -1, r.randint(-10, 10), r.randint(-(10**6), 10**6), -(2**31)])
        high = low + r.choice([1, 2, 9, 10, 99, r.randint(2, 10**6)])
        found: dict[str, Any] = {"type": "integer"}
        found |= r.choice([{"minimum": low}, {"exclusiveMinimum": low - 1}, {"minimum": low - 0.5}])
        found |= r.choice([{"maximum": high}, {"exclusiveMaximum": high + 1}])
        if r.random() < 0.2 and high - low >= 9:
            found["multipleOf"] = r.choice([2, 3, 5, 1])
        return found

    def number(self) -> Any:
        r = self.source
        low = round(r.choice([0.0, r.uniform(-1, 1), r.uniform(-1e4, 1e4)]), r.randint(0, 6))
        high = low + r.choice([1e-3, 0.5, 1, 10, 1000.25])
        high = round(high, 7)
        found: dict[str, Any] = {"type": "number"}
        found |= r.choice([{"minimum": low}, {"exclusiveMinimum": low}])
        found |= r.choice([{"maximum": high}, {"exclusiveMaximum": high}])
        return found

    def text(self) -> Any:
        r = self.source
        low = r.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + r.randint(0, 5)}

    def pattern(self) -> Any:
        r = self.source
        begin, end = r.choice([("^", "$"), ("^", "$"), ("^", ""), ("", "$"), ("", "")])
        found: dict[str, Any] = {"type": "string", "pattern": begin + self.regex(2) + end}
        if not (begin and end):
            found["maxLength"] = 40
        return found

    def regex(self, depth: int) -> str:
        """A regular expression without assertions."""
        r = self.source
        parts = []
        for _ in range(r.randint(1, 3)):
            if depth and r.random() < 0.25:
                group = r.choice(["(", "(?:"])
                rows = [self.regex(depth - 1) for _ in range(r.randint(1, 3))]
                part = group + "|".join(rows) + ")"
            else:
                part = r.choice([
                    r"\d", r"\w", "[a-f]", "[A-Z0-9_]", "[^a-z]", "[α-ω]", "[一-十]", "[\\d.-]",
                    "[^\\\"\\\\]", "x", "é", "日", r"\.", r"\\", '"', r"\/", r"\-", " ", "[😀-😎]",
                    r"\u00e9", r"\x41", r"\t", ".", r"[\w-]", r"\S", r"\D", r"\W", "[^\\d]", r"\s",
                ])  # fmt: skip
            low = r.randint(0, 2)
            parts.append(part + r.choice(["", "", "?", f"{{{low},{low + 2}}}", f"{{{low + 1}}}"]))
        return "".join(parts)

    def format_(self) -> Any:
        kinds = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "email",
                 "hostname", "uri"]  # fmt: skip
        return {"type": "string", "format": self.source.choice(kinds)}

    def value(self, depth: int = 0) -> Any:
        """Any JSON."""
        r = self.source
        kind = r.randrange(8 if depth < 2 else 6)
        if kind < 2:
            return r.choice(WORDS)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(r.randint(0, 2))]
        if kind == 7:
            return {r.choice(WORDS): self.value(depth + 1) for _ in range(r.randint(0, 2))}
        return r.choice([None, True, False, 0, -1, 2.5, r.randint(-(10**9), 10**9), 1e-3, -0.125])

    def enum(self) -> Any:
        found: dict[str, Any] = {"enum": [self.value() for _ in range(self.source.randint(1, 5))]}
        if self.source.random() < 0.2:
            found = {"type": "string", "enum": [*found["enum"], "é"]}
        return found

    def const(self) -> Any:
        return {"const": self.value()}

    def types(self) -> Any:
        kinds = self.source.sample(["null", "boolean", "integer"], self.source.randint(1, 3))
        return {"type": kinds if len(kinds) > 1 or self.source.random() < 0.3 else kinds[0]}

    # -- with parts

    def object_(self, depth: int) -> Any:
        r = self.source
        names = r.sample(WORDS, r.randint(0, 4))
        found: dict[str, Any] = {
            "type": "object",
            "properties": {x: self.any_of_kind(depth + 1) for x in names},
            "required": r.sample(names, r.randint(0, len(names))),
        }
        further = r.random()
        if further < 0.6:
            found["additionalProperties"] = False
        elif further < 0.75:
            found["additionalProperties"] = self.leaf()
        elif further < 0.85:
            found["patternProperties"] = {"^x[a-z]{1,2}$": self.leaf()}
            found["additionalProperties"] = False
        if len(found["required"]) == len(names):  # these bounds are refused beside optional ones
            if further >= 0.6 or r.random() < 0.2:
                found["maxProperties"] = len(names) + 1
            if r.random() < 0.15 and names:
                found["minProperties"] = 1
        if r.random() < 0.1:
            del found["type"]
        return found

    def array(self, depth: int) -> Any:
        r = self.source
        low = r.choice([0, 0, 1, 2])
        found: dict[str, Any] = {"type": "array", "items": self.any_of_kind(depth + 1)}
        if low or r.random() < 0.3:
            found["minItems"] = low
        found["maxItems"] = low + r.randint(0, 2)
        return found

    def tuple_(self, depth: int) -> Any:
        r = self.source
        parts = [self.any_of_kind(depth + 1) for _ in range(r.randint(1, 3))]
        found: dict[str, Any] = {"type": "array", "prefixItems": parts}
        if r.random() < 0.6:
            found["items"] = False
        else:
            found |= {"items": self.leaf(), "maxItems": len(parts) + 1}
        if r.random() < 0.7:
            found["minItems"] = r.randint(0, len(parts))
        return found

    def any_of(self, depth: int) -> Any:
        parts = [self.any_of_kind(depth + 1) for _ in range(self.source.randint(1, 3))]
        return {"anyOf": parts}

    def one_of(self, depth: int) -> Any:
        """Objects that a constant tells apart, or values of several types."""
        r = self.source
        if r.random() < 0.4:
            return {"oneOf": [self.integer(), {"type": "null"}, self.text()][: r.randint(1, 3)]}
        tags = r.sample([x for x in WORDS if x], r.randint(1, 3))
        return {"oneOf": [
            {"type": "object", "properties": {"kind": {"const": tag},
                                              "v": self.any_of_kind(depth + 2)},
             "required": ["kind", "v"], "additionalProperties": False}
            for tag in tags
        ]}  # fmt: skip

    def all_of(self, depth: int) -> Any:
        """Objects that have the properties of all parts, or a number within all bounds."""
        r = self.source
        if r.random() < 0.3:
            low = r.randint(-50, 50)
            return {"allOf": [{"type": "integer"}, {"minimum": low}, {"maximum": low + 20}]}
        names = r.sample(WORDS, 2)
        parts = [
            {"type": "object", "properties": {x: self.any_of_kind(depth + 1)}, "required": [x]}
            for x in names
        ]
        return {"allOf": parts, "maxProperties": 2}

    def ref(self, depth: int) -> Any:
        plain = [x for x, (name, _) in self.named.items() if name != "Größe eins"]
        if not plain:
            return self.any_of_kind(depth + 1)
        return {"$ref": self.source.choice(plain)}


def drawn_schema(source: random.Random) -> dict[str, Any]:
    """A schema that has values and can be served."""
    return _Drawing(source).whole()


_formats: Final = jsonschema.FormatChecker(formats=())


def _parses(read: Any) -> Any:
    def check(text: object) -> bool:
        if isinstance(text, str):
            read(text)
        return True

    return check


def _time(text: str) -> None:
    # A leap second and letters in lower case are of RFC 3339, too.
    datetime.time.fromisoformat(text.upper().replace(":60", ":59"))


def _date_time(text: str) -> None:
    datetime.datetime.fromisoformat(text.upper().replace(":60", ":59"))


def _matches(regex: str) -> Any:
    found = re.compile(regex)

    def read(text: str) -> None:
        if not found.fullmatch(text):
            raise ValueError(text)

    return read


_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
for _name, _read in {
    "date": datetime.date.fromisoformat, "time": _time, "date-time": _date_time,
    "uuid": uuid.UUID, "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address,
    "duration": _matches(r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)"),
    "hostname": _matches(rf"{_LABEL}(\.{_LABEL})*"),
    "email": _matches(r"[^\s]+@[^\s@]+"),
    "uri": _matches(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*"),
}.items():  # fmt: skip
    _formats.checks(_name, raises=ValueError)(_parses(_read))


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Check a value, its formats included.

    Raises:
        jsonschema.ValidationError: the schema does not allow it.
    """
    jsonschema.Draft202012Validator(schema, format_checker=_formats).validate(value)
