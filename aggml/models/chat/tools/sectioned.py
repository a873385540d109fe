"""Calls between marks of their own, in a section: a name, a mark, arguments. DeepSeek, Kimi K2.

Not here: DeepSeek V3.2, which writes markup (tagged.py).
"""
# ruff: noqa: RUF001 the marks are written with wide characters

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["DeepSeek", "Kimi", "SectionFormat"]

FENCE: Final = "```"


class SectionFormat(ToolFormat):
    """``SECTION CALL title PART {...} CALL_END ... SECTION_END``; the first mark may be missing.

    Attributes:
        section: begins and ends the section.
        call: begins and ends a call.
        part: is between the title of a call and its arguments.
        fenced: arguments may stand in a fence, behind the name of the function.
    """

    signs: ClassVar[tuple[tuple[str, ...], ...]]
    begins: ClassVar[tuple[str, ...]]
    marks: ClassVar[tuple[str, ...]]
    section: ClassVar[tuple[str, str]]
    call: ClassVar[tuple[str, str]]
    part: ClassVar[str]
    fenced: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """The marks by the names that all formats have."""
        super().__init_subclass__()
        cls.signs = ((cls.section[0],),)
        cls.begins = (cls.section[0], cls.call[0])
        cls.marks = (cls.section[1], cls.call[1], cls.part)

    @abstractmethod
    def title(self, name: str, mark: Callable[[str], str]) -> str:
        """A call up to its arguments, in Lark."""

    def function_of(self, title: str) -> str:
        """The name of the function in the title of a call."""
        return title

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """All calls of a section."""
        section, section_end = self.section
        call, call_end = self.call
        at = len(section) if text.startswith(section) else 0
        found = Section()
        while True:
            at = skip(text, at)
            rest = text[at:]
            if rest.startswith(section_end):
                found.end, found.is_bad = at + len(section_end), not found.calls
                return found
            if not rest.startswith(call):
                if not final and (call.startswith(rest) or section_end.startswith(rest)):
                    return found
                found.end, found.is_bad = at, not found.calls
                return found
            stop = text.find(self.part, at)
            brace = -1 if stop < 0 else self._brace(text, stop + len(self.part))
            if brace < 0:
                found.is_bad = final
                return found
            title = text[at + len(call) : stop].strip()
            between = text[stop + len(self.part) : brace].strip()
            if between:
                title = between.removesuffix("json").strip().removesuffix(FENCE).strip()
            name = self.function_of(title)
            value = scan(text, brace, final=final)
            if text[brace] != "{" or value.is_bad or not name or "\n" in name:
                found.is_bad = True
                return found
            end = value.certain if value.end is None else value.end
            found.calls.append(CallText(name, as_json(text[brace:end]), value.end is not None))
            if value.end is None:
                return found
            at = skip(text, value.end)
            if self.fenced and text.startswith(FENCE, at):
                at = skip(text, at + len(FENCE))
            elif self.fenced and FENCE.startswith(text[at:]) and not final:
                return found
            if text.startswith(call_end, at):
                at += len(call_end)
            elif call_end.startswith(text[at:]) and not final:
                return found

    def _brace(self, text: str, at: int) -> int:
        """Where the arguments begin; -1: it has not come."""
        if self.fenced:
            return text.find("{", at)
        at = skip(text, at)
        return at if at < len(text) else -1

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str]:
        """Calls in a section, each with the schema of its function."""
        rules = [
            f"call_{i}: {self.title(x.name, mark)} {arguments_json(x.parameters)} "
            f"{mark(self.call[1])}"
            for i, x in enumerate(tools)
        ]
        one = " | ".join(f"call_{i}" for i in range(len(tools)))
        begin, end = map(mark, self.section)
        return f"{begin} ({one}){'+' if several else ''} {end}", "\n".join(rules)


class DeepSeek(SectionFormat):
    """V3.1 writes ``name PART {...}``; before ``function PART name``, a line feed, and a fence."""

    name = "deepseek"
    section: ClassVar[tuple[str, str]] = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call: ClassVar[tuple[str, str]] = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    part = "<｜tool▁sep｜>"
    fenced = True

    def title(self, name: str, mark: Callable[[str], str]) -> str:
        """The form of V3.1, in which all of them can be read."""
        return mark(f"{self.call[0]}{name}{self.part}")


class Kimi(SectionFormat):
    """K2: titles have the name of the function and the number of the call."""

    name = "kimi"
    section: ClassVar[tuple[str, str]] = (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    )
    call: ClassVar[tuple[str, str]] = ("<|tool_call_begin|>", "<|tool_call_end|>")
    part = "<|tool_call_argument_begin|>"

    def title(self, name: str, mark: Callable[[str], str]) -> str:
        """With a number of one digit."""
        return f"{mark(f'{self.call[0]}functions.{name}:')} /[0-9]/ {mark(self.part)}"

    def function_of(self, title: str) -> str:
        """``weather`` of ``functions.weather:0``."""
        return title.removeprefix("functions.").rsplit(":", 1)[0]
