"""Messages of gpt-oss: channels for thoughts, for answers and for calls. Each has a header.

Not here: formats in which calls stand in the text (the other modules).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["CHANNEL", "ENDS", "MESSAGE", "START", "Harmony"]

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_TO: Final = re.compile(r"to=(?:functions\.)?([A-Za-z0-9_.-]+)")


class Harmony(ToolFormat):
    """The text of one message to a function; ../reading.py divides an answer into messages."""

    name = "harmony"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((CHANNEL,),)
    begins: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """The arguments, behind a header that names the function."""
        body = text.find(MESSAGE)
        found = _TO.search(text, 0, max(body, 0))
        if found is None:
            return Section(is_bad=True)
        at = skip(text, body + len(MESSAGE))
        if at >= len(text):
            return Section(is_bad=final)
        value = scan(text, at, final=final)
        if value.is_bad or text[at] != "{":
            return Section(is_bad=True)
        end = value.certain if value.end is None else value.end
        return Section(
            value.end, [CallText(found[1], as_json(text[at:end]), value.end is not None)]
        )
