"""The exceptions: AggmlError and its subclasses; and ggml's status codes.

Here: the classes, each of which also derives from the fitting builtin; Status, for programs that
compare with ggml. Not here: messages. The raising code writes them in the form
``[place] what is wrong, which object, which value``.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "Aborted",
    "AggmlError",
    "AllocFailed",
    "AlreadyAllocated",
    "BackendLoadError",
    "CapacityExceeded",
    "DeviceError",
    "InvalidArgument",
    "InvalidHandle",
    "InvalidState",
    "LayoutMismatch",
    "Misaligned",
    "NoBackendForOp",
    "NotAllocated",
    "OutOfBounds",
    "ReadOnly",
    "Status",
    "TooManyFiles",
    "Unsupported",
]


class AggmlError(Exception):
    """The base class of all exceptions that aggml raises.

    Attributes:
        device: name of the device on which an operation failed, or None.
        operation: what failed there ("set", "graph_compute", ...), or None.
        tensor: name of the tensor or node concerned, or None.
    """

    device: str | None = None
    operation: str | None = None
    tensor: str | None = None


class InvalidHandle(AggmlError, TypeError):
    """An object that is needed is missing or of the wrong kind."""


class InvalidArgument(AggmlError, ValueError):
    """A value is outside its domain."""


class OutOfBounds(AggmlError, IndexError):
    """Bytes outside a tensor or buffer, or an index outside its range."""


class NotAllocated(AggmlError, RuntimeError):
    """A tensor or graph has no memory yet, or no longer."""


class AlreadyAllocated(AggmlError, RuntimeError):
    """A tensor or graph has memory already."""


class LayoutMismatch(AggmlError, ValueError):
    """Element type, an extent or a stride differs from what is needed."""


class Misaligned(AggmlError, ValueError):
    """An address does not meet the required alignment."""


class Unsupported(AggmlError, NotImplementedError):
    """This device, backend or buffer does not offer the capability."""


class AllocFailed(AggmlError, MemoryError):
    """Memory could not be obtained."""


class CapacityExceeded(AggmlError, OverflowError):
    """A fixed capacity does not suffice."""


class NoBackendForOp(AggmlError, LookupError):
    """No backend can run an operation where its data lies."""


class InvalidState(AggmlError, RuntimeError):
    """The call is illegal in the present state of the object."""


class ReadOnly(InvalidState, AttributeError):
    """A field of an object that does not change was assigned."""


class TooManyFiles(AggmlError, OSError):
    """The process has no file descriptor left: see ``ulimit -n``."""


class BackendLoadError(AggmlError, ImportError):
    """A plug-in is missing, not for this machine, or of the wrong version."""


class DeviceError(AggmlError, RuntimeError):
    """A driver or device failed."""


class Aborted(AggmlError, RuntimeError):
    """The operation was stopped on request before it was finished."""


class Status(IntEnum):
    """How a computation ended (enum ggml_status)."""

    ALLOC_FAILED = -2
    FAILED = -1
    SUCCESS = 0
    ABORTED = 1

    @classmethod
    def of(cls, exception: BaseException | None) -> Status:
        """ggml's status code for the exception that a Future's ``exception()`` returned."""
        if exception is None:
            return cls.SUCCESS
        if isinstance(exception, Aborted):
            return cls.ABORTED
        return cls.ALLOC_FAILED if isinstance(exception, AllocFailed) else cls.FAILED

    @property
    def text(self) -> str:
        """The code as text for messages (ggml_status_to_string)."""
        return _TEXTS[self]


_TEXTS = {
    Status.ALLOC_FAILED: "no memory",
    Status.FAILED: "failed",
    Status.SUCCESS: "success",
    Status.ABORTED: "aborted",
}
