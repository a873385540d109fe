"""Written: up to which position the keys and values of each sequence can be trusted.

A step that is aborted or fails leaves rows as they were, and nothing in the caches tells so. The
sequence processes these tokens again, or ends. Who takes rows out of the caches must know. Not
here: recurrent states (reached.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aggml import Future

    Steps = Iterable[tuple[int, int, int]]

__all__ = ["Written"]

ALL: Final = 1 << 62


class Written:
    """Remembers the steps that are under way, and where those that failed began.

    A slot in which no step failed is good at all positions. After a step from position p on failed,
    it is good up to p, and further as later steps that begin there or before write it again. Tasks
    of any thread may note steps.
    """

    def __init__(self) -> None:
        self._going: deque[tuple[Future[Any], Callable[[], Steps]]] = deque()
        self._good: dict[int, int] = {}  # slot: positions, if a step of it has failed
        self._lock = new_lock()

    def note(self, step: Future[Any], taken: Callable[[], Steps]) -> None:
        """Note a step that has been queued.

        Args:
            step: its future.
            taken: gives for each run of rows its slot, the first position and how many. It is
                called only if a step fails or somebody asks, because it takes time.
        """
        with self._lock:
            self._settle()
            self._going.append((step, taken))

    def record_copy(self, source: int, targets: Iterable[int]) -> None:
        """Note that all rows of a slot have been copied to other ones."""
        with self._lock:
            self._settle()
            for target in targets:
                self._good[target] = self._good.get(source, ALL)

    def ahead(self, slot: int, end: int) -> tuple[list[Future[Any]], int]:
        """What has to succeed so that the first positions of a slot are good.

        Args:
            slot: the sequence.
            end: so many positions are asked for.

        Returns:
            The steps under way that write any of them; and how many positions are good then.
        """
        with self._lock:
            self._settle()
            good, going = self._good.get(slot, ALL), [*self._going]
        steps = []
        for step, taken in going:
            for number, first, n in taken():
                if number == slot:
                    if first < end:
                        steps.append(step)
                    good = _after(good, first, n)
        return steps, good

    def _settle(self) -> None:
        """Take note of steps that have ended, in the order in which they were queued."""
        going = self._going
        while going and going[0][0].done():
            step, taken = going.popleft()
            failed = step.exception() is not None
            if not (failed or self._good):
                continue
            for slot, first, n in taken():
                if failed:
                    self._good[slot] = min(self._good.get(slot, ALL), first)
                elif slot in self._good:
                    self._good[slot] = _after(self._good[slot], first, n)


def _after(good: int, first: int, n: int) -> int:
    """How many positions are good after a step wrote ``n`` from ``first`` on."""
    return max(good, first + n) if first <= good else good
