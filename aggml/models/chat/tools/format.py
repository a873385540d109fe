"""ToolFormat: how models of a family write calls of functions. Each family is a module beside this.

Not here: reading an answer while it comes (../reading.py), telling a model of tools (../prompt.py).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aggml.models.chat.tools.json_text import CallText, Section, read_call, read_calls, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["JsonFormat", "ToolFormat", "call_of", "parse_by_schema", "skip_mark"]


FENCE: Final = "```json"


class ToolFormat(ABC):
    """How models of a family write calls.

    Attributes:
        name: as `TextModel.tool_format` tells it.
        signs: the template of the family has all the texts of one of these rows.
        begins: texts with which calls begin.
        marks: further names of control tokens that belong to calls.
        bare: calls may also begin the answer, without a mark, with one of these texts.
        leads: the mark with which the prompt ends, so that an answer begins behind it.
    """

    name: ClassVar[str]
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ()
    begins: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    bare: ClassVar[tuple[str, ...]] = ()
    leads: ClassVar[str] = ""

    @abstractmethod
    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """Read calls from the beginning of a text, where one of ``begins`` or ``bare`` stands.

        It depends on nothing else. What it tells of a text it also tells of a longer one.

        Args:
            text: as far as it has come.
            tools: that may be called, by name.
            final: nothing more comes.
        """

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str] | None:
        """The rules of Lark for calls; None: they cannot be said, and are written in JSON.

        Args:
            tools: that may be called.
            mark: writes a text in Lark, in which control tokens may stand.
            several: whether there may be several calls.

        Returns:
            The right side of the rule, and further rules.
        """
        return None

    def watching_grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> str | None:
        """A grammar of Lark for a free text in which calls are restricted from their mark on.

        None: it cannot be said for this family.

        Args:
            tools: that may be called; the arguments of those that are not strict are any object.
            mark: as of `grammar`.
            several: as of `grammar`.
        """
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.marks)


class JsonFormat(ToolFormat):
    """Calls in JSON between marks.

    Attributes:
        ends: texts with which calls end, if the model writes one.
        is_list: one list of calls; else one call after each mark.
        key: of the arguments.
        title: the key of the name.
    """

    ends: ClassVar[tuple[str, ...]] = ()
    is_list: ClassVar[bool] = False
    title: ClassVar[str] = "name"
    key: ClassVar[str] = "arguments"
    after: ClassVar[tuple[str, str]] = ("", "")  # blanks after the first, before the last mark

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """JSON after a mark; without one also within a fence."""
        if text.startswith(FENCE):
            found = self._read_marked(text, len(FENCE), final=final, ends=("```",))
            if any(x.name not in tools for x in found.calls):
                found.is_bad = True
            return found
        at = next((len(x) for x in self.begins if text.startswith(x)), 0)
        return self._read_marked(text, at, final=final)

    def _read_marked(
        self, text: str, at: int, *, final: bool, ends: tuple[str, ...] | None = None
    ) -> Section:
        """The call, or the list of calls, at a place, and the mark after it."""
        at = skip(text, at)
        if at >= len(text):
            return Section(is_bad=final)
        names = tuple(dict.fromkeys((self.title, "name", "tool_name")))
        keys = tuple(dict.fromkeys((self.key, "arguments", "parameters")))
        read = read_calls if text[at] == "[" else read_call
        found = read(text, at, final=final, names=names, arguments=keys)
        if found.end is not None and at > 0:
            marks = self.ends if ends is None else ends
            found.end = skip_mark(text, found.end, marks, final=final)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All texts that may be control tokens."""
        return (*self.begins, *self.ends, *self.marks)

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str] | None:
        """Calls in JSON, each with the schema of its function."""
        begin = self.begins[0] if self.begins else ""
        return self._grammar(tools, mark, several=several, begin=begin)

    def watching_grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> str | None:
        """Free text, and calls after their mark."""
        if not (self.begins or self.bare):
            return None
        known = [
            x if x.strict else replace(x, parameters={"type": "object"}) for x in tools
        ]  # fmt: skip
        rules = [r"FREE: /(?s:.+)/"]
        first, after, bare = "FREE", "FREE", ""
        if self.bare:
            rules += _bare_calls(known, several=several)
            first, after, bare = "FREE_FIRST", "FREE_AFTER", "bare"
        if not self.begins:
            return "\n".join([f"start: {bare} {after}? | {first}?", *rules])
        begin = self.begins[0]
        one, calls = self._grammar(known, mark, several=several and self.is_list, begin="")
        rules.append(calls)
        times = "*" if several and not self.is_list else "?"
        if mark(begin).startswith("<["):  # a control token, which no free text contains
            marked_calls = f"({mark(begin)} {one} FREE?){times}"
            starts = [f"{first}? {marked_calls}"]
            if bare:
                starts.append(f"{bare} {after}? {marked_calls if several else ''}")
            return "\n".join([f"start: {' | '.join(starts)}", *rules])
        # The free text before a mark ends with it: two lexemes run side by side.
        opened = re.escape(begin).replace("/", r"\/")
        rules[0] = rf"FREE: /(?s:.+)/ & ~/(?s:.*{opened}.*)/"
        rules += [f"OPENED: /(?s:.*){opened}/", "open[lazy]: OPENED"]
        starts = [f"(open {one}){times} FREE?"]
        if bare:
            rules += [
                "OPENED_FIRST: OPENED & ~BARE_BEGUN", "open_first[lazy]: OPENED_FIRST",
                "OPENED_AFTER: OPENED & ~GOES_ON", "open_after[lazy]: OPENED_AFTER",
            ]  # fmt: skip
            rest = f"(open {one})* FREE?" if times == "*" else "FREE?"
            starts = [f"open_first {one} {rest}", f"{first}?", f"{bare} {after}?"]
            if several:
                starts.append(f"{bare} open_after {one} {rest}")
        return "\n".join([f"start: {' | '.join(starts)}", *rules])

    def _grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool, begin: str
    ) -> tuple[str, str]:
        rules = []
        for i, tool in enumerate(tools):
            head = f"{{{json.dumps(self.title)}: {json.dumps(tool.name)}, {json.dumps(self.key)}: "
            rules.append(f"call_{i}: {mark(head)} {arguments_json(tool.parameters)} {mark('}')}")
        one = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules.append(f"call: {one}")
        end = self.ends[0] if self.ends else ""
        if self.is_list:
            more = f"({mark(', ')} call)*" if several else ""
            right = f"{mark(begin + '[')} call {more} {mark(']' + end)}"
        else:
            rules.append(f"whole: {mark(begin + self.after[0])} call {mark(self.after[1] + end)}")
            right = f"whole ({mark(chr(10))} whole)*" if several and begin else "whole"
        return right, "\n".join(rules)


