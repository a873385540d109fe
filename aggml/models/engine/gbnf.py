r"""lark_of: a grammar in llama.cpp's notation (GBNF), in that of llguidance.

A rule of GBNF reads character by character. llguidance first cuts a text into the longest pieces
that its terminals match, so ``[a-c]* "abc"`` would not match ``aabc``. So a grammar that does not
call itself becomes one regular expression, and in others each terminal is a single character. Not
here: Lark's own notation, which llguidance reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["GbnfError", "lark_of"]

DEEPEST: Final = 100  # brackets in each other
LARGEST: Final = 20_000  # characters of the one expression
MOST: Final = 2000  # repetitions of a part


class GbnfError(Exception):
    """A text is no GBNF; the message says where."""


@dataclass(slots=True)
class _Characters:
    """One character of a set, as a regular expression."""

    regex: str


@dataclass(slots=True)
class _Rule:
    """The sentences of another rule."""

    name: str
    line: int


@dataclass(slots=True)
class _Sequence:
    parts: list[_Node]


@dataclass(slots=True)
class _Choice:
    parts: list[_Node]


@dataclass(slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Characters | _Rule | _Sequence | _Choice | _Repeat

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
_BLANKS: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)+")
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "[": "[", "]": "]"}


class _Reader:
    """Reads the text of a grammar from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.rules: dict[str, _Node] = {}

    def _fail(self, wanted: str) -> GbnfError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 20]
        found = repr(rest) if rest else "the end"
        return GbnfError(f"line {line}: expected {wanted}, found {found}")

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        if found:
            self._at = found.end()

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def read(self) -> dict[str, _Node]:
        self._skip(_BLANKS)
        while self._at < len(self._text):
            name = _NAME.match(self._text, self._at)
            if name is None:
                raise self._fail("the name of a rule")
            self._at = name.end()
            self._skip(_BLANK)
            if not self._take("::="):
                raise self._fail("::=")
            self._skip(_BLANKS)
            self.rules[name[0]] = self._choice(0)
            if self._at < len(self._text) and self._next not in "\r\n":
                raise self._fail("the end of the line")
            self._skip(_BLANKS)
        return self.rules

    def _choice(self, depth: int) -> _Node:
        if depth > DEEPEST:
            raise self._fail(f"at most {DEEPEST} brackets in each other")
        blank = _BLANKS if depth else _BLANK
        parts = [self._sequence(depth)]
        while True:
            before = self._at
            self._skip(_BLANKS)
            if not self._take("|"):
                self._at = before
                break
            self._skip(_BLANKS)
            parts.append(self._sequence(depth))
        self._skip(blank)
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        blank = _BLANKS if depth else _BLANK
        while True:
            self._skip(blank)
            first = self._next
            if first == '"':
                parts.append(self._literal())
            elif first == "[":
                parts.append(self._set())
            elif first == "(":
                self._at += 1
                self._skip(_BLANKS)
                parts.append(self._choice(depth + 1))
                if not self._take(")"):
                    raise self._fail("')'")
            elif first == ".":
                self._at += 1
                parts.append(_Characters("(?s:.)"))
            elif (name := _NAME.match(self._text, self._at)) is not None:
                line = self._text.count("\n", 0, self._at) + 1
                self._at = name.end()
                parts.append(_Rule(name[0], line))
            else:
                break
            self._skip(_BLANK)
            parts[-1] = self._repeat(parts[-1])
        return parts[0] if len(parts) == 1 else _Sequence(parts)

    def _repeat(self, part: _Node) -> _Node:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return _Repeat(part, least, most)
        if self._next != "{":
            return part
        found = _COUNT.match(self._text, self._at)
        if found is None:
            raise self._fail("{n}, {n,} or {n,m}")
        self._at = found.end()
        least = int(found[1])
        last = None if found[2] and not found[3] else int(found[3]) if found[2] else least
        if max(least, last or 0) > MOST or (last is not None and last < least):
            raise self._fail(f"numbers up to {MOST}, the smaller one first")
        return _Repeat(part, least, last)

    def _literal(self) -> _Node:
        self._at += 1
        parts: list[_Node] = []
        while not self._take('"'):
            parts.append(_Characters(_escape(self._character())))
        return parts[0] if len(parts) == 1 else _Sequence(parts)

    def _set(self) -> _Node:
        self._at += 1
        inside = "^" if self._take("^") else ""
        empty = True
        while not self._take("]"):
            first = self._character()
            inside += _escape(first)
            empty = False
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
                if ord(last) < ord(first):
                    raise self._fail("the end of a range after its beginning")
                inside += "-" + _escape(last)
        if empty:
            raise self._fail("a character in brackets")
        return _Characters(f"[{inside}]")

    def _character(self) -> str:
        first = self._next
        if not first or first in "\r\n":
            raise self._fail("a character and the end of the literal")
        self._at += 1
        if first != "\\":
            return first
        kind = self._next
        if kind in _ESCAPES and kind:
            self._at += 1
            return _ESCAPES[kind]
        n = {"x": 2, "u": 4, "U": 8}.get(kind)
        digits = self._text[self._at + 1 : self._at + 1 + (n or 0)]
        if n is None or len(digits) != n or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise self._fail("an escape as \\n, \\x41, \\u00e9 or \\U0001f600")
        self._at += 1 + n
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._fail("the code of a character")
        return chr(code)


