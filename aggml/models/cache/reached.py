"""Reached: how far the state of each sequence has come, so that no step goes on from a wrong one.

Keys and values of a step that was aborted are written again by the next one. A state is not: some
layers have taken the token in, others have not. So the sequence has to begin anew. Not here: the
states themselves (caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml import InvalidState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml import Future

__all__ = ["Reached"]


class Reached:
    """How many positions each sequence's state has taken in.

    Args:
        sequences: how many.
    """

    def __init__(self, sequences: int) -> None:
        self._at: list[int | None] = [0] * sequences  # None: lost
        self._under_way: list[list[Future[Any]]] = [[] for _ in range(sequences)]

    async def check(self, slot: int, first: int, *, chained: bool = False) -> None:
        """Check that a step may take in position ``first`` of a sequence.

        Position 0 begins anew, whatever was before.

        Args:
            slot: the sequence.
            first: the first position that the step takes in.
            chained: it follows a step that is still under way, and takes its token from there.

        Raises:
            InvalidState: the state is elsewhere, or was lost by a step that failed.

        Cancellation: nothing happens.
        """
        if first == 0:
            return
        if chained:
            self._settle(slot)
        else:
            await self.settled(slot)
        at = self._at[slot]
        if at is None:
            raise InvalidState(
                f"[Decoder] a step of sequence {slot} was aborted or failed, so its state is lost: "
                "take the sequence in again from position 0"
            )
        if at != first:
            raise InvalidState(
                f"[Decoder] the state of sequence {slot} has taken in {at} positions and cannot be "
                f"moved to position {first}: go on there, or begin again at 0"
            )

    def note(self, slot: int, first: int, tokens: int, step: Future[Any]) -> None:
        """A step is queued that takes in so many tokens."""
        if first == 0:
            self._under_way[slot].clear()
        self._at[slot] = first + tokens
        self._settle(slot)
        self._under_way[slot].append(step)

    def lose(self, slots: Iterable[int]) -> None:
        """The states of these sequences are being overwritten."""
        for slot in slots:
            self._at[slot] = None
            self._under_way[slot].clear()

    def copied(self, source: int, targets: Iterable[int]) -> None:
        """The state of one sequence is now that of others, too."""
        for slot in targets:
            self._at[slot] = self._at[source]

    async def settled(self, slot: int) -> None:
        """Wait until all steps of a sequence have ended, and note how they ended.

        Cancellation: nothing happens.
        """
        for step in self._under_way[slot]:
            await step.settled()
        self._settle(slot)

    def _settle(self, slot: int) -> None:
        """Take note of steps that have ended."""
        going = []
        for step in self._under_way[slot]:
            if not step.done():
                going.append(step)
            elif step.exception() is not None:
                self._at[slot] = None
        self._under_way[slot] = going
