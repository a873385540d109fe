"""Locks of the package, which are released again in the child of a fork.

A thread of the parent may hold a lock at the fork. That thread does not exist in the child, so it
could never release the lock. Here: the locks, and other calls that modules want to be made in the
child. Not here: locks of the native module (native/runtime/fork.c).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_child", "new_lock", "new_rlock"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_calls: list[Callable[[], object]] = []


def new_lock() -> threading.Lock:
    """A `threading.Lock`; code that holds it must not fork."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> threading.RLock:
    """A `threading.RLock`; if the forking thread holds it, it still holds it in the child."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def in_child(call: Callable[[], object]) -> None:
    """Have ``call`` called in the child of each fork, after all locks were released."""
    _calls.append(call)


def _after_fork() -> None:
    for lock in list(_locks):
        owned = getattr(lock, "_is_owned", None)
        if owned is None or not owned():
            lock._at_fork_reinit()  # as the standard library does with its own locks
    for call in _calls:
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
