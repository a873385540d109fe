"""Calls of DeepSeek V2.5, V3, R1 and V3.1: names and arguments between marks."""
# ruff: noqa: RUF001 the marks are written with wide characters

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, sectioned
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["DeepSeek"]

SECTION: Final = "<｜tool▁calls▁begin｜>"
SECTION_END: Final = "<｜tool▁calls▁end｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
PART: Final = "<｜tool▁sep｜>"
FENCE: Final = "```json"


class DeepSeek(ToolFormat):
    """``name SEP {...}``, or before V3.1 ``function SEP name``, a line feed, and a fence."""

    name = "deepseek"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((SECTION,),)
    begins: ClassVar[tuple[str, ...]] = (SECTION, CALL)
    marks: ClassVar[tuple[str, ...]] = (SECTION_END, CALL_END, PART)

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
            stop = text.find(PART, at)
            brace = text.find("{", at)
            if stop < 0 or brace < 0:
                found.is_bad = final
                return found
            name = text[at + len(CALL) : stop].strip()
            between = text[stop + len(PART) : brace].strip()
            if between:  # the older form
                name = between.removesuffix(FENCE).removesuffix("```").strip()
            value = scan(text, brace, final=final)
            if value.is_bad or stop > brace or not name or "\n" in name:
                found.is_bad = True
                return found
            end = value.certain if value.end is None else value.end
            found.calls.append(CallText(name, as_json(text[brace:end]), value.end is not None))
            if value.end is None:
                return found
            at = skip(text, value.end)
            if text.startswith("```", at):
                at = skip(text, at + 3)
            elif "```".startswith(text[at:]) and not final:
                return found
            if text.startswith(CALL_END, at):
                at += len(CALL_END)
            elif CALL_END.startswith(text[at:]) and not final:
                return found

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str]:
        """Calls in the form of V3.1, which all of them can be read in."""
        calls = [
            f"{mark(f'{CALL}{x.name}{PART}')} {arguments_json(x.parameters)} {mark(CALL_END)}"
            for x in tools
        ]
        return sectioned(calls, mark(SECTION), mark(SECTION_END), several=several)