def _escape(character: str) -> str:
    """A character in a regular expression, within brackets or not."""
    if character.isalnum() and character.isascii():
        return character
    return f"\\u{{{ord(character):x}}}"


def lark_of(text: str) -> str:
    """The grammar in llguidance's notation.

    Raises:
        GbnfError: it is no GBNF, lacks a rule, or has no rule ``root``.
    """
    rules = _Reader(text).read()
    if "root" not in rules:
        raise GbnfError("there is no rule root")
    used = _find_used(rules)
    regex = None if _calls_itself(rules) else _regex(rules, rules["root"])
    if regex is not None:
        return f"start: /{regex}/"
    numbers = {name: f"r{i}" for i, name in enumerate(used)} | {"root": "start"}
    return "\n".join(f"{numbers[name]}: {_lark(rules[name], numbers)}" for name in used)


def _children(node: _Node) -> list[_Node]:
    if isinstance(node, _Sequence | _Choice):
        return node.parts
    return [node.part] if isinstance(node, _Repeat) else []


def _names(node: _Node) -> list[_Rule]:
    if isinstance(node, _Rule):
        return [node]
    return [x for child in _children(node) for x in _names(child)]


def _find_used(rules: dict[str, _Node]) -> list[str]:
    """The rules that ``root`` needs, itself first."""
    found = ["root"]
    for name in found:
        for rule in _names(rules[name]):
            if rule.name not in rules:
                raise GbnfError(f"line {rule.line}: there is no rule {rule.name}")
            if rule.name not in found:
                found.append(rule.name)
    return found


def _calls_itself(rules: dict[str, _Node]) -> bool:
    state: dict[str, bool] = {}  # False: being looked at

    def visit(name: str) -> bool:
        if name in state:
            return not state[name]
        state[name] = False
        if any(visit(rule.name) for rule in _names(rules[name])):
            return True
        state[name] = True
        return False

    return visit("root")


def _regex(rules: dict[str, _Node], node: _Node) -> str | None:
    """One regular expression; None: it would be too long."""
    if isinstance(node, _Characters):
        return node.regex
    if isinstance(node, _Rule):
        return _regex(rules, rules[node.name])
    parts = [_regex(rules, x) for x in _children(node)]
    known = [x for x in parts if x is not None]
    if len(known) < len(parts) or sum(map(len, known)) > LARGEST:
        return None
    if isinstance(node, _Sequence):
        return "".join(known)
    if isinstance(node, _Choice):
        return f"(?:{'|'.join(known)})"
    return f"(?:{known[0]}){_times(node)}"


def _times(node: _Repeat) -> str:
    if (node.least, node.most) == (0, 1):
        return "?"
    if node.most is None and node.least < 2:
        return "*" if node.least == 0 else "+"
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _lark(node: _Node, numbers: dict[str, str]) -> str:
    if isinstance(node, _Characters):
        return f"/{node.regex}/"
    if isinstance(node, _Rule):
        return numbers[node.name]
    parts = [_lark(x, numbers) for x in _children(node)]
    if isinstance(node, _Sequence):
        return f"({' '.join(parts)})" if parts else '""'
    if isinstance(node, _Choice):
        return f"({' | '.join(parts)})"
    return f"({parts[0]}){_times(node)}"
