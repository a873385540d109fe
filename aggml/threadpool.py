"""ThreadPool: the worker threads that carry out streams; the pool that CPU backends share.

Here: its parameters and its life. Not here: what a worker does (native/runtime/threadpool.c).
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from aggml.errors import AllocFailed, InvalidArgument
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ThreadPool", "default_pool", "stop_pools"]


class ThreadPool:
    """Worker threads that carry out streams (ggml_threadpool).

    Args:
        n_threads: workers, 1 to 512; None: the usable cores (affinity, cgroup).
        poll: 0 to 100, how long an idle worker looks for work before it sleeps (50: 500 us).
        priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime; needs rights above 0.
        cpumask: one flag per cpu; empty: the affinity of the process.
        strict_cpu: one worker per set flag instead of all on the whole mask.

    Raises:
        InvalidArgument: ``n_threads`` or ``poll`` is outside its range.
    """

    def __init__(
        self,
        n_threads: int | None = None,
        *,
        poll: int = 50,
        priority: int = 0,
        cpumask: Sequence[bool] = (),
        strict_cpu: bool = False,
    ) -> None:
        wanted = _native.usable_cpus() if n_threads is None else n_threads
        if not 1 <= wanted <= 512:
            raise InvalidArgument(f"[ThreadPool] n_threads={n_threads} is not within 1..512")
        if not 0 <= poll <= 100:
            raise InvalidArgument(f"[ThreadPool] poll={poll} is not within 0..100")
        self.native = _native.Pool(wanted, poll * 10, priority, strict_cpu, list(cpumask))
        self.generation = _native.generation()
        _pools.add(self)

    @property
    def n_threads(self) -> int:
        """How many workers there are."""
        return self.native.n_threads

    def grow(self, n_threads: int) -> None:
        """Have at least ``n_threads`` workers.

        Raises:
            AllocFailed: the system refuses to start them.
        """
        if n_threads > self.native.n_threads and not self.native.grow(n_threads):
            raise AllocFailed(f"[ThreadPool.grow] the system refuses {n_threads} threads")

    def pause(self) -> None:
        """Let the workers sleep until `resume`; queued work waits."""
        self.native.pause()

    def resume(self) -> None:
        """Let the workers go on after `pause`."""
        self.native.resume()

    def __repr__(self) -> str:
        return f"<ThreadPool of {self.n_threads}>"


_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_default: ThreadPool | None = None
_default_lock = threading.Lock()


def default_pool() -> ThreadPool:
    """The pool that all CPU backends of this process share; made at first use and after a fork."""
    global _default
    with _default_lock:
        if _default is None or _default.generation != _native.generation():
            _default = ThreadPool()
        return _default


def stop_pools() -> None:
    """Join the workers of all pools of this process; what is queued stays undone; at exit only."""
    for pool in list(_pools):
        if pool.generation == _native.generation():
            pool.native.stop()
