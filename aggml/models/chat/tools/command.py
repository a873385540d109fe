"""Calls of Command R7B and A: a list in JSON between marks."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Command"]


class Command(JsonFormat):
    """A list of calls with names of their own."""

    name = "command"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<|START_ACTION|>",),)
    begins: ClassVar[tuple[str, ...]] = ("<|START_ACTION|>",)
    ends: ClassVar[tuple[str, ...]] = ("<|END_ACTION|>",)
    is_list: ClassVar[bool] = True
    title: ClassVar[str] = "tool_name"
    key: ClassVar[str] = "parameters"
