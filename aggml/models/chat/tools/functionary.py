"""Calls of Functionary: a recipient, then arguments in JSON on the next line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["Functionary"]

MARK: Final = ">>>"
_NAME: Final = re.compile(r"([A-Za-z0-9_.-]+)(\n?)")


class Functionary(ToolFormat):
    """The prompt ends in the first mark, so the answer begins with a recipient."""

    name = "functionary"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((">>>all",), ("<function=all",))
    begins: ClassVar[tuple[str, ...]] = (MARK,)
    leads: ClassVar[str] = MARK

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """To everybody it is text; to a function a call."""
        found = _NAME.match(text, len(MARK))
        if found is None:
            return Section(is_bad=final or len(text) > len(MARK))
        if not found[2]:
            return Section(is_bad=final or found.end() < len(text))
        if found[1] == "all":
            return Section(found.end())
        at = skip(text, found.end())
        if at >= len(text):
            return Section(is_bad=final)
        if text[at] != "{":
            return Section(is_bad=True)
        value = scan(text, at, final=final)
        if value.is_bad:
            return Section(is_bad=True)
        end = value.certain if value.end is None else value.end
        return Section(
            value.end, [CallText(found[1], as_json(text[at:end]), value.end is not None)]
        )
