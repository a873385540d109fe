"""Threads of the package: daemons that begin with an empty context.

Not here: the workers, which are native threads; pools for short work (`anyio.to_thread`).
"""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["new_thread"]


def new_thread(function: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread that runs a function; not started yet.

    Free-threaded Python from 3.14 on, and others with ``-X thread_inherit_context=1``, start a
    thread in a copy of the starter's context. Anyio sees there which event loop runs, so it would
    refuse to run one in the new thread. The thread would also keep whatever the context of its
    first user refers to.
    """
    empty = contextvars.Context()
    return threading.Thread(target=empty.run, args=(function,), name=name, daemon=True)
