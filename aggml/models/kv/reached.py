"""Reached: the position of each sequence's state, so that no step goes on from a wrong state.

If a step is aborted, the next one writes its keys and values again. A recurrent state is lost
instead: some layers have processed the token, others have not. So the sequence has to begin again
at position 0. Not here: the states themselves (caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml import InvalidState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml import Future
    from aggml.models.kv.state_rows import StateRows

__all__ = ["Reached"]


class Reached:
    """How many positions each sequence's state has processed.

    Args:
        sequences: how many sequences there are.
        rows: where the states lie.
    """

    def __init__(self, sequences: int, rows: StateRows) -> None:
        self._rows = rows
        # Of steps that wrote several states of a sequence the first position and how many.
        self._choices: list[tuple[int, int] | None] = [None] * sequences
        self._at: list[int | None] = [0] * sequences  # None: lost
        self._under_way: list[list[Future[Any]]] = [[] for _ in range(sequences)]
        self._writes: list[list[Future[Any]]] = [[] for _ in range(sequences)]  # of `record_load`

    async def check(self, slot: int, first: int, *, chained: bool = False) -> None:
        """Check that the next step of a sequence may begin at position ``first``.

        Position 0 is always allowed: the sequence begins again.

        Args:
            slot: the sequence.
            first: the first position of the step.
            chained: the step takes its token from the previous step, which is still running.

        Raises:
            InvalidState: the state is at another position, or was lost by a step that failed.

        Cancellation: nothing happens.
        """
        if first == 0:
            return
        if chained:
            self._settle(slot)
        else:
            await self.wait_for_steps(slot)
        at = self._at[slot]
        if at is None:
            raise InvalidState(
                f"[Decoder] a step of sequence {slot} was aborted or failed, so its state is lost: "
                "process the sequence again from position 0"
            )
        if at != first:
            raise InvalidState(
                f"[Decoder] the state of sequence {slot} has taken in {at} positions and cannot be "
                f"moved to position {first}: go on there, or begin again at 0"
            )

    def expect(self, slot: int, first: int, *, chained: bool = False) -> None:
        """`check` without waiting: steps of the sequence have ended, but for those of a chain.

        Writes of a state may be under way: the step is queued behind them. Whoever queues it looks
        whether they have succeeded. So it is with ``chained`` and the steps before.

        Raises:
            InvalidState: as `check`.
        """
        if first == 0:
            return
        self._settle(slot)
        at = self._at[slot]
        writes = self._writes[slot]
        steps = [x for x in self._under_way[slot] if not any(x is y for y in writes)]
        if at != first or (steps and not chained):
            raise InvalidState(
                f"[Decoder] the state of sequence {slot} is at position {at}, and a step was to "
                f"begin at {first}"
            )

    def writes_before(self, slot: int, at: int) -> list[Future[Any]]:
        """What has to succeed so that a sequence's state has processed ``at`` positions.

        Never waits: steps that are under way are among the result.

        Raises:
            InvalidState: the state is, or will be, at another position, or was lost.
        """
        self._settle(slot)
        if self._at[slot] != at:
            where = "is lost" if self._at[slot] is None else f"is at position {self._at[slot]}"
            raise InvalidState(
                f"[Decoder] the state of sequence {slot} {where} and not at position {at}"
            )
        return list(self._under_way[slot])

    def may_stand(self, slot: int, at: int) -> bool:
        """Whether `writes_before` would not raise."""
        self._settle(slot)
        return self._at[slot] == at

    def record_load(self, slot: int, at: int, writes: Iterable[Future[Any]]) -> None:
        """Note that a state which has processed ``at`` positions is being written by ``writes``."""
        self._stands(slot, at)
        self._under_way[slot] = [*writes]
        self._writes[slot] = list(self._under_way[slot])
        self._settle(slot)

    def note(
        self,
        slot: int,
        first: int,
        tokens: int,
        step: Future[Any],
        *,
        all_kept: bool = False,
        place: int = 0,
    ) -> None:
        """Note that a step with ``tokens`` tokens from position ``first`` on has been queued.

        If the states after all of these are kept, that after the first one counts until `choose`.
        A step of one token whose state has a ``place`` goes on from the state at the place before:
        until `choose` its own state counts, and those at the places before are kept, too.
        """
        if first == 0:
            self._under_way[slot].clear()
            self._writes[slot].clear()
        self._stands(slot, first + (1 if all_kept else tokens), place)
        self._settle(slot)
        self._under_way[slot].append(step)
        if all_kept or place:
            self._choices[slot] = first - place, place + tokens

    def _stands(self, slot: int, at: int | None, place: int = 0) -> None:
        self._at[slot] = at
        self._choices[slot] = None
        self._rows.choose(slot, place)

    def choose(self, slot: int, at: int) -> None:
        """Go on with the state at position ``at``, of those that the last steps kept.

        Raises:
            InvalidState: there is none.
        """
        choices = self._choices[slot]
        if self._at[slot] == at and choices is None:
            return
        if choices is None or not choices[0] < at <= sum(choices):
            raise InvalidState(
                f"[Decoder] there is no state of sequence {slot} at position {at} to go back to"
            )
        self._choices[slot] = None
        if self._at[slot] is not None:
            self._at[slot] = at
            self._rows.choose(slot, at - choices[0] - 1)

    def lose(self, slots: Iterable[int]) -> None:
        """Note that the states of these sequences are being overwritten."""
        for slot in slots:
            self._stands(slot, None)
            self._under_way[slot].clear()

    def record_copy(self, source: int, targets: Iterable[int]) -> None:
        """Note that the state of ``source`` has been copied to ``targets``."""
        for slot in targets:
            self._stands(slot, self._at[source])

    async def wait_for_steps(self, slot: int) -> None:
        """Wait until all steps of a sequence have ended, and note how they ended.

        Cancellation: nothing happens.
        """
        for step in self._under_way[slot]:
            await step.wait_until_done()
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
        # Each is looked at once: a write that ends meanwhile must be in both lists or in none.
        self._writes[slot] = [x for x in self._writes[slot] if any(x is y for y in going)]
