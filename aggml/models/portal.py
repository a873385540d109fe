"""Portal: one event loop in a thread of its own, by which blocking code uses asynchronous objects.

All blocking objects of a process share it. It is started by the first call and ended with the
program. Here: the thread, calls, and the making of blocking classes from asynchronous ones. Not
here: which classes there are (blocking.py).
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import inspect
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal

from aggml import InvalidArgument, InvalidState
from aggml.process.locks import in_child, new_lock
from aggml.process.threads import new_thread
from aggml.stream.parker import Parker, post_here
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BlockingObject",
    "BlockingStream",
    "as_blocking",
    "blocking_class",
    "blocking_function",
    "current_caller",
    "plain",
    "unwrap",
    "wrap",
]  # fmt: skip

T = TypeVar("T")

# -- the thread


class _Portal:
    """The thread and its event loop."""

    def __init__(self) -> None:
        begun: Future[tuple[BlockingPortal, Any]] = Future()
        self._thread = new_thread(lambda: anyio.run(_serve, begun), "aggml blocking")
        self._thread.start()
        self._portal, self._post = begun.result()
        self._closing: set[asyncio.Task[Any]] = set()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, function: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """The result of a function, awaited in the thread; Ctrl-C cancels it.

        Raises:
            InvalidState: it is called in the thread itself, or the program is ending.
        """
        if self.is_here:
            raise InvalidState(
                "[blocking] this is the thread of the event loop that answers blocking calls, so "
                "it would wait for itself: a callback must not call blocking objects"
            )
        # A model may be an argument of a method of another one.
        given = {name: unwrap(value) for name, value in (kwargs or {}).items()}
        work = _Work(function, [*map(unwrap, args)], given)
        future: Future[Any] | None = None
        try:
            future = self._portal.start_task_soon(work.run)
            return future.result()
        except BaseException as error:
            if future is None and isinstance(error, RuntimeError):
                raise InvalidState("[blocking] the program is ending: no further calls") from error
            if future is None or not future.done():
                # Ctrl-C, in the thread that waits: what runs ends first, so that nothing is left
                # behind. It may have come before `future` was set. A second one does not wait.
                with suppress(RuntimeError):
                    self._portal.start_task_soon(work.end).result()
            raise

    def finish(self, stream: Any) -> None:  # noqa: ANN401 an asynchronous iterator
        """Close a stream that nobody refers to any more; may be called by the collector."""

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(_close_stream(stream))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        with suppress(RuntimeError):  # the loop has ended
            self._post(begin)

    def stop(self) -> None:
        """End the loop; calls that are under way are cancelled."""
        with suppress(RuntimeError):
            self._portal.start_task_soon(self._portal.stop, True)
        self._thread.join(10)


async def _serve(begun: Future[tuple[BlockingPortal, Any]]) -> None:
    try:
        async with BlockingPortal() as portal:
            begun.set_result((portal, post_here()))
            await portal.sleep_until_stopped()
    except BaseException as error:
        if not begun.done():
            begun.set_exception(error)
        raise


async def _close_stream(stream: Any) -> None:  # noqa: ANN401
    with suppress(Exception):
        await stream.aclose()


class _Work:
    """One call in the thread, which can be cancelled from outside."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:  # noqa: ANN401
        self._function, self._args, self._kwargs = function, args, kwargs
        self._thread = threading.current_thread()
        self._scopes: list[anyio.CancelScope] = []
        self._ended: list[Parker] | None = []  # who waits for the end; None: it has ended
        self._cancelled = False

    async def run(self) -> Any:  # noqa: ANN401 whatever the function returns
        _thread.set(self._thread)
        try:
            with anyio.CancelScope() as scope:
                self._scopes.append(scope)
                if self._cancelled:
                    scope.cancel()
                found = self._function(*self._args, **self._kwargs)
                return await found if inspect.isawaitable(found) else found
            raise InvalidState("[blocking] the call was cancelled")
        finally:
            waiting, self._ended = self._ended, None
            for parker in waiting or ():
                parker.unpark()

    async def end(self) -> None:
        """Cancel the call, and wait for its end. If it has not begun yet, it ends when it does."""
        self._cancelled = True
        for scope in self._scopes:
            scope.cancel()
        while self._scopes and self._ended is not None:
            parker = Parker()
            self._ended.append(parker)
            await parker.park()


_thread: contextvars.ContextVar[threading.Thread | None] = contextvars.ContextVar(
    "blocked thread", default=None
)


def current_caller() -> object | None:
    """Who waits here: the task, or the thread that made a blocking call; None: neither."""
    return _thread.get() or current_task()


_starting = new_lock()
_portals: list[_Portal] = []  # one, after the first call


def _portal() -> _Portal:
    with _starting:
        if not _portals:
            portal = _Portal()
            atexit.register(portal.stop)
            _portals.append(portal)
        return _portals[0]


def _forget() -> None:
    """In the child of a fork, which lacks the thread."""
    for portal in _portals:
        atexit.unregister(portal.stop)
    _portals.clear()


in_child(_forget)

# -- objects


