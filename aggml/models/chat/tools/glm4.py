"""Calls of GLM-4 (9B and 32B): a function in the place of a message's title, arguments behind it.

Not here: GLM 4.5 and later, which write calls between tags (tagged.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from aggml.models.chat.tools.format import ToolFormat, skip_mark
from aggml.models.chat.tools.json_text import CallText, Section, as_json, scan, skip
from aggml.models.engine.grammars import arguments_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.asking import Tool

__all__ = ["GLM4"]

MARK: Final = "<|assistant|>"
END: Final = "<|observation|>"  # the model asks for what the function says
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]*")


class GLM4(ToolFormat):
    """The prompt ends in the first mark; a message to the user has an empty title."""

    name = "glm4"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("[gMASK]", "<|observation|>"),
                                                    ("[gMASK]", "'observation'"))  # fmt: skip
    begins: ClassVar[tuple[str, ...]] = (MARK,)
    marks: ClassVar[tuple[str, ...]] = (END,)
    leads: ClassVar[str] = MARK

    def read(self, text: str, tools: Mapping[str, Tool], *, final: bool) -> Section:
        """A call of a known function, or the beginning of what is said to the user."""
        said = Section(len(MARK))
        begin = len(MARK)
        found = _NAME.match(text, begin)
        assert found is not None
        name = found[0]
        if found.end() == len(text) and not final:
            return Section() if any(x.startswith(name) for x in tools) else said
        if not name:
            return Section(begin + 1) if text.startswith("\n", begin) else said
        if name not in tools:
            return said
        at = skip(text, found.end())
        if "\n" not in text[found.end() : at]:
            return Section() if at == len(text) and not final else said
        if at == len(text):
            return said if final else Section()
        value = scan(text, at, final=final)
        if text[at] != "{" or value.is_bad:
            return said
        if value.end is None:
            return Section(None, [CallText(name, as_json(text[at : value.certain]), False)])
        end = skip_mark(text, value.end, (END,), final=final)
        return Section(end, [CallText(name, as_json(text[at : value.end]), True)])

    def grammar(
        self, tools: Sequence[Tool], mark: Callable[[str], str], *, several: bool
    ) -> tuple[str, str] | None:
        """Names with arguments; the prompt has the mark before the first one."""
        rules = [
            f"call_{i}: {mark(x.name + chr(10))} {arguments_json(x.parameters)}"
            for i, x in enumerate(tools)
        ]
        rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}")
        return f"call ({mark(MARK)} call)*" if several else "call", "\n".join(rules)
