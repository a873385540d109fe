"""Calls of Nemotron Nano 2: a list in JSON in tags."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Nemotron"]


class Nemotron(JsonFormat):
    """A list of calls in tags."""

    name = "nemotron"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("<TOOLCALL>",),)
    begins: ClassVar[tuple[str, ...]] = ("<TOOLCALL>",)
    ends: ClassVar[tuple[str, ...]] = ("</TOOLCALL>",)
    is_list: ClassVar[bool] = True
