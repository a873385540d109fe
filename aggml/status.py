"""Status: ggml's four status codes, for those who compare with them; failures here are exceptions.

Not here: the exceptions (errors.py).
"""

from __future__ import annotations

from enum import IntEnum

from aggml.errors import Aborted, AllocFailed

__all__ = ["Status"]


class Status(IntEnum):
    """How a computation ended (enum ggml_status)."""

    ALLOC_FAILED = -2
    FAILED = -1
    SUCCESS = 0
    ABORTED = 1

    @classmethod
    def of(cls, exception: BaseException | None) -> Status:
        """The code that ggml has for what a Future's ``exception()`` tells."""
        if exception is None:
            return cls.SUCCESS
        if isinstance(exception, Aborted):
            return cls.ABORTED
        return cls.ALLOC_FAILED if isinstance(exception, AllocFailed) else cls.FAILED

    @property
    def text(self) -> str:
        """For messages (ggml_status_to_string)."""
        return _TEXTS[self]


_TEXTS = {
    Status.ALLOC_FAILED: "no memory",
    Status.FAILED: "failed",
    Status.SUCCESS: "success",
    Status.ABORTED: "aborted",
}
