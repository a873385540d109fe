"""ThreadPool: the worker threads that carry out streams; the pool that CPU backends share.

Here: its parameters and its lifetime. Not here: what a worker does (native/runtime/threadpool.c).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self

from aggml.errors import AllocFailed, InvalidArgument, InvalidHandle, InvalidState
from aggml.native import _native
from aggml.process.alive import there
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ThreadPool", "ThreadPoolParams", "ThreadPriority", "default_pool"]

MAX_THREADS: Final = 512


class ThreadPriority(IntEnum):
    """How the system schedules workers. Above NORMAL has no effect without the needed privilege."""

    LOW = -1
    NORMAL = 0
    MEDIUM = 1
    HIGH = 2
    REALTIME = 3


@dataclass(frozen=True)
class ThreadPoolParams:
    """The parameters of a pool (ggml_threadpool_params); checked when the pool is made.

    Attributes:
        n_threads: workers, 1 to 512; None: the usable hyperthreads (affinity, cgroup); on a chip
            of fast and slow cores, the usable cores.
        priority: see `ThreadPriority`.
        poll: 0 to 100, how long an idle worker looks for work before it sleeps (50: 500 us).
        strict_cpu: one worker per set flag of the mask, in turn, instead of all on the whole mask.
        paused: begin as `ThreadPool.pause` leaves it.
        cpumask: one flag per cpu, at most 512; none set: the affinity of the process.
    """

    n_threads: int | None = None
    priority: int = ThreadPriority.NORMAL
    poll: int = 50
    strict_cpu: bool = False
    paused: bool = False
    cpumask: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        wanted = _native.usable_cpus() if self.n_threads is None else self.n_threads
        for name, value, low, high in (
            ("n_threads", wanted, 1, MAX_THREADS),
            ("poll", self.poll, 0, 100),
            ("priority", self.priority, -1, 3),
        ):
            if not isinstance(value, int):
                raise InvalidHandle(f"[ThreadPool] {name}={value!r} is no integer")
            if not low <= value <= high:
                raise InvalidArgument(f"[ThreadPool] {name}={value} is not within {low}..{high}")
        try:
            mask = tuple([bool(flag) for flag in self.cpumask])
        except TypeError:
            raise InvalidHandle(f"[ThreadPool] cpumask={self.cpumask!r} is no list") from None
        if len(mask) > MAX_THREADS:
            raise InvalidArgument(
                f"[ThreadPool] cpumask has {len(mask)} flags, at most {MAX_THREADS} are possible"
            )
        while mask and not mask[-1]:  # so that equal masks compare equal
            mask = mask[:-1]
        object.__setattr__(self, "n_threads", wanted)
        object.__setattr__(self, "priority", ThreadPriority(self.priority))
        object.__setattr__(self, "cpumask", mask)

    def matches(self, other: ThreadPoolParams) -> bool:
        """Whether a pool with these parameters can replace one with those; ignores ``paused``."""
        if not isinstance(other, ThreadPoolParams):
            raise InvalidHandle(f"[ThreadPoolParams.matches] {other!r} is no ThreadPoolParams")
        return replace(self, paused=False) == replace(other, paused=False)


class ThreadPool:
    """Worker threads that carry out streams (ggml_threadpool).

    Args:
        n_threads: workers, 1 to 512; None: the usable hyperthreads (affinity, cgroup); on a chip
            of fast and slow cores, the usable cores.
        poll: 0 to 100, how long an idle worker looks for work before it sleeps (50: 500 us).
        priority: see `ThreadPriority`; above 0 it needs privileges.
        cpumask: one flag per cpu; empty: the affinity of the process.
        strict_cpu: one worker per set flag instead of all on the whole mask.
        paused: begin as `pause` leaves it.

    Raises:
        InvalidArgument: a parameter is outside its range.
        AllocFailed: the system refuses the threads.
    """

    def __init__(
        self,
        n_threads: int | None = None,
        *,
        poll: int = 50,
        priority: int = 0,
        cpumask: Sequence[bool] = (),
        strict_cpu: bool = False,
        paused: bool = False,
    ) -> None:
        mask: Any = cpumask  # whatever it is, the parameters tell
        params = ThreadPoolParams(n_threads, priority, poll, strict_cpu, paused, mask)
        wanted = params.n_threads
        assert wanted is not None
        try:
            self.native: _native.Pool = _native.Pool(
                wanted, poll * 10, params.priority, strict_cpu, list(params.cpumask)
            )
        except MemoryError as error:
            raise AllocFailed(
                f"[ThreadPool] the system refuses {wanted} threads: give a smaller n_threads"
            ) from error
        if paused:
            self.native.pause()
        self.generation: int = _native.generation()
        self._params = params
        self._closed = False
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def from_params(cls, params: ThreadPoolParams) -> Self:
        """A pool with these parameters (ggml_threadpool_new)."""
        if not isinstance(params, ThreadPoolParams):
            raise InvalidHandle(f"[ThreadPool.from_params] {params!r} is no ThreadPoolParams")
        return cls(
            params.n_threads,
            poll=params.poll,
            priority=params.priority,
            cpumask=params.cpumask,
            strict_cpu=params.strict_cpu,
            paused=params.paused,
        )

    @property
    def params(self) -> ThreadPoolParams:
        """The parameters at present: as given, changed by `grow`, `pause` and `resume`."""
        return replace(self._params, n_threads=self.n_threads, paused=self.paused)

    @property
    def n_threads(self) -> int:
        """How many workers there are."""
        return self.native.n_threads

    @property
    def width(self) -> int:
        """How many workers a plan uses if its stream names no number."""
        return self.native.width

    def grow(self, n_threads: int, *, widen: bool = True) -> None:
        """Have at least ``n_threads`` workers.

        Args:
            n_threads: 1 to 512.
            widen: streams that name no number use that many from now on; else as many as before.

        Raises:
            InvalidHandle, InvalidArgument: ``n_threads`` is no integer within 1..512.
            InvalidState: the pool is closed.
            AllocFailed: the system refuses to start them.
        """
        wanted = replace(self._params, n_threads=n_threads).n_threads
        if self._closed:
            raise InvalidState(f"[ThreadPool.grow] {self!r} is closed")
        assert wanted is not None
        n_threads = wanted
        if n_threads > self.native.width and not self.native.grow(n_threads, widen):
            raise AllocFailed(
                f"[ThreadPool.grow] the system refuses {n_threads} threads: give a smaller "
                "n_threads"
            )

    def pause(self) -> None:
        """Let idle workers sleep immediately instead of polling for work (ggml_threadpool_pause).

        No work is held up: queued work goes on, and the next work that reaches the pool ends the
        pause.
        """
        self.native.pause()

    def resume(self) -> None:
        """End a `pause`: idle workers poll again before they sleep (ggml_threadpool_resume)."""
        self.native.resume()

    @property
    def paused(self) -> bool:
        """Whether `pause` is in force."""
        return self.native.paused

    def attach(self, stream: object) -> None:
        """Note a stream that this pool carries out.

        Raises:
            InvalidState: the pool is closed.
        """
        if self._closed:
            raise InvalidState(f"[ThreadPool] {self!r} is closed")
        self._streams.add(stream)

    def close(self) -> None:
        """End the threads and wait for them; idle threads end immediately (ggml_threadpool_free).

        Raises:
            InvalidState: a stream of this pool is open, or has unfinished work (even if the stream
                object was dropped), which no thread would do.
        """
        used = [s for s in there(self._streams) if not s.closed or s.pending]
        if used:
            raise InvalidState(
                f"[ThreadPool.close] {self!r} is used by {used[0]!r}: close that first"
            )
        left = self.native.close()
        if left is not None:
            name, pending = left
            raise InvalidState(
                f"[ThreadPool.close] {self!r} still runs {pending} operations of {name!r}, a "
                "stream that was dropped: wait for its Futures"
            )
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", paused" if self.paused else ""
        return f"<ThreadPool of {self.n_threads}{state}>"


_default: ThreadPool | None = None
_default_lock = new_lock()


def default_pool() -> ThreadPool:
    """The pool that all CPU backends of this process share; made at first use and after a fork."""
    global _default
    with _default_lock:
        if _default is None or _default._closed or _default.generation != _native.generation():
            _default = ThreadPool()
        return _default
