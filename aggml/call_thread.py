"""CallThread: the Python thread on which a stream runs Python functions, in its order.

Here: taking the next call from the native stream and telling how it ended. Not here: queueing it
(stream.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallThread", "foreign_error"]

_FOREIGN = 7  # ag_code of native/runtime/runtime.h


class CallThread:
    """The Python thread that runs what `Stream.call` was given, in stream order."""

    def __init__(self, native: _native.Stream, name: str) -> None:
        self.native = native
        self.functions: dict[int, Callable[[], object]] = {}
        self.stopping = False
        self.thread = threading.Thread(target=self._serve, name=f"aggml call {name}", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Let the thread end once nothing is left to call: the stream takes nothing more."""
        self.stopping = True
        self.native.close()

    def _serve(self) -> None:
        native = self.native
        while True:
            ticket = native.next_call(1.0)
            self._forget(native.completed)
            if ticket is None:
                if self.stopping or (native.closed and native.completed == native.submitted):
                    return
                continue
            function = self.functions.pop(ticket)
            try:
                function()
            except BaseException as exception:
                native.finish_call(foreign_error(exception, native.name, "call"))
            else:
                native.finish_call(None)
            del function

    def _forget(self, completed: int) -> None:
        """Drop functions that will never run: their operations were aborted, or read poison."""
        for ticket in [t for t in list(self.functions) if t <= completed]:
            self.functions.pop(ticket, None)


def foreign_error(
    exception: BaseException, device: str, operation: str, tensor: str = ""
) -> _native.Error:
    """A native error that stands for an exception of Python."""
    error = _native.Error.make(_FOREIGN, device, operation, tensor, repr(exception))
    error.exception = exception
    return error
