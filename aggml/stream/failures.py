"""Python exceptions for native failures: a new one for each operation, with one shared cause.

Not here: the classes (errors.py), raising them (future.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aggml import errors
from aggml.errors import Aborted, AggmlError, DeviceError
from aggml.process.locks import new_rlock

if TYPE_CHECKING:
    from aggml.native import _native

__all__ = ["exception_of", "root_cause"]

# ag_code of native/runtime/runtime.h; FOREIGN carries its own exception.
_CODES: dict[int, type[AggmlError]] = {
    1: DeviceError,
    2: errors.OutOfBounds,
    3: errors.InvalidArgument,
    4: errors.Unsupported,
    5: errors.AllocFailed,
    6: Aborted,
}


_rooting = new_rlock()  # reentrant: a logged failure may be asked for by the garbage collector


def root_cause(error: _native.Error) -> BaseException:
    """The one exception for a native failure; failures that follow from it share it as cause."""
    with _rooting:  # threads that ask at the same time get the same exception
        if error.exception is None:
            cls = _CODES.get(error.code, DeviceError)
            about = f" '{error.tensor}'" if error.tensor else ""
            root = cls(f"[{error.device}: {error.operation}{about}] {error.text}")
            root.device, root.operation = error.device, error.operation
            root.tensor = error.tensor or None
            error.exception = root
        return cast("BaseException", error.exception)


def exception_of(error: _native.Error, *, derived: bool = False) -> AggmlError:
    """A fresh exception for one failed operation, caused by the shared root."""
    root = root_cause(error)
    if isinstance(root, AggmlError):
        cls, text = type(root), str(root)
    else:
        about = f" '{error.tensor}'" if error.tensor else ""
        what = error.text if about else repr(root)  # the text may be truncated, but it names the op
        cls, text = DeviceError, f"[{error.device}: {error.operation}{about}] {what}"
    if derived:
        text = f"not run, because what it reads was not written: {text}"
    try:
        exception = cls(text)
    except TypeError:  # a subclass that the caller defined, with another constructor
        exception = DeviceError(text)
    exception.device, exception.operation = error.device, error.operation
    exception.tensor = error.tensor or None
    exception.__cause__ = root
    error.seen = True
    return exception
