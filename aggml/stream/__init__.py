"""Stream: in-order work with futures. Public, so that a device written in Python has them too.

Here: the name. stream.py has the class, future.py the results, reactor.py wakes event loops.
"""

from aggml.stream.stream import Stream

__all__ = ["Stream"]


def __dir__() -> list[str]:
    return __all__