class BlockingObject:
    """An asynchronous object, used by blocking code, from any thread.

    Its methods block the thread that calls them, also one in which an event loop runs: the tasks of
    that loop then wait, too. Attributes are those of the asynchronous object.
    """

    def __init__(self, of: Any) -> None:  # noqa: ANN401 an asynchronous object
        self._of = of
        self._process = os.getpid()

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if self._process != os.getpid():
            raise InvalidState(
                f"[blocking] {type(self).__name__} belongs to the parent process of a fork: load "
                "the model in this one"
            )
        return as_blocking(_portal().call(function, args, kwargs))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 whatever the object has
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._of, name)

    def __dir__(self) -> list[str]:
        own = [name for name in super().__dir__() if not name.startswith("_")]
        hidden = {"aclose", "asend", "athrow"}
        return sorted({*own, *(x for x in dir(self._of) if not x.startswith("_"))} - hidden)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._of).removeprefix('<').removesuffix('>')}>"


class BlockingStream(BlockingObject, Iterator[T], Generic[T]):
    """The results of an asynchronous iterator, one by one: ``for token in model.generate(...)``.

    Leaving the loop early ends the work: at once if nobody refers to the iterator any more, else by
    `close`.
    """

    _ended = False

    def __next__(self) -> T:
        """The next result.

        Ctrl-C: aborts the running step, and ends the stream.
        """
        if self._ended:
            raise StopIteration
        found = self._call(_step, self._of)
        if found is None:
            self._ended = True
            raise StopIteration
        return cast("T", as_blocking(found[0]))

    def close(self) -> None:
        """End the work."""
        self._ended = True
        close = getattr(self._of, "aclose", None)
        if close is not None:
            self._call(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended and self._process == os.getpid() and hasattr(self._of, "aclose"):
            for portal in _portals:
                portal.finish(self._of)


async def _step(stream: Any) -> tuple[Any] | None:  # noqa: ANN401
    """The next result of an asynchronous iterator; None: it has ended."""
    try:
        return (await anext(stream),)
    except StopAsyncIteration:
        return None


# -- the making of classes

_CLASSES: Final[dict[type, type[BlockingObject]]] = {}


def as_blocking(found: Any) -> Any:  # noqa: ANN401 whatever a method returned
    """A blocking object for an asynchronous one; anything else as it is."""
    for kind in type(found).__mro__:
        made = _CLASSES.get(kind)
        if made is not None:
            return made(found)
    if hasattr(found, "__anext__"):
        return BlockingStream(found)
    return found


def wrap(of: Any) -> Any:  # noqa: ANN401 any of the asynchronous objects
    """The blocking object of an asynchronous one, such as a model that `load` gave.

    Both are the same model: requests of both share its steps. A blocking object is returned as it
    is.

    Raises:
        InvalidArgument: there is no blocking class for it.
    """
    found = as_blocking(of)
    if not isinstance(found, BlockingObject):
        raise InvalidArgument(
            f"[blocking.wrap] {of!r} ({type(of).__name__}) has no blocking methods: expected a "
            "model, or a Host"
        )
    return found


def unwrap(of: Any) -> Any:  # noqa: ANN401
    """The asynchronous object of a blocking one; an asynchronous object is returned as it is."""
    return of._of if isinstance(of, BlockingObject) else of


def blocking_class(of: type, module: str, *bases: type[BlockingObject]) -> type[Any]:
    """The blocking class of an asynchronous one, named ``Blocking`` and its name.

    Methods get the names, docstrings and signatures of the asynchronous ones; ``aclose`` becomes
    ``close``, ``async with`` becomes ``with``.

    Args:
        of: the asynchronous class.
        module: the name of the module that will have the class.
        bases: its base classes.
    """
    parts: dict[str, Any] = {"__doc__": plain(of.__doc__), "__module__": module}
    for name, value in inspect.getmembers_static(of):
        if name.startswith("_") or name in ("asend", "athrow") or isinstance(value, type):
            continue
        if inspect.isfunction(value):
            own = "close" if name == "aclose" else name
            parts[own] = _method(name, value)
        elif isinstance(value, property):
            parts[name] = property(_getter(name), doc=plain(value.__doc__))
    if hasattr(of, "__aenter__"):
        parts["__enter__"], parts["__exit__"] = _enter, _exit
    made = type(f"Blocking{of.__name__}", bases or (BlockingObject,), parts)
    _CLASSES[of] = made
    return made


def blocking_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The blocking function of an asynchronous one."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return as_blocking(_portal().call(function, args, kwargs))

    call.__doc__ = plain(function.__doc__)
    return call


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: BlockingObject, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self._call(getattr(self._of, name), *args, **kwargs)

    method.__doc__ = plain(function.__doc__)
    return method


def _getter(name: str) -> Callable[[BlockingObject], Any]:
    def get(self: BlockingObject) -> Any:  # noqa: ANN401
        return getattr(self._of, name)

    return get


def _enter(self: BlockingObject) -> Any:  # noqa: ANN401
    found = self._call(self._of.__aenter__)
    return self if isinstance(found, BlockingObject) and found._of is self._of else found


def _exit(self: BlockingObject, *error: object) -> None:
    self._call(self._of.__aexit__, *error)


def plain(doc: str | None) -> str | None:
    """A docstring of an asynchronous object, for the blocking one."""
    if doc is None:
        return None
    doc = re.sub(r"\basync (for|with)\b", r"\1", doc)
    doc = re.sub(r"\bawait (?=[a-z_.]+\()", "", doc).replace("aclose", "close")
    return doc.replace("Cancellation:", "Ctrl-C:").replace("Cancellation,", "Ctrl-C,")
