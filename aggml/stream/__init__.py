"""Stream: in-order work with futures. Public, so that a device written in Python has them too.

Here: the names. base.py enqueues, data.py moves bytes and runs plans, calls.py calls Python,
stream.py puts streams in order.
"""

from aggml.stream.base import StreamBase
from aggml.stream.stream import Stream

__all__ = ["Stream", "StreamBase"]


def __dir__() -> list[str]:
    return __all__
