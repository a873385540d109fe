"""Calls whose arguments stand between tags, each by itself: Qwen 3 Coder, MiniMax, GLM, others.

Values are written without quotes; the schema of the function tells their types.
"""
# ruff: noqa: RUF001 some marks are written with wide characters

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, parse_by_schema, skip_mark
from aggml.models.chat.tools.json_text import CallText, Section, read_call, read_calls, skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.chat.asking import Tool

__all__ = ["GLM", "DeepSeekMarkup", "MiniMax", "QwenCoder", "SeedOss"]


class _Tagged(ToolFormat):
    """Calls in tags.

    Attributes:
        wraps: the tag around a call, or around all of them; its end.
        call, call_end: begin and end of a call, with its name.
        part, part_end: begin and end of an argument, with its name.
    """

    wraps: ClassVar[tuple[str, str]]
    call: ClassVar[str]
    call_end: ClassVar[str]
    part: ClassVar[str]
    part_end: ClassVar[str]
    strips: ClassVar[bool] = True  # one line feed on each side of a value

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.wraps)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """The calls in a tag; one call, if the tag is missing."""
        opener, closer = self.wraps
        wrapped = text.startswith(opener)
        at = skip(text, len(opener) if wrapped else 0)
        found = Section()
        if wrapped and text[at : at + 1] in ("{", "["):
            read = read_calls if text[at] == "[" else read_call
            found = read(text, at, final=final)
            if found.end is not None:
                found.end = skip_mark(text, found.end, (closer,), final=final)
            return found
        while True:
            at = skip(text, at)
            rest = text[at:]
            if found.calls and wrapped and rest.startswith(closer):
                found.end = at + len(closer)
                return found
            begin = re.compile(self.call).match(text, at)
            if begin is None:
                return self._between(found, text, at, final=final)
            after = self._arguments(text, begin.end(), tools.get(begin["name"].strip()))
            if after is None:
                found.is_bad = True
                return found
            arguments, stop = after
            call = _call_text(begin["name"].strip(), arguments, complete=stop is not None)
            if stop is None:
                if final:
                    found.is_bad = True
                    return found
                if arguments:
                    found.calls.append(call)
                return found
            found.calls.append(call)
            at = stop
            if not wrapped:
                found.end = skip_mark(text, at, (closer,), final=final)
                return found

    def _between(self, found: Section, text: str, at: int, *, final: bool) -> Section:
        """Where neither a call nor the end of all of them stands."""
        rest = text[at:]
        literal = _literal(self.call)
        open_ = literal.startswith(rest) or self.wraps[1].startswith(rest)
        open_ = open_ or (rest.startswith(literal) and len(rest) < 256 and self._may_go_on(rest))
        if open_ and not final:
            return found
        if found.calls:
            found.end = at
        else:
            found.is_bad = True
        return found

    def _may_go_on(self, rest: str) -> bool:
        return "\n\n" not in rest

    def _arguments(
        self, text: str, at: int, tool: Tool | None
    ) -> tuple[dict[str, Any], int | None] | None:
        """The arguments of a call, and the place after it; None: it is none."""
        properties = {} if tool is None else tool.parameters.get("properties") or {}
        found: dict[str, Any] = {}
        part = re.compile(self.part)
        while True:
            at = skip(text, at)
            rest = text[at:]
            if rest.startswith(self.call_end):
                return found, at + len(self.call_end)
            begin = part.match(text, at)
            if begin is None:
                literal = _literal(self.part)
                open_ = self.call_end.startswith(rest) or literal.startswith(rest)
                open_ = open_ or (rest.startswith(literal) and len(rest) < 512)
                return (found, None) if open_ else None
            name = begin["key"].strip()
            stop = text.find(self.part_end, begin.end())
            if stop < 0:
                return found, None
            value = text[begin.end() : stop]
            if self.strips:
                value = value.removeprefix("\n").removesuffix("\n")
            if name not in found:  # what was given cannot be taken back
                found[name] = self._value(value, properties.get(name), begin)
            at = stop + len(self.part_end)

    def _value(self, value: str, schema: Any, begin: re.Match[str]) -> Any:  # noqa: ANN401
        return parse_by_schema(value, schema)


