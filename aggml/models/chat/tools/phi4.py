"""Calls of Phi-4-mini: a list in JSON after a word."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Phi4"]


class Phi4(JsonFormat):
    """A list of calls after a word."""

    name = "phi4"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("functools",), ("<|tool|>", "<|/tool|>"))
    begins: ClassVar[tuple[str, ...]] = ("functools", "<|tool_call|>")
    ends: ClassVar[tuple[str, ...]] = ("<|/tool_call|>",)
    is_list: ClassVar[bool] = True
