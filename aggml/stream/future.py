"""Future: the result of queued operations, which tasks can await.

Here: done, result, exception, awaiting, callbacks, abort by the last cancelled waiter. Not here:
several of them (completions.py), how a loop is woken (reactor.py), what is enqueued (stream/,
backend/).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from aggml.errors import InvalidArgument, InvalidHandle, InvalidState
from aggml.native import _native
from aggml.process.foreign import report, short, show
from aggml.process.locks import new_rlock
from aggml.stream.call_thread import BlockedWait, calling, check_may_wait
from aggml.stream.failures import exception_of
from aggml.stream.observe import notify_done, observers
from aggml.stream.parker import post_here
from aggml.stream.reactor import current_reactor, current_task
from aggml.stream.waits import checkpoint, wait_op

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from aggml.errors import AggmlError

__all__ = [
    "Future",
    "Outcome",
    "Shielded",
    "Times",
    "attach",
    "fail",
    "is_queued",
    "operations_of",
    "set_value",
    "value_of",
]

LONGEST: Final = 1e9  # seconds; a longer wait is one for ever
T_co = TypeVar("T_co", covariant=True)  # a Future[ndarray] is a Future[object]

# Event loops in several threads may wait for one Future. The lock is reentrant because `__del__` of
# a waiter takes it, too, and may run at any point.
_waiters_lock = new_rlock()


class Times(NamedTuple):
    """When an operation was submitted, started and done: perf_counter seconds, or None before."""

    submitted: float
    started: float | None
    done: float | None


class Outcome:
    """Holds the return value of a function that a stream calls; it is the Future's value."""

    __slots__ = ("value",)

    value: Any


