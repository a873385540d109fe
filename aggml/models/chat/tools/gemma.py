"""Calls of Gemma 4 and FunctionGemma: names and values in a notation of their own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, call_of, skip_mark
from aggml.models.chat.tools.json_text import Section, skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["FunctionGemma", "Gemma4"]

_HEAD: Final = re.compile(r"call:([A-Za-z0-9_.-]+)\s*(?=\{)")
_OPEN_HEAD: Final = re.compile(r"c?a?l?l?|call:[A-Za-z0-9_.-]*\s*")
_KEY: Final = re.compile(r"[^:{},\[\]]+")
_BARE: Final = re.compile(r"[^,}\]]*")
DEEPEST: Final = 100


class _ShortError(Exception):
    """More must come."""


class _WrongError(Exception):
    """It is no call."""


class Gemma4(ToolFormat):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``."""

    name = "gemma4"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<|tool_call>",),)
    begins: ClassVar[tuple[str, ...]] = ("<|tool_call>",)
    ends: ClassVar[tuple[str, ...]] = ("<tool_call|>",)
    quote: ClassVar[str] = '<|"|>'

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.ends, self.quote)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """One call."""
        at = skip(text, len(self.begins[0]))
        head = _HEAD.match(text, at)
        if head is None:
            open_ = _OPEN_HEAD.fullmatch(text, at) is not None
            return Section(is_bad=final or not open_)
        try:
            value, end = self._value(text, head.end(), 0)
        except _ShortError:
            return Section(is_bad=final)
        except _WrongError:
            return Section(is_bad=True)
        after = skip_mark(text, end, self.ends, final=final)
        return Section(after, [call_of(head[1], value)])

    def _value(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        """A value and the place after it."""
        if depth > DEEPEST:
            raise _WrongError
        at = skip(text, at)
        rest = text[at : at + len(self.quote)]
        if not rest or (self.quote.startswith(rest) and rest != self.quote):
            raise _ShortError
        if rest == self.quote:
            begin = at + len(self.quote)
            end = text.find(self.quote, begin)
            if end < 0:
                raise _ShortError
            return text[begin:end], end + len(self.quote)
        if text[at] == "{":
            return self._object(text, at + 1, depth)
        if text[at] == "[":
            return self._list(text, at + 1, depth)
        if text[at] == '"':
            try:
                found = json.JSONDecoder(strict=False).raw_decode(text, at)
            except ValueError:
                raise _ShortError from None
            return found
        word = _BARE.match(text, at)
        assert word is not None
        if word.end() == len(text):
            raise _ShortError
        return _plain(word[0].strip()), word.end()

    def _object(self, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            at = skip(text, at)
            if text[at : at + 1] == "}":
                return found, at + 1
            if found:
                at = skip(text, self._comma(text, at))
            if text.startswith(self.quote, at) or text[at : at + 1] == '"':
                key, at = self._value(text, at, depth + 1)
            else:
                word = _KEY.match(text, at)
                if word is None:
                    raise _ShortError if at >= len(text) else _WrongError
                key, at = word[0].strip().strip('"'), word.end()
            at = skip(text, at)
            if at >= len(text):
                raise _ShortError
            if text[at] != ":":
                raise _WrongError
            found[str(key)], at = self._value(text, at + 1, depth + 1)

    def _list(self, text: str, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            at = skip(text, at)
            if text[at : at + 1] == "]":
                return found, at + 1
            if found:
                at = self._comma(text, at)
            value, at = self._value(text, at, depth + 1)
            found.append(value)

    def _comma(self, text: str, at: int) -> int:
        if at >= len(text):
            raise _ShortError
        if text[at] != ",":
            raise _WrongError
        return at + 1


def _plain(word: str) -> Any:  # noqa: ANN401 JSON
    """A value without quotes."""
    try:
        return json.loads(word)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(word, word)


class FunctionGemma(Gemma4):
    """``<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>``."""

    name = "function_gemma"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<start_function_call>",),)
    begins: ClassVar[tuple[str, ...]] = ("<start_function_call>",)
    ends: ClassVar[tuple[str, ...]] = ("<end_function_call>",)
    quote: ClassVar[str] = "<escape>"
