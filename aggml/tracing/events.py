"""TraceEvent: one operation of a trace.

Not here: collecting events (timeline.py), drawing them (drawing.py).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TraceEvent"]


class TraceEvent(NamedTuple):
    """One operation that is done.

    Attributes:
        stream: its name; of several of one name, the later ones have a number.
        operation: "set", "get", "copy", "graph_compute", "wait", ...; else the name of the work.
        submitted, started, done: seconds of ``time.perf_counter``.
        nbytes: that it copied or filled.
        tensors: names of placed tensors that it read or wrote, three at most; none for graphs.
        cause: the operation that it waited for; "" if it began when it was submitted.
    """

    stream: str
    operation: str
    submitted: float
    started: float
    done: float
    nbytes: int
    tensors: tuple[str, ...] = ()
    cause: str = ""
