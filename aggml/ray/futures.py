"""Awaits Ray's references on asyncio and on trio.

Here: waiting for one result, the original exception of a remote call, cancellation. Not here: the
remote calls (stages.py, pipeline.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import ray
from ray.exceptions import RayTaskError

from aggml.stream import parker

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["outcome", "post_here", "result"]

T = TypeVar("T")


async def result(ref: ray.ObjectRef[T], *, cancel: bool = False) -> T:
    """What a remote call returns: ``await aggml.ray.result(actor.method.remote())``.

    Args:
        ref: the reference that ``remote`` returned.
        cancel: whether cancelling the wait cancels the call, too.

    Raises:
        Exception: the exception that the call raised, from Ray's error, which has the traceback.
        RayError: Ray could not make the call.

    Cancellation: abandons the wait; with ``cancel`` the call as well.
    """
    done = anyio.Event()
    future = ref.future()
    post = post_here()
    future.add_done_callback(lambda _: post(done.set))
    try:
        await done.wait()
    except BaseException:
        if cancel:
            ray.cancel(ref)
        raise
    found: T = outcome(future)
    return found


def outcome(future: Any) -> Any:  # noqa: ANN401 a concurrent future of whatever was called
    """The result of a future that is done, or the original exception of the remote call."""
    try:
        return future.result()
    except RayTaskError as error:
        raise _innermost(error) from error


def _innermost(error: BaseException) -> BaseException:
    """The exception that was raised first; each remote call on the way has wrapped it once."""
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    return error


def post_here() -> Callable[[Callable[[], None]], None]:
    """A function with which any thread can have something called on the current event loop.

    If the loop has ended meanwhile, nothing is called: nobody waits there any more.
    """
    post = parker.post_here()

    def call(what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, on asyncio and on trio
            post(what)

    return call
