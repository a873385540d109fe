"""Snapshots: keys, values and states of one sequence as bytes in host memory.

A snapshot is filled by reads that are queued on the device behind the steps queued so far, so no
step waits for it. Here: the bytes, and whether they can be trusted. Not here: queueing the reads
and writes (`PagedDecoder.save`, `PagedDecoder.load`), which snapshots are stored (prefixes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import aggml
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aggml import Future
    from aggml.models.kv.caches import Caches
    from aggml.stream.future import Times

__all__ = ["Bytes", "CacheForm", "Snapshot", "blank"]

Bytes = npt.NDArray[np.uint8]

ALIGN = 256  # each cache's part of a snapshot begins at a multiple of it, as `aggml.empty` does


class CacheForm(NamedTuple):
    """What the caches of a model look like: snapshots of one form fit caches of that form.

    Attributes:
        rows: element type and bytes of a row of each cache of keys or values.
        states: bytes of one sequence's state in each cache of states.
    """

    rows: tuple[tuple[str, int], ...]
    states: tuple[int, ...]

    @classmethod
    def of(cls, caches: Caches) -> CacheForm:
        """The form of these caches."""
        rows = tuple((cache.dtype.name.lower(), cache.nb[1]) for cache, _ in caches.rows)
        return cls(rows, tuple(state.nb[1] for state in caches.states))

    @property
    def position(self) -> int:
        """Bytes of keys and values of one position."""
        return sum(row for _, row in self.rows)

    @property
    def state(self) -> int:
        """Bytes of all states of one sequence."""
        return sum(self.states)


class Snapshot:
    """Keys and values of the positions ``first`` to ``first + n`` of a sequence, and its states.

    Its bytes count only when it is `done` and has not `failed`: a read may have failed, or a step
    that should have written these positions.

    Args:
        form: of the caches that it was taken from.
        first: the first position.
        n: how many positions.
        rows: for each cache of keys or values its ``n`` rows, contiguous.
        states: for each cache of states the state after position ``first + n - 1``; None: the
            snapshot has none.
        waits: all that must succeed before the bytes can be used.
        reads: those of them that read the bytes.

    Attributes:
        seconds: how long the reads took; None: they are not done, or have failed.
    """

    __slots__ = (
        "__weakref__", "_failed", "_reads", "_waits", "first", "form", "n", "rows", "seconds",
        "states",
    )  # fmt: skip

    def __init__(
        self,
        form: CacheForm,
        first: int,
        n: int,
        rows: Sequence[Bytes],
        states: Sequence[Bytes] | None = None,
        waits: Iterable[Future[Any]] = (),
        reads: Iterable[Future[Any]] = (),
    ) -> None:
        self.form: CacheForm = form
        self.first: int = first
        self.n: int = n
        self.rows: Sequence[Bytes] = rows
        self.states: Sequence[Bytes] | None = states
        self._failed: Exception | None = None
        self._waits = tuple(waits)
        self._reads = tuple(reads)
        self.seconds: float | None = None

    @property
    def end(self) -> int:
        """The position after its last one; its states have processed so many positions."""
        return self.first + self.n

    @property
    def nbytes(self) -> int:
        """Bytes of its keys, values and states."""
        return sum(piece.nbytes for piece in self.pieces())

    def pieces(self) -> Iterator[Bytes]:
        """Its bytes: the rows of each cache, then the states."""
        yield from self.rows
        yield from self.states or ()

    def part(self, first: int, n: int) -> Snapshot:
        """Some of its positions, without a copy and without states.

        Raises:
            InvalidArgument: it does not have these positions.
        """
        if not (self.first <= first and n >= 0 and first + n <= self.end):
            raise aggml.InvalidArgument(
                f"[Snapshot.part] positions {first} to {first + n} are not among its positions, "
                f"{self.first} to {self.end}"
            )
        skipped = first - self.first
        rows = [
            piece[skipped * row : (skipped + n) * row]
            for piece, (_, row) in zip(self.rows, self.form.rows, strict=True)
        ]
        found = Snapshot(self.form, first, n, rows, None, self._waits)
        found._failed = self._failed
        return found

    # -- how it ended

    @property
    def done(self) -> bool:
        """Whether all of its bytes have been read, or reading them has failed."""
        waits = self._waits
        if not waits:
            return True
        if not all(future.done() for future in waits):
            return False
        errors = (future.exception() for future in waits)
        self._failed = next((error for error in errors if error is not None), None)
        reads, self._reads = self._reads, ()
        if reads and self._failed is None:
            self.seconds = sum((x.done or 0.0) - (x.started or 0.0) for x in map(_times, reads))
        self._waits = ()  # last: a reader in another thread looks at it first
        return True

    @property
    def failed(self) -> Exception | None:
        """Why its bytes must not be used; None: they are good, or not read yet."""
        return self._failed if self.done else None

    @property
    def good(self) -> bool:
        """Whether its bytes can be used now."""
        return self.done and self._failed is None

    @property
    def waits(self) -> tuple[Future[Any], ...]:
        """What has to succeed before the bytes can be used; empty when it is `done`."""
        return self._waits

    async def wait_until_done(self) -> None:
        """Wait until it is `done`, however that ends.

        Cancellation: abandons only this wait.
        """
        for future in self._waits:
            await future.wait_until_done()
        await CHECKPOINT

    def __repr__(self) -> str:
        if not self.done:
            state = "being read"
        else:
            state = "good" if self._failed is None else f"failed: {self._failed}"
        states = "" if self.states is None else " and states"
        return f"<Snapshot of positions {self.first} to {self.end}{states}, {state}>"


def _times(future: Future[Any]) -> Times:
    return future.times


def blank(form: CacheForm, n: int, *, states: bool) -> tuple[list[Bytes], list[Bytes] | None]:
    """Memory for ``n`` positions, and for states if asked for: pieces of one array, undefined."""
    sizes = [n * row for _, row in form.rows]
    sizes += form.states if states else ()
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + -(-size // ALIGN) * ALIGN)
    memory: Bytes = aggml.empty(begins[-1], np.uint8)
    pieces = [memory[at : at + size] for at, size in zip(begins, sizes, strict=False)]
    n_rows = len(form.rows)
    return pieces[:n_rows], pieces[n_rows:] if states else None
