"""Calls of xLAM: a list in JSON that is the whole answer."""

from __future__ import annotations

from typing import ClassVar

from aggml.models.chat.tools.format import JsonFormat

__all__ = ["Xlam"]


class Xlam(JsonFormat):
    """A list of calls without any mark."""

    name = "xlam"
    signs: ClassVar[tuple[tuple[str, ...], ...]] = (("xlam",), ("xLAM",))
    bare: ClassVar[tuple[str, ...]] = ("[", "```json")
    is_list: ClassVar[bool] = True
