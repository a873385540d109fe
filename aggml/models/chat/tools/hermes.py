"""Calls of Hermes, Qwen 2.5 and 3, SmolLM 3, Granite 4: JSON in tags."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Hermes"]


class Hermes(JsonFormat):
    """One call in each pair of tags."""

    name = "hermes"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<tool_call>",),)
    begins: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    ends: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    bare: ClassVar[tuple[str, ...]] = ('{"name"', '{"arguments"', "```json")
    after: ClassVar[tuple[str, str]] = ("\n", "\n")
