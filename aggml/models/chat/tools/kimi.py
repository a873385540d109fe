"""Calls of Kimi K2: each with an id that has its name, between marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, sectioned
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["Kimi"]

SECTION: Final = "<|tool_calls_section_begin|>"
SECTION_END: Final = "<|tool_calls_section_end|>"
CALL: Final = "<|tool_call_begin|>"
CALL_END: Final = "<|tool_call_end|>"
ARGUMENTS: Final = "<|tool_call_argument_begin|>"


class Kimi(ToolFormat):
    """The marks of the whole section may be missing."""

    name = "kimi"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((SECTION,),)
    begins: ClassVar[tuple[str, ...]] = (SECTION, CALL)
    marks: ClassVar[tuple[str, ...]] = (SECTION_END, CALL_END, ARGUMENTS)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """All calls of a section."""
        at = len(SECTION) if text.startswith(SECTION) else 0
        found = Section()
        while True:
            at = skip(text, at)
            rest = text[at:]
            if rest.startswith(SECTION_END):
                found.end, found.is_bad = at + len(SECTION_END), not found.calls
                return found
            if not rest.startswith(CALL):
                open_ = CALL.startswith(rest) or SECTION_END.startswith(rest)
                if open_ and not final:
                    return found
                found.end, found.is_bad = at, not found.calls
                return found
            stop = text.find(ARGUMENTS, at)
            if stop < 0:
                found.is_bad = final
                return found
            title = text[at + len(CALL) : stop].strip()
            name = title.removeprefix("functions.").rsplit(":", 1)[0]
            at = skip(text, stop + len(ARGUMENTS))
            if at >= len(text):
                found.is_bad = final
                return found
            value = scan(text, at, final=final)
            if value.is_bad or text[at] != "{":
                found.is_bad = True
                return found
            end = value.certain if value.end is None else value.end
            found.calls.append(CallText(name, as_json(text[at:end]), value.end is not None))
            if value.end is None:
                return found
            at = skip(text, value.end)
            if text.startswith(CALL_END, at):
                at += len(CALL_END)
            elif CALL_END.startswith(text[at:]) and not final:
                return found

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str]:
        """Calls with numbers, each with the schema of its function."""
        calls = [
            f"{mark(f'{CALL}functions.{x.name}:')} /[0-9]/ {mark(ARGUMENTS)} "
            f"{arguments_json(x.parameters)} {mark(CALL_END)}"
            for x in tools
        ]
        return sectioned(calls, mark(SECTION), mark(SECTION_END), several=several)
