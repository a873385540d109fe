"""scan: how far a text that is still coming is JSON; calls of functions written in JSON.

Not here: the marks around them, which differ from family to family (the other modules).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CallText", "JsonScan", "Section", "as_json", "read_call", "read_calls", "scan", "skip"]

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_WHOLE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONTROL: Final = re.compile("[\x00-\x1f]")
DEEPEST: Final = 200


@dataclass(slots=True)
class CallText:
    """A call as far as it has come.

    Attributes:
        name: of the function.
        text: its arguments: JSON, or the certain beginning of it.
        complete: whether they are all there.
    """

    name: str
    text: str
    complete: bool


@dataclass(slots=True)
class Section:
    """What a format has read from where a mark of a call stands.

    Attributes:
        end: the place after the calls; None: more must come.
        calls: so far; only the last one may be incomplete.
        is_bad: these are no calls.
    """

    end: int | None = None
    calls: list[CallText] = field(default_factory=list)
    is_bad: bool = False


@dataclass(slots=True)
class JsonScan:
    """How far a text is JSON.

    Attributes:
        end: the place after the value; None: it is not complete.
        is_bad: it is no JSON, whatever comes.
        certain: the place up to which it is part of the value.
    """

    end: int | None
    is_bad: bool
    certain: int


def skip(text: str, at: int) -> int:
    """The place after white space."""
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def scan(text: str, at: int, *, final: bool) -> JsonScan:
    """Read a value.

    Line feeds and the like within a string are taken, as models write them; see `as_json`.

    Args:
        text: as far as it has come.
        at: where the value begins.
        final: nothing more comes.
    """
    closes: list[str] = []
    wanted = "value"  # value, first (of a list), key, first key, colon, comma
    begin = at
    while True:
        at = skip(text, at)
        if at >= len(text):
            return JsonScan(None, final, at)
        sign = text[at]
        if wanted in ("value", "first"):
            if sign == "]" and wanted == "first":
                closes.pop()
                at += 1
            elif sign in "{[":
                if len(closes) >= DEEPEST:
                    return JsonScan(None, True, at)
                closes.append("}" if sign == "{" else "]")
                wanted = "first key" if sign == "{" else "first"
                at += 1
                continue
            else:
                part = _scalar(text, at, final=final)
                if part.end is None:
                    return part
                at = part.end
            wanted = "comma"
        elif wanted in ("key", "first key"):
            if sign == "}" and wanted == "first key":
                closes.pop()
                at += 1
                wanted = "comma"
            else:
                if sign != '"':
                    return JsonScan(None, True, at)
                part = _scalar(text, at, final=final)
                if part.end is None:
                    return part
                at, wanted = part.end, "colon"
        elif wanted == "colon":
            if sign != ":":
                return JsonScan(None, True, at)
            at, wanted = at + 1, "value"
            continue
        elif sign == ",":
            at, wanted = at + 1, "key" if closes[-1] == "}" else "value"
            continue
        elif sign == closes[-1]:
            closes.pop()
            at += 1
        else:
            return JsonScan(None, True, at)
        if not closes and at > begin:
            return JsonScan(at, False, at)


def _scalar(text: str, at: int, *, final: bool) -> JsonScan:
    """A string, a number, true, false or null."""
    if text[at] == '"':
        found = _STRING.match(text, at)
        assert found is not None
        end = found.end()
        if text.startswith('"', end):
            return JsonScan(end + 1, False, end + 1)
        # What follows is an escape that is not complete, or none that there is.
        rest = _ESCAPE.match(text, end)
        open_ = end == len(text) or (rest is not None and rest.end() == len(text))
        return JsonScan(None, final or not open_, end)
    found = _WORD.match(text, at)
    if found is None:
        return JsonScan(None, True, at)
    word, end = found[0], found.end()
    if end == len(text) and not final:  # it may go on
        words = ("true", "false", "null")
        begins = any(x.startswith(word) for x in words) or word[0] in "-0123456789"
        return JsonScan(None, not begins, at)
    good = word in ("true", "false", "null") or _NUMBER.fullmatch(word) is not None
    return JsonScan(end, False, end) if good else JsonScan(None, True, at)


def as_json(text: str) -> str:
    """A value that `scan` took, with line feeds and the like in its strings escaped.

    Outside strings they stay.
    """
    if _CONTROL.search(text) is None:
        return text
    return _WHOLE.sub(_escape_controls, text)


def _escape_controls(found: re.Match[str]) -> str:
    """A string, or its beginning, with control characters escaped."""
    return _CONTROL.sub(lambda x: json.dumps(x[0])[1:-1], found[0])


def read_call(
    text: str,
    at: int,
    *,
    final: bool,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
) -> Section:
    """Read one call: ``{"name": ..., "arguments": {...}}``; other keys are passed over."""
    at = skip(text, at)
    if at >= len(text):
        return Section(is_bad=final)
    if text[at] != "{":
        return Section(is_bad=True)
    at = skip(text, at + 1)
    name: str | None = None
    given: str | None = None
    first = True
    while True:
        if at >= len(text):
            return _so_far(name, given, final=final)
        if text[at] == "}" and not (first and name is None):
            if name is None:
                return Section(is_bad=True)
            return Section(at + 1, [CallText(name, "{}" if given is None else given, True)])
        if not first:
            if text[at] != ",":
                return Section(is_bad=True)
            at = skip(text, at + 1)
            if at >= len(text):
                return _so_far(name, given, final=final)
        first = False
        key = _scalar(text, at, final=final) if text[at] == '"' else JsonScan(None, True, at)
        if key.end is None:
            return _bad_or(key.is_bad, _so_far(name, given, final=final))
        title = json.loads(as_json(text[at : key.end]))
        at = skip(text, key.end)
        if at >= len(text):
            return _so_far(name, given, final=final)
        if text[at] != ":":
            return Section(is_bad=True)
        at = skip(text, at + 1)
        if at >= len(text):
            return _so_far(name, given, final=final)
        value = scan(text, at, final=final)
        if title in arguments and text[at] == "{":
            if value.end is None:
                if value.is_bad or name is None:
                    return _bad_or(value.is_bad, Section())
                return Section(None, [CallText(name, as_json(text[at : value.certain]), False)])
            given = as_json(text[at : value.end])
        elif value.end is None:
            return _bad_or(value.is_bad, _so_far(name, given, final=final))
        else:
            read = json.loads(as_json(text[at : value.end]))
            if title in names:
                if not isinstance(read, str):
                    return Section(is_bad=True)
                name = read
            elif title in arguments:
                given = _object(read)
                if given is None:
                    return Section(is_bad=True)
        at = skip(text, value.end)


def _object(read: Any) -> str | None:  # noqa: ANN401 JSON
    """Arguments that are not written as an object: null, or JSON within a string."""
    if read is None or read == "":
        return "{}"
    if isinstance(read, str):
        try:
            inner = json.loads(read)
        except (ValueError, RecursionError):
            return None
        return read if isinstance(inner, dict) else None
    return None


def _bad_or(is_bad: bool, otherwise: Section) -> Section:
    return Section(is_bad=True) if is_bad else otherwise


def _so_far(name: str | None, given: str | None, *, final: bool) -> Section:
    """A call of which more must come."""
    if final:
        return Section(is_bad=True)
    if name is None or given is None:
        return Section()
    return Section(None, [CallText(name, given, False)])


def read_calls(
    text: str,
    at: int,
    *,
    final: bool,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
) -> Section:
    """Read a list of calls: ``[{...}, {...}]``."""
    at = skip(text, at)
    if at >= len(text):
        return Section(is_bad=final)
    if text[at] != "[":
        return Section(is_bad=True)
    at = skip(text, at + 1)
    calls: list[CallText] = []
    while True:
        if at >= len(text):
            return Section(None, calls, is_bad=final)
        if text[at] == "]" and calls:
            return Section(at + 1, calls)
        if calls:
            if text[at] != ",":
                return Section(None, calls, is_bad=True)
            at += 1
        one = read_call(text, at, final=final, names=names, arguments=arguments)
        calls += one.calls
        if one.end is None:
            return Section(None, calls, is_bad=one.is_bad)
        at = skip(text, one.end)