class Future(Coroutine[Any, Any, T_co], Generic[T_co]):
    """The result of a queued operation; awaited any number of times, in any task, loop or thread.

    asyncio also accepts it as a coroutine, so ``asyncio.create_task(future)`` makes a task from it,
    any number of times.

    A Future keeps the records of its operations, so times and errors stay readable; it does not
    keep the device. Dropping it changes nothing: the operation goes on and keeps its memory alive.

    Cancellation: cancelling an await abandons the wait. If the work belongs to its waiters alone
    (``run``, ``submit``), cancelling the last waiter aborts the work; see ``shield``. An await that
    cannot wait (TooManyFiles) is no cancellation.
    """

    __slots__ = (
        "__weakref__",
        "_abortable",
        "_finish",
        "_ops",
        "_problem",
        "_steps",
        "_value",
        "_waiters",
        "what",
    )

    def __init__(
        self,
        ops: tuple[_native.Op, ...] | None,
        value: T_co,
        what: str,
        abortable: bool = False,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._ops = ops  # None while its batch is open
        self._value = value
        self.what: str = what
        self._abortable = abortable
        self._finish = finish
        self._waiters = 0
        self._problem: AggmlError | None = None  # set if its batch was dropped
        # The running steps of tasks made from the Future; unset until the first task is made.
        self._steps: dict[object, Generator[Any, Any, T_co]]

    def join(self, parts: list[Future[Any]]) -> None:
        """Stand for all ``parts``, which are queued in this order on one stream."""
        self._ops = tuple([op for part in parts for op in part._ops or ()])

    # -- state

    def _last(self) -> _native.Op | None:
        """The operation that finishes last; None if the batch was dropped, so none was queued."""
        if self._ops is None:
            if self._problem is not None:
                return None
            raise InvalidState(
                f"[Future] {self.what}: its batch is still open, so it is not queued yet"
            )
        return self._ops[-1]

    def _op_to_await(self) -> _native.Op | None:
        """`_last`, for a caller that is about to wait for it.

        Raises:
            InvalidState: it would wait for itself, see `check_may_wait`.
        """
        last = self._last()
        if calling and self._ops is not None:
            check_may_wait(self._ops, self.what)
        return last

    def done(self) -> bool:
        """Whether the operation is over, however it ended. Never blocks."""
        if self._ops is None:
            return self._problem is not None
        done = self._ops[-1].done()
        if observers and done:
            notify_done(self._ops)
        return done

    def exception(self) -> Exception | None:
        """The exception that `result` would raise, or None.

        Raises:
            InvalidState: the operation is pending.
        """
        if self._problem is not None:
            return self._problem
        if not self.done():
            raise InvalidState(
                f"[Future.exception] {self.what} is pending: await it, or call wait()"
            )
        return self._failure()

    def _failure(self) -> Exception | None:
        """The exception of operations that are done, or None."""
        ops = self._ops or ()
        if observers:
            notify_done(ops)
        failed = _native.first_failed(ops)
        if failed is not None:
            error = failed.error()
            assert error is not None
            return exception_of(error, derived=failed.derived)
        if self._finish is not None:
            try:
                self._finish()
            except ExceptionGroup as problem:  # the failures that synchronize() found
                return problem
        return None

    def result(self) -> T_co:
        """The value.

        Raises:
            InvalidState: the operation is pending.
            AggmlError: what the operation failed with.
            ExceptionGroup: for a `Backend.synchronize`: the failures that nobody had seen.
        """
        return self._value_or_raise(self.exception())

    def _value_or_raise(self, problem: Exception | None) -> T_co:
        """The value, unless there is an exception to raise."""
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # no cycle through this frame
        value: Any = self._value
        found: T_co = value.value if type(value) is Outcome else value
        return found

    @property
    def times(self) -> Times:
        """When the first operation was submitted and started, and the last one was done."""
        last = self._last()
        if last is None or self._ops is None:
            raise InvalidState(f"[Future.times] {self.what} was never queued")
        first = self._ops[0].times()
        return Times(first[0], first[1], last.times()[2])

    # -- waiting

    def __await__(self) -> Generator[Any, Any, T_co]:
        ops = self._ops
        last = self._op_to_await() if ops is None or calling else ops[-1]
        if last is None:
            yield from checkpoint()
            return self.result()
        if not self._abortable:
            yield from wait_op(last)
            return self._value_or_raise(self._failure())
        self._enter()
        try:
            yield from wait_op(last)
        except Exception:  # no cancellation: no loop runs here, or it has no descriptor left
            self._leave(cancelled=False)
            raise
        except BaseException:
            self._leave(cancelled=True)
            raise
        self._leave(cancelled=False)
        return self._value_or_raise(self._failure())

    def send(self, value: object) -> Any:  # noqa: ANN401 - what event loops pass to each other
        """Run one step of a task that was made from this Future; called by event loops."""
        steps: dict[object, Generator[Any, Any, T_co]] | None = getattr(self, "_steps", None)
        if steps is None:
            with _waiters_lock:  # loops of two threads may make the first task at once
                steps = getattr(self, "_steps", None)
                if steps is None:
                    steps = self._steps = {}
        task = current_task()
        step = steps.get(task)
        if step is None:
            step = steps[task] = self.__await__()
        try:
            return step.send(value)
        except BaseException:
            del steps[task]
            raise

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as `send`
        """Run one step of such a task, beginning with an exception: the task was cancelled."""
        steps: dict[object, Generator[Any, Any, T_co]] = getattr(self, "_steps", {})
        task = current_task()
        step = steps.get(task)
        if step is None:  # cancelled before it began
            raise error[0]
        try:
            return step.throw(*error)
        except BaseException:
            del steps[task]
            raise

    def close(self) -> None:
        """Do nothing: a Future holds no resource, and a wait of a task ends with that task."""

    def get(self, timeout: float | None = None) -> T_co:
        """`wait`, then `result`: block this thread, without the GIL, until there is a value.

        Args:
            timeout: seconds, or None for ever.

        Raises:
            TimeoutError: it is not done by then; the work goes on.
            AggmlError: what the operation failed with.
            InvalidArgument, InvalidHandle, InvalidState, TooManyFiles: see `wait`.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"[Future.get] {self.what} is not done after {timeout} s")
        return self.result()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread, without the GIL, until done; for scripts and notebooks. Ctrl-C works.

        It does not report failures; `get` does. A failure that nobody asks for is logged in the
        end, see `Backend.close`.

        Args:
            timeout: seconds, or None for ever. Running out is no cancellation.

        Returns:
            Whether it is done.

        Raises:
            InvalidArgument: ``timeout`` is NaN.
            InvalidHandle: ``timeout`` is no number.
            InvalidState: called by a Python function (`Stream.call`, ``map_custom1``) for work of
                the stream that runs the function, or for work that waits for that stream, directly
                or through others: the function would wait for itself.
            TooManyFiles: the process has no file descriptor left; the work goes on.
        """
        seconds = -1.0 if timeout is None else _seconds(timeout)
        last = self._op_to_await()
        if last is None:
            return True
        self._enter()
        try:
            if calling:
                with BlockedWait(self._ops or (), self.what):
                    return last.wait(seconds)
            return last.wait(seconds)
        finally:
            self._leave(cancelled=False)

    def add_done_callback(self, callback: Callable[[Future[T_co]], object]) -> None:
        """Call ``callback(self)`` once done, in the running event loop; soon if it is done now.

        The callback counts as a waiter. An exception that it raises is logged.

        Raises:
            InvalidHandle: ``callback`` cannot be called.
            InvalidState: no loop runs in this thread, or the batch is still open.
        """
        if not callable(callback):
            raise InvalidHandle(f"[Future] callback {short(callback)} is no function")
        last = self._last()
        reactor, post = current_reactor(), post_here()
        begun = False

        def call() -> None:
            nonlocal begun
            if begun:  # Ctrl-C hit the reactor when this had been called
                return
            begun = True
            self._leave(cancelled=False)
            try:
                callback(self)
            except (KeyboardInterrupt, SystemExit):  # which end the loop
                raise
            except BaseException as error:
                report(f"[Future] callback {show(callback)} of {self!r} failed", error)

        self._enter()
        try:
            if last is None or last.done() or reactor.arm(last, call) is None:
                post(call)
        except BaseException:
            begun = True
            self._leave(cancelled=False)
            raise

    def abort(self) -> None:
        """Stop the operation at its next safe point; later work goes on.

        The Future gets done in stream order and raises Aborted.
        """
        for op in self._ops or ():
            op.abort()

    def shield(self) -> Shielded[T_co]:
        """An awaitable of the same result whose cancellation never aborts the work."""
        return Shielded(self)

    async def wait_until_done(self) -> None:
        """Wait until done, however it ends. Cancellation: abandons only this wait."""
        last = self._op_to_await()
        if last is not None:
            await _Op(last)

    def _enter(self) -> None:
        with _waiters_lock:
            self._waiters += 1

    def _leave(self, *, cancelled: bool) -> None:
        with _waiters_lock:
            self._waiters -= 1
            last = self._waiters == 0
        if cancelled and last and self._abortable and not self.done():
            self.abort()

    # -- what only the value can do

    if not TYPE_CHECKING:  # a type checker reports an attribute that a Future does not have

        def __getattr__(self, name: str) -> NoReturn:
            """Called for what a Future does not have, such as ``shape``: its value may have it."""
            if name.startswith("_"):  # asked for by event loops and libraries, not by a user
                raise AttributeError(name)
            text = f"[Future] {self.what} has no attribute {name!r}; {_CURE}"
            raise AttributeError(text, name=name, obj=self)

    def __bool__(self) -> bool:
        """Always true, as an asyncio Future; it has no length that could say otherwise."""
        return True

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refused: numpy would make an array of one Future.

        Raises:
            InvalidHandle: always; the text says how to get the value.
        """
        raise InvalidHandle(f"[Future] {self.what} is no array; {_CURE}")

    def __repr__(self) -> str:
        if not self.done():
            state = "pending" if self._ops is not None else "in an open batch"
        elif self._problem is not None or any(op.error() is not None for op in self._ops or ()):
            state = "failed"
        else:
            state = "done"
        return f"<Future {self.what}, {state}>"


_CURE = "it is the Future of a value: await it, or block for it with get()"


def _seconds(timeout: object) -> float:
    """A time to wait as the native module takes it: not negative, or -1.0 for ever."""
    try:
        seconds = None if isinstance(timeout, (str, bytes)) else float(timeout)  # type: ignore[arg-type]
    except OverflowError:  # an integer of hundreds of digits
        return -1.0 if timeout > 0 else 0.0  # type: ignore[operator]
    except (TypeError, ValueError):
        seconds = None
    if seconds is None:
        raise InvalidHandle(f"[Future] timeout={short(timeout)} is no number of seconds")
    if seconds != seconds:  # NaN
        raise InvalidArgument("[Future] timeout=nan is no number of seconds")
    return -1.0 if seconds > LONGEST else max(0.0, seconds)


def _refuse(name: str) -> Callable[..., NoReturn]:
    """A special method that says that the value is needed, not its Future."""

    def refuse(self: Future[Any], *_: object) -> NoReturn:
        raise InvalidHandle(f"[Future] {name} is not defined for {self.what}; {_CURE}")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


# Whoever forgets an await meets one of these. Not __eq__: a Future is compared by identity. Not
# __iter__: Python iterates by __getitem__.
_REFUSED = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rdivmod", "rpow", "rmatmul"),
    *("and", "or", "xor", "lshift", "rshift", "rand", "ror", "rxor", "rlshift", "rrshift"),
    *("neg", "pos", "abs", "invert", "round", "lt", "le", "gt", "ge"),
    *("int", "float", "complex", "index", "len", "contains", "getitem", "setitem", "delitem"),
)
for _name in map("__{}__".format, _REFUSED):
    setattr(Future, _name, _refuse(_name))


class _Op:
    """Awaits one operation without looking at how it ended."""

    __slots__ = ("_op",)

    def __init__(self, op: _native.Op) -> None:
        self._op = op

    def __await__(self) -> Generator[Any, Any, None]:
        return wait_op(self._op)


# -- for those who make Futures; not methods, because who awaits a Future must not call them


def operations_of(future: Future[Any]) -> tuple[_native.Op, ...]:
    """The operations of which the Future tells; none if its batch was dropped.

    Raises:
        InvalidState: its batch is still open.
    """
    if future._ops is None:
        future._last()  # raises if the batch is open
        return ()
    return future._ops


def is_queued(future: Future[Any]) -> bool:
    """Whether its operations were enqueued: no batch is open that has them, or dropped them."""
    return future._ops is not None


def attach(future: Future[Any], ops: Iterable[_native.Op]) -> None:
    """Let the Future tell of these operations, which were queued in this order."""
    future._ops = tuple(ops)


def fail(future: Future[Any], problem: AggmlError) -> None:
    """Let the Future raise, because none of its operations will be queued."""
    future._problem = problem


def value_of(future: Future[Any]) -> Any:  # noqa: ANN401 - whatever it is
    """The value that the Future will have once it is done."""
    return future._value


def set_value(future: Future[Any], value: object) -> None:
    """Give the Future a value. Nobody has seen the Future yet."""
    future._value = value


class Shielded(Generic[T_co]):
    """Awaits a Future without the power to abort its work."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T_co]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, T_co]:
        last = self._future._op_to_await()
        self._future._enter()  # it counts as a waiter, so no other waiter is the last one
        try:
            yield from checkpoint() if last is None else wait_op(last)
        finally:
            self._future._leave(cancelled=False)
        return self._future.result()
