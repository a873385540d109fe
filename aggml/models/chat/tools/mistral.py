"""Calls of Mistral: a list in JSON, or names with arguments, after a mark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import JsonFormat, ToolFormat
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["Mistral", "MistralArgs"]

MARK: Final = "[TOOL_CALLS]"
ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"
_NAME: Final = re.compile(r"\s*([A-Za-z0-9_.:/-]+)")


class Mistral(JsonFormat):
    """A list in JSON, until version 7; the newer form is read, too."""

    name = "mistral"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((MARK,),)
    begins: ClassVar[tuple[str, ...]] = (MARK,)
    marks: ClassVar[tuple[str, ...]] = (ID, ARGS)
    is_list: ClassVar[bool] = True

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """Either form."""
        at = skip(text, len(MARK))
        if at >= len(text):
            return Section(is_bad=final)
        if text[at] in "[{":
            return self._read_marked(text, at, final=final)
        found = _NAME.match(text, at)
        if found is None:
            return Section(is_bad=True)
        at = skip(text, found.end())
        rest = text[at:]
        if rest.startswith(ID):
            stop = text.find(ARGS, at)
            if stop < 0:
                return Section(is_bad=final)
            at = stop
        elif ID.startswith(rest) and not final:
            return Section()
        if text.startswith(ARGS, at):
            at += len(ARGS)
        elif ARGS.startswith(text[at:]):
            return Section(is_bad=final)
        elif text[at] != "{":
            return Section(is_bad=True)
        at = skip(text, at)
        if at >= len(text):
            return Section(is_bad=final)
        value = scan(text, at, final=final)
        if value.is_bad or text[at] != "{":
            return Section(is_bad=True)
        end = value.certain if value.end is None else value.end
        call = CallText(found[1], as_json(text[at:end]), value.end is not None)
        return Section(value.end, [call])


class MistralArgs(Mistral):
    """A mark before each name, and one before its arguments: from version 11 on."""

    name = "mistral_args"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = ((MARK, ARGS), (MARK, ID))

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str] | None:
        """Names with arguments."""
        return ToolFormat.grammar(self, tools, mark, several=several) or _rules(
            tools, mark, several=several
        )

    def watching_grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> str | None:
        """None: the name stands between marks, and is no JSON."""
        return None


def _rules(tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool) -> tuple[str, str]:
    rules = [
        f"call_{i}: {mark(MARK + x.name + ARGS)} {arguments_json(x.parameters)}"
        for i, x in enumerate(tools)
    ]
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    return f"({one})+" if several else f"({one})", "\n".join(rules)
