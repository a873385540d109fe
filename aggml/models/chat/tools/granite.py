"""Calls of Granite 3: a list in JSON after a mark."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Granite"]


class Granite(JsonFormat):
    """A list of calls after a mark."""

    name = "granite"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<|tool_call|>",), ("<tool_call>[",))
    begins: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
    ends: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    is_list: ClassVar[bool] = True
