"""Python exceptions for native failures: a new one for each operation, with one shared cause.

Not here: the classes (errors.py), raising them (future.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from aggml import errors
from aggml.errors import Aborted, AggmlError, DeviceError
from aggml.process.foreign import UNTOLD, show, text_of
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

_OURS: Final = frozenset(getattr(errors, name) for name in errors.__all__)


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
    about = f" '{error.tensor}'" if error.tensor else ""
    place = f"[{error.device}: {error.operation}{about}]"
    cls: type[AggmlError] = DeviceError
    if issubclass(type(root), AggmlError):
        cls = type(root)  # type: ignore[assignment] # it is a subclass, whatever `isinstance` says
        text = text_of(root)
        if UNTOLD in text:
            text = f"{place} {text}"
    else:
        # The text may be truncated, but it names the op; and what failed once is not asked again.
        asks = not about and UNTOLD not in error.text
        text = f"{place} {show(root) if asks else error.text}"
    if derived:
        text = f"not run, because what it reads was not written: {text}"
    exception = _like(cls, text, error, root)
    error.seen = True
    return exception


def _like(
    cls: type[AggmlError], text: str, error: _native.Error, root: BaseException
) -> AggmlError:
    """An exception of this class with these attributes and this cause.

    If the class is a caller's own and does not allow that, it is of the first class of ours from
    which that one is derived.
    """
    for one in type.__dict__["__mro__"].__get__(cls):
        ours = one in _OURS
        try:
            exception = (DeviceError if one is AggmlError else one)(text)
            if ours or (type(exception) is one and text_of(exception) == text):
                exception.device, exception.operation = error.device, error.operation
                exception.tensor = error.tensor or None
                exception.__cause__ = root
                return cast("AggmlError", exception)
        except BaseException:
            if ours:  # not the fault of a foreign class: Ctrl-C, or no memory
                raise
    raise AssertionError("AggmlError is among the bases")
