"""Calls of Hunyuan A13B: a list in JSON in tags."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Hunyuan"]


class Hunyuan(JsonFormat):
    """A list of calls in tags."""

    name = "hunyuan"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<tool_calls>",),)
    begins: ClassVar[tuple[str, ...]] = ("<tool_calls>",)
    ends: ClassVar[tuple[str, ...]] = ("</tool_calls>",)
    is_list: ClassVar[bool] = True
