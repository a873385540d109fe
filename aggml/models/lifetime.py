"""Lifetime: what a model owns is freed when the model is closed, but not under the hands of a user.

Another task, of this thread or of another one, may be building a step when the model is closed. If
weights and caches were freed at that moment, the step would place them anew, filled with zeros, and
compute a wrong result. Here: counting users, freeing after the last one. Not here: what is freed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from aggml import AggmlError, InvalidState
from aggml.stream.parker import Parker
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lifetime", "closed_error"]


def closed_error(place: str) -> InvalidState:
    """The error of every call on a closed model."""
    return InvalidState(f"[{place}] the model is closed: load it again")


class Lifetime:
    """Open until `close`; ``with lifetime.use("logits"):`` while memory of the model is in use.

    It may be used from any thread, and takes no lock: each decision is one atomic operation.

    Args:
        free: a method of the owner, which is kept by a weak reference, so that a dropped model is
            freed without Python's collector. It is called once: by `close`, or by the last user if
            there are any then.
    """

    def __init__(self, free: Callable[[], object]) -> None:
        self._frees = [weakref.WeakMethod(free)]  # who pops it calls it
        self._users: set[_Use] = set()
        self._waiting: list[Parker] = []
        self._freed = False
        self.closed: bool = False

    def use(self, place: str) -> _Use:
        """``with``: memory that the model owns stays for the time of the block.

        The block raises InvalidState if the model is closed; also if the model is closed meanwhile
        and something in the block fails for that reason.
        """
        return _Use(self, place)

    def close(self) -> None:
        """Let no further users in; free at once, or when the last user has left."""
        self.closed = True
        self._free_unused()

    async def wait_until_freed(self) -> None:
        """After `close`: wait for the last user.

        Cancellation: abandons the wait; the last user frees.
        """
        await CHECKPOINT
        while not self._freed:
            parker = Parker()
            self._waiting.append(parker)
            if not self._freed:
                await parker.park()

    def _free_unused(self) -> None:
        if not self.closed or self._users:
            return
        try:
            free = self._frees.pop()()
        except IndexError:
            return  # another thread frees
        try:
            if free is not None:
                free()
        finally:
            self._freed = True
            for parker in self._waiting:
                parker.unpark()


class _Use:
    """One user of a `Lifetime`."""

    __slots__ = ("_life", "_place")

    def __init__(self, life: Lifetime, place: str) -> None:
        self._life = life
        self._place = place

    def __enter__(self) -> None:
        # First in, then look: `close` looks for users after it has closed.
        life = self._life
        life._users.add(self)
        if life.closed:
            self.__exit__(None, None, None)
            raise closed_error(self._place)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        # First out, then look, for the same reason.
        life = self._life
        life._users.discard(self)
        if life.closed:
            life._free_unused()
            if isinstance(error, AggmlError):
                raise closed_error(self._place) from error
