"""Parameters of a backend as text: "n_threads=2,use_ref" to keyword arguments.

Here: reading the text and refusing what a function does not take. Not here: their meaning.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument, InvalidHandle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["keywords_of"]

_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def keywords_of(params: str, function: Callable[..., object], what: str) -> dict[str, object]:
    """Keyword arguments for ``function`` from ``key=value,key=value``.

    Values are integers, numbers, ``true``, ``false``, ``none``, else text; a key alone is true.

    Raises:
        InvalidArgument: a key is no keyword of ``function``, or given twice.
    """
    if not isinstance(params, str):
        raise InvalidHandle(f"[{what}] params={params!r} is no text")
    known = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    found: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in params.split(","))):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in known or key in found:
            problem = "is given twice" if key in found else f"is none of {known}"
            raise InvalidArgument(f"[{what}] {key!r} in {params!r} {problem}")
        found[key] = _value(text) if equals else True
    return found


def _value(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
