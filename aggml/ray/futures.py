"""Awaits Ray's references on asyncio and on trio.

Here: one wait, the cause of a failure as it was raised over there, cancellation. Not here: what is
called (stage.py, pipeline.py).
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
        ref: what ``remote`` gave.
        cancel: whether a wait that is cancelled cancels the call, too.

    Raises:
        Exception: what the call raised over there, from Ray's error, which has its traceback.
        RayError: it could not be called, as Ray says it.

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
    """The result of a future that is done; its failure as it was raised over there."""
    try:
        return future.result()
    except RayTaskError as error:
        raise _innermost(error) from error


def _innermost(error: BaseException) -> BaseException:
    """What was raised first: Ray wraps it once for each call that it went through."""
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    return error


def post_here() -> Callable[[Callable[[], None]], None]:
    """A function for any thread, to have something called soon on the loop that runs here.

    A loop that has ended meanwhile calls nothing: nobody waits there any more.
    """
    post = parker.post_here()

    def call(what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # asyncio's for a closed loop, and trio's
            post(what)

    return call
