"""Foreign objects: of other people's classes, any method of which may raise.

Here: texts of objects and exceptions for messages, and logging, without trusting their methods. Not
here: exceptions of ours that stand for them (stream/failures.py).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UNTOLD", "describe", "fit_line", "kind_of", "report", "short", "show", "text_of"]

_log = logging.getLogger("aggml")

#: In the place of what a foreign object failed to say.
UNTOLD: Final = "which cannot be shown"

# The classes' own descriptors: neither a metaclass nor an attribute of the class is in between.
_NAME: Final = type.__dict__["__name__"]


def kind_of(thing: object) -> str:
    """The name of the class of an object."""
    name: str = _NAME.__get__(type(thing))
    return name


def show(thing: object) -> str:
    """The ``repr`` of an object, or the name of its class; Unicode without surrogates."""
    return _ask_safely(repr, thing)


def short(thing: object, most: int = 60) -> str:
    """`show` in one line of at most ``most`` characters."""
    return fit_line(show(thing), most)


def fit_line(text: str, most: int) -> str:
    """The beginning of a text in one line of at most ``most`` characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def text_of(exception: BaseException) -> str:
    """The ``str`` of an exception, or the name of its class; as `show`."""
    return _ask_safely(str, exception)


def describe(exception: BaseException) -> str:
    """Class and text of an exception, as the last line of a traceback has them."""
    text = text_of(exception)
    return text if UNTOLD in text else f"{kind_of(exception)}: {text}"


def report(words: str, exception: BaseException | None = None) -> None:
    """Log what nobody else will hear of. If logging fails as well, nothing more is done.

    Handlers and filters of the program's loggers are foreign code, too. The caller has others to
    tell, work to finish, or memory to release.
    """
    try:
        _log.error("%s", words, exc_info=exception)
    except Exception:  # the traceback of a foreign exception, or a handler
        with suppress(Exception):  # there is no other place to say it
            _log.error("%s: %s", words, show(exception))


def _ask_safely(ask: Callable[[Any], str], thing: object) -> str:
    try:
        # What it gives may be of a class derived from `str`, with methods of its own.
        return str.encode(ask(thing), "utf-8", "backslashreplace").decode()
    except BaseException:  # as Python does where it prints a traceback
        return f"<{kind_of(thing)}, {UNTOLD}>"
