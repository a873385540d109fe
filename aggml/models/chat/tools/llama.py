"""Calls of Llama 3 and models like it: JSON as the whole answer, or a call as in Python.

Not here: Llama 4 (pythonic.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import JsonFormat, call_of
from aggml.models.chat.tools.json_text import Section, skip
from aggml.models.chat.tools.python_text import end_of_call, read_python_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["Llama"]

#: A call of one of the tools that Llama was trained with, as ``brave_search.call(query="...")``, up
#: to its bracket, or the beginning of that if more text may come.
_BUILT_IN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.(?:c(?:a(?:l(?:l\(?)?)?)?)?)?")


class Llama(JsonFormat):
    """Calls after a mark, which the model may leave out."""

    name = "llama"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("<|python_tag|>",), ("<|start_header_id|>", "ipython"),
    )  # fmt: skip
    begins: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    bare: ClassVar[tuple[str, ...]] = ('{"name"', '{"type"', '{"parameters"', '{ "name"')
    key: ClassVar[str] = "parameters"

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """Read calls as JSON with semicolons between, or one of a built-in tool as in Python."""
        mark = self.begins[0]
        at = skip(text, len(mark) if text.startswith(mark) else 0)
        if at >= len(text):
            return Section(is_bad=final)
        if text[at] != "{":
            return self._read_built_in(text, at, final=final)
        found = Section()
        while True:
            one = self._read_marked(text, at, final=final)
            found.calls += one.calls
            if one.end is None:
                found.is_bad = one.is_bad
                return found
            at = skip(text, one.end)
            if at >= len(text):
                found.end = one.end if final else None
                return found
            if text[at] != ";":
                found.end = one.end
                return found
            at = skip(text, at + 1)
            if at >= len(text):
                found.end = one.end if final else None
                return found

    def _read_built_in(self, text: str, at: int, *, final: bool) -> Section:
        found = _BUILT_IN.match(text, at)
        if found is None or (found.end() < len(text) and not found[0].endswith("(")):
            return Section(is_bad=True)
        end = end_of_call(text, at)
        if end is None:
            return Section(is_bad=final)
        call = read_python_call(text[at:end])
        if call is None:
            return Section(is_bad=True)
        return Section(end, [call_of(call[0].removesuffix(".call"), call[1])])
