"""CallThread: the Python thread on which a stream runs Python functions, in its order.

Here: taking the next call from the native stream and reporting how it ended; refusing waits that
would never end. Not here: queueing calls (stream.py), the functions of a graph (plan/call.py).
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from aggml.errors import InvalidState
from aggml.native import _native
from aggml.process.alive import there
from aggml.process.bare_trace import make_bare
from aggml.process.foreign import show
from aggml.process.locks import in_child, new_rlock
from aggml.process.signals import signals_blocked
from aggml.process.threads import new_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "BlockedWait",
    "CallThread",
    "calling",
    "check_may_wait",
    "foreign_error",
    "join_callers",
    "stop_callers",
]

_FOREIGN = 7  # ag_code of native/runtime/runtime.h

#: Threads that run a function at this moment, each with the stream that waits for the function.
calling: dict[int, _native.Stream] = {}
#: Those of these threads that wait, each with the operations that it waits for.
_blocked: dict[int, tuple[_native.Stream, tuple[_native.Op, ...]]] = {}
_blocked_lock = new_rlock()
_callers: weakref.WeakSet[CallThread] = weakref.WeakSet()  # each is kept by its own thread
_stopping = False
# In the child of a fork these threads do not exist, and a new thread may get the id of one of them.
in_child(calling.clear)
in_child(_blocked.clear)


def check_may_wait(ops: Iterable[_native.Op], what: str) -> None:
    """Refuse a wait that would never end: for work queued after the function that wants to wait.

    The stream that runs this function cannot go on before the function returns. The wait may reach
    that stream through other streams, or through other functions that wait. Called only while some
    function runs.

    Raises:
        InvalidState: an unfinished operation belongs to that stream, or waits for one of it.
    """
    native = calling.get(threading.get_ident())
    if native is None:
        return
    waited = [op for op in ops if not op.done()]
    if not native.needs(waited, list(_blocked.values())):
        return
    direct = any(op.stream is native for op in waited)
    by = "" if direct else ", which has to wait for it in turn"
    whom = native.name if direct else ", ".join(sorted({op.stream.name for op in waited}))
    raise InvalidState(
        f"[Future] {what}: a function that {native.name} runs cannot wait for {whom}{by}"
    )


class BlockedWait:
    """A ``with`` block in which a function waits for operations; other functions can see the wait.

    Raises:
        InvalidState: see `check_may_wait`.
    """

    __slots__ = ("_ops", "_what")

    def __init__(self, ops: tuple[_native.Op, ...], what: str) -> None:
        self._ops = ops
        self._what = what

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with _blocked_lock:  # of two that begin to wait for each other, the second sees the first
            check_may_wait(self._ops, self._what)
            native = calling.get(thread)
            if native is not None:
                _blocked[thread] = (native, self._ops)

    def __exit__(self, *_: object) -> None:
        with _blocked_lock:
            _blocked.pop(threading.get_ident(), None)


class CallThread:
    """The Python thread that runs the functions given to `Stream.call`, in stream order."""

    def __init__(self, native: _native.Stream, name: str) -> None:
        self.native = native
        self.thread: threading.Thread = new_thread(self._serve, f"aggml call {name}")
        _callers.add(self)
        with signals_blocked():
            self.thread.start()

    def _serve(self) -> None:
        native = self.native
        # For a call of which not even the failure can be described: nothing may be left that fails.
        unknown = _native.Error.make(_FOREIGN, native.name, "call", "", "its failure is not known")
        try:
            while True:
                if native.next_call(1.0) is not None:
                    error: _native.Error | None = unknown
                    try:
                        error = self._call()
                        if error is not None:  # here `_call` is over: it is part of the traceback
                            assert error.exception is not None
                            make_bare(error.exception)
                    except BaseException:  # no memory, or an exception sent from outside
                        pass  # `error` says that the call failed
                    finally:  # whatever happened: all later work waits for this
                        native.finish_call(error)
                        del error
                elif _stopping or (native.closed and native.completed == native.submitted):
                    return
        finally:
            del self, native  # errors may keep this frame: see bare_trace.py

    def _call(self) -> _native.Error | None:
        thread = threading.get_ident()
        index, user = self.native.call_step()
        calling[thread] = self.native
        what: tuple[str, ...] = ("call",)
        try:
            if index is None:
                user[0]()  # a function that `Stream.call` queued
            else:  # a step of a plan: (plan, scratch, ...) came with the submission
                plan, arena = user[:2]
                call = plan.calls[index]
                what = ("graph_compute", call.name, call.op)
                call(0 if arena is None else arena.base, user)
        except BaseException as exception:
            return foreign_error(exception, self.native.name, *what)
        finally:
            del calling[thread]
        return None


def stop_callers() -> list[threading.Thread]:
    """End all call threads, each after the function that it runs; only at exit.

    Returns:
        The threads that are still alive, including those of streams that were dropped.
    """
    global _stopping
    _stopping = True
    callers = there(_callers)
    for caller in callers:
        caller.native.close()  # which wakes it
    return [caller.thread for caller in callers if caller.thread.is_alive()]


def join_callers(
    threads: Sequence[threading.Thread],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until these threads have ended, at most ``seconds`` for all of them together."""
    end = clock() + seconds
    for thread in threads:
        thread.join(max(0.0, end - clock()))


def foreign_error(
    exception: BaseException, device: str, operation: str, tensor: str = "", op: str = ""
) -> _native.Error:
    """A native error that stands for an exception of Python; ``op``: of the node that raised it."""
    about = f"({op}) " if op else ""
    error = _native.Error.make(_FOREIGN, device, operation, tensor, about + show(exception))
    error.exception = exception
    return error
