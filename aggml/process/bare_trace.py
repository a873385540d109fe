"""Tracebacks that name files, functions and lines, and keep no other object alive.

Here: replacing the tracebacks of an exception that native code will hold, where Python's garbage
collector cannot see its references. An ordinary frame keeps its variables alive, its function with
the closure, and the frame that called it.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType, TracebackType
from typing import Final

__all__ = ["make_bare"]


# The descriptors of the builtin classes: a foreign class may forbid to set attributes, and may have
# attributes of these names.
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]
_CAUSE: Final = BaseException.__dict__["__cause__"]
_CONTEXT: Final = BaseException.__dict__["__context__"]
_EXCEPTIONS: Final = BaseExceptionGroup.__dict__["exceptions"]


def make_bare(exception: BaseException) -> None:
    """Replace the tracebacks of an exception, its causes and contexts, by bare ones."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exception]
    del exception  # the new tracebacks refer to this frame, so it must hold nothing in the end
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        places = _places(_TRACEBACK.__get__(one))
        bare: TracebackType | None = None
        while places:
            name, qualified, file, module, line = places.pop()
            frame = _frame(name, qualified, file, module)
            bare = TracebackType(bare, frame, -1, line)
            del frame
        _TRACEBACK.__set__(one, bare)
        todo += [_CAUSE.__get__(one), _CONTEXT.__get__(one)]
        if issubclass(type(one), BaseExceptionGroup):
            todo += _EXCEPTIONS.__get__(one)
        del one, bare


def _places(trace: TracebackType | None) -> list[tuple[str, str, str, str, int]]:
    """(function, its qualified name, file, module, line) of each entry."""
    places = []
    while trace is not None:
        code, module = trace.tb_frame.f_code, dict.get(trace.tb_frame.f_globals, "__name__")
        name, qualified, file = code.co_name, code.co_qualname, code.co_filename
        places.append(
            (name, qualified, file, module if type(module) is str else "", trace.tb_lineno)
        )
        trace = trace.tb_next
    return places


def _frame(name: str, qualified: str, file: str, module: str) -> FrameType:
    """An empty frame that reports the name and file of this function."""
    code = _this.__code__.replace(co_name=name, co_qualname=qualified, co_filename=file)
    made: FrameType = FunctionType(code, {"__name__": module, "sys": sys})()
    return made


def _this() -> FrameType:
    return sys._getframe()
