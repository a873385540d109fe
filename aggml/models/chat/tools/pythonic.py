"""Calls of LFM2, Llama 4 and those like them: a list of calls as in Python, between marks or bare.

Not here: reading Python (python_text.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, call_of, skip_mark
from aggml.models.chat.tools.json_text import Section, read_calls, skip
from aggml.models.chat.tools.python_text import end_of_call, read_python_calls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["LFM2", "Llama4"]

_BEGIN: Final = re.compile(r"\[\s*(?:[A-Za-z_][A-Za-z0-9_.-]*\s*(?:\(|$)|$)")


class _Pythonic(ToolFormat):
    ends: ClassVar[tuple[str, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.ends)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """A list, or a single call after a mark."""
        begin = next((len(x) for x in self.begins if text.startswith(x)), 0)
        at = skip(text, begin)
        if at >= len(text):
            return Section(is_bad=final)
        listed = text[at] == "["
        if listed and text[skip(text, at + 1) : skip(text, at + 1) + 1] == "{":
            found = read_calls(text, at, final=final)
            if found.end is not None and begin:
                found.end = skip_mark(text, found.end, self.ends, final=final)
            return found
        if (listed and _BEGIN.match(text, at) is None) or not (listed or begin):
            return Section(is_bad=True)
        end = end_of_call(text, at)
        if end is None:
            return Section(is_bad=final)
        calls = read_python_calls(text[at:end] if listed else f"[{text[at:end]}]")
        if calls is None or (not begin and any(name not in tools for name, _ in calls)):
            return Section(is_bad=True)
        after = skip_mark(text, end, self.ends, final=final) if begin else end
        return Section(after, [call_of(*x) for x in calls])


class LFM2(_Pythonic):
    """Between marks."""

    name = "lfm2"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("<|tool_list_start|>",), ("<|tool_call_start|>",),
    )  # fmt: skip
    begins: ClassVar[tuple[str, ...]] = ("<|tool_call_start|>",)
    ends: ClassVar[tuple[str, ...]] = ("<|tool_call_end|>",)
    bare: ClassVar[tuple[str, ...]] = ("[",)


class Llama4(_Pythonic):
    """The whole answer, or between marks."""

    name = "llama4"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("<|header_start|>",), ("<|python_start|>",), ("[func_name1(",),
    )  # fmt: skip
    begins: ClassVar[tuple[str, ...]] = ("<|python_start|>",)
    ends: ClassVar[tuple[str, ...]] = ("<|python_end|>",)
    bare: ClassVar[tuple[str, ...]] = ("[",)