def _literal(pattern: str) -> str:
    """The text with which a regular expression begins."""
    return re.split(r"\(\?P<|\[|\"\?", pattern)[0]


def _call_text(name: str, arguments: dict[str, Any], *, complete: bool) -> CallText:
    text = json.dumps(arguments, ensure_ascii=False)
    return CallText(name, text if complete else text[:-1], complete)


_QWEN: Final = {
    "call": r"<function=(?P<name>[^>\n]+)>", "call_end": "</function>",
    "part": r"<parameter=(?P<key>[^>\n]+)>", "part_end": "</parameter>",
}  # fmt: skip


class QwenCoder(_Tagged):
    """Of Qwen 3 Coder, Qwen 3.5 and Nemotron 3."""

    name = "qwen_coder"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<function=", "<parameter="),)
    begins: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=")
    wraps: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    call: ClassVar[str] = _QWEN["call"]
    call_end: ClassVar[str] = _QWEN["call_end"]
    part: ClassVar[str] = _QWEN["part"]
    part_end: ClassVar[str] = _QWEN["part_end"]


class SeedOss(QwenCoder):
    """Of Seed OSS: the same in another tag."""

    name = "seed_oss"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<seed:tool_call>",),)
    begins: ClassVar[tuple[str, ...]] = ("<seed:tool_call>", "<function=")
    wraps: ClassVar[tuple[str, str]] = ("<seed:tool_call>", "</seed:tool_call>")


class MiniMax(_Tagged):
    """Of MiniMax M2."""

    name = "minimax"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<minimax:tool_call>",),)
    begins: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>",)
    wraps: ClassVar[tuple[str, str]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    call: ClassVar[str] = r'<invoke name="?(?P<name>[^">\n]+)"?>'
    call_end: ClassVar[str] = "</invoke>"
    part: ClassVar[str] = r'<parameter name="?(?P<key>[^">\n]+)"?>'
    part_end: ClassVar[str] = "</parameter>"


class DeepSeekMarkup(_Tagged):
    """Of DeepSeek V3.2: each argument says whether it is a text or JSON."""

    name = "deepseek_markup"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("DSML",),)
    begins: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>",)
    wraps: ClassVar[tuple[str, str]] = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    call: ClassVar[str] = r'<｜DSML｜invoke name="(?P<name>[^">\n]+)">'
    call_end: ClassVar[str] = "</｜DSML｜invoke>"
    part: ClassVar[str] = (
        r'<｜DSML｜parameter name="(?P<key>[^">\n]+)"(?: string="(?P<text>true|false)")?>'
    )
    part_end: ClassVar[str] = "</｜DSML｜parameter>"
    strips: ClassVar[bool] = False

    def _value(self, value: str, schema: Any, begin: re.Match[str]) -> Any:  # noqa: ANN401
        if begin["text"] == "true":
            return value
        if begin["text"] == "false":
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                return value
        return parse_by_schema(value, schema)


class GLM(_Tagged):
    """Of GLM 4.5 and later: the name, then keys and values."""

    name = "glm"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<arg_key>",),)
    begins: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    wraps: ClassVar[tuple[str, str]] = ("<tool_call>", "")
    call: ClassVar[str] = r"(?P<name>[A-Za-z0-9_.:/-]+)\s*(?=<)"
    call_end: ClassVar[str] = "</tool_call>"
    part: ClassVar[str] = r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>"
    part_end: ClassVar[str] = "</arg_value>"
    marks: ClassVar[tuple[str, ...]] = (
        "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.marks)

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """One call."""
        at = skip(text, len(self.begins[0]))
        if text[at : at + 1] == "{":
            found = read_call(text, at, final=final)
            if found.end is not None:
                found.end = skip_mark(text, found.end, (self.call_end,), final=final)
            return found
        begin = re.compile(self.call).match(text, at)
        if begin is None:
            open_ = re.fullmatch(r"[A-Za-z0-9_.:/-]*\s*", text[at:]) is not None
            return Section(is_bad=final or not open_)
        after = self._arguments(text, begin.end(), tools.get(begin["name"]))
        if after is None or (after[1] is None and final):
            return Section(is_bad=True)
        arguments, stop = after
        if stop is None and not arguments:
            return Section()
        return Section(stop, [_call_text(begin["name"], arguments, complete=stop is not None)])