def _bare_calls(tools: Sequence[Tool], *, several: bool) -> list[str]:
    """Rules of Lark for calls that begin an answer without a mark, and for what is no such call.

    A text is such a call from the name of a function on, or from its arguments if they come first.
    FREE_FIRST is a text that does not begin so; FREE_AFTER does not go on with a further call.
    """
    before = rf"\s*({FENCE}\s*)?(\[\s*)?"
    kind = r"""("type"\s*:\s*"[^"]*"\s*,\s*)?"""
    key = r""""(arguments|parameters)"\s*:\s*"""
    names = [re.escape(json.dumps(x.name)).replace("/", r"\/") for x in tools]
    title = [rf""""(name|tool_name)"\s*:\s*{name}""" for name in names]
    begun = rf"\{{\s*{kind}({'|'.join(title)}|{key})"
    rules = [
        rf"BARE_BEGUN: /(?s:{before}{begun}.*)/",
        r"GOES_ON: /(?s:\s*[,;]\s*\{.*)/",
        "FREE_FIRST: FREE & ~BARE_BEGUN", "FREE_AFTER: FREE & ~GOES_ON",
        r"BARE_END: /\s*\}/",
    ]  # fmt: skip
    calls: dict[str, list[str]] = {"BARE": [], "MORE": []}
    for i, tool in enumerate(tools):
        rules.append(f"bare_arguments_{i}: {arguments_json(tool.parameters)}")
        rules.append(rf"BARE_NAME_{i}: /\s*,\s*{title[i]}/")
        for part, start in (("BARE", before), ("MORE", r"\s*[,;]\s*")):
            rules.append(rf"{part}_{i}: /{start}\{{\s*{kind}{title[i]}\s*,\s*{key}/")
            calls[part] += [
                f"{part}_{i} bare_arguments_{i} BARE_END",
                f"{part}_KEY bare_arguments_{i} BARE_NAME_{i} BARE_END",
            ]
    rules.append(rf"BARE_KEY: /{before}\{{\s*{kind}{key}/")
    rules.append(rf"MORE_KEY: /\s*[,;]\s*\{{\s*{kind}{key}/")
    rules += [f"bare_one: {' | '.join(calls['BARE'])}", f"bare_more: {' | '.join(calls['MORE'])}"]
    rules.append("bare: bare_one bare_more*" if several else "bare: bare_one")
    return rules


def skip_mark(text: str, at: int, marks: Sequence[str], *, final: bool) -> int | None:
    """The place after one of the marks, or after calls without one; None: more must come."""
    if not marks:
        return at
    after = skip(text, at)
    rest = text[after:]
    for mark in marks:
        if rest.startswith(mark):
            return after + len(mark)
    if not final and any(mark.startswith(rest) for mark in marks):
        return None
    return at


def parse_by_schema(value: str, schema: Any) -> Any:  # noqa: ANN401 JSON
    """A value that was written without quotes, as its schema wants it."""
    kinds = _kinds(schema)
    stripped = value.strip()
    if "string" in kinds and not (kinds - {"string"}):
        return value
    try:
        read = json.loads(stripped)
    except (ValueError, RecursionError):
        low = stripped.lower()
        if low in ("true", "false") and (not kinds or "boolean" in kinds):
            return low == "true"
        if low in ("none", "null") and (not kinds or "null" in kinds):
            return None
        return value
    if not kinds or _is_of(read, kinds):
        return read
    return value


def _kinds(schema: Any) -> set[str]:  # noqa: ANN401 JSON
    """The types that a schema names; none: any."""
    if not isinstance(schema, dict):
        return set()
    told = schema.get("type")
    if isinstance(told, str):
        return {told}
    if isinstance(told, list):
        return {x for x in told if isinstance(x, str)}
    if "enum" in schema and all(isinstance(x, str) for x in schema["enum"]):
        return {"string"}
    if isinstance(schema.get("const"), str):
        return {"string"}
    parts = schema.get("anyOf") or schema.get("oneOf") or ()
    found: set[str] = set()
    for part in parts if isinstance(parts, list) else ():
        kinds = _kinds(part)
        if not kinds:
            return set()
        found |= kinds
    return found


def _is_of(value: Any, kinds: set[str]) -> bool:  # noqa: ANN401 JSON
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, int):
        return bool(kinds & {"integer", "number"})
    if isinstance(value, float):
        return "number" in kinds or ("integer" in kinds and value.is_integer())
    if isinstance(value, str):
        return "string" in kinds
    return ("array" if isinstance(value, list) else "object") in kinds


def call_of(name: str, arguments: Mapping[str, Any]) -> CallText:
    """A complete call."""
    return CallText(name, json.dumps(arguments, ensure_ascii=False), True)
