"""PipelineDecoder: a decoder whose layers lie in stages on other machines.

It remembers the tokens of each slot. If a stage is lost, its caches are lost with it. When all
stages run again, the tokens of a slot go through them once more before its next step. So a
generation only pauses, and gets no token twice. Here: slots, tokens, trying again. Not here: the
stages (stages.py), which slots share a step (dispatch.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidState
from aggml.models import ModelError
from aggml.models.stages import CHUNK, Best, Lifetime, check, round_up
from aggml.ray.dispatch import Dispatcher, ResultForm
from aggml.ray.errors import StageLost
from aggml.ray.step import Ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models.stages import F32, Description
    from aggml.ray.stages import Stages

__all__ = ["PipelineDecoder"]

TRIES: Final = 5  # after so many losses of stages during one step, the caller gets StageLost
CHEAP: Final = ResultForm(best=1)  # for steps whose results nobody needs


@dataclass(slots=True)
class _Slot:
    """What the caches of all stages contain of a sequence."""

    epoch: int = 0  # of the stages whose caches contain it
    life: int = 0
    turn: int = 0
    ids: list[int] = field(default_factory=list)

    def begin_anew(self) -> None:
        """Begin a new life: stages take no more steps of this slot that are still on their way."""
        self.life += 1
        self.turn = 0


@dataclass(frozen=True, slots=True)
class _Job:
    """Tokens for a slot, from position ``start`` on."""

    slot: int
    ids: Sequence[int]
    start: int


class PipelineDecoder:
    """A model in stages, and the caches of ``sequences`` sequences of up to ``ctx`` positions.

    Steps of different slots may be under way at the same time. Steps of one slot are ordered.

    Args:
        stages: the opened stages.
        model: the description of the whole model.
        vocabulary: how many tokens there are.
        ctx: positions of each sequence, rounded up to a multiple of 256.
        sequences: how many there may be at a time.
        micro_batches: the most steps under way.
    """

    def __init__(
        self,
        stages: Stages,
        model: Description,
        vocabulary: int,
        *,
        ctx: int,
        sequences: int,
        micro_batches: int,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.ctx: int = round_up(ctx)
        self.sequences = sequences
        self.stages = stages
        self._dispatcher = Dispatcher(stages, micro_batches)
        self._slots = [_Slot() for _ in range(sequences)]
        self.lifetime: Lifetime = Lifetime(self._forget)

    async def prefill(self, slot: int, ids: Sequence[int], start: int = 0) -> F32:
        """As `aggml.models.decoder.Decoder.prefill`; several pieces are under way at a time.

        Raises:
            StageLost: a stage was lost and did not come back.
        """
        self._check(ids, start)
        ((*_, last),) = await self._take([_Job(slot, ids, start)], ResultForm(), last=True)
        found: F32 = last[0][0]
        return found

    async def logits(self, ids: Sequence[int], slot: int = 0) -> F32:
        """As `aggml.models.decoder.Decoder.logits`."""
        self._check(ids, 0)
        (pieces,) = await self._take([_Job(slot, ids, 0)], ResultForm(), last=False)
        return np.concatenate([piece[0] for piece in pieces])

    async def hidden(self, ids: Sequence[int], slot: int = 0) -> F32:
        """As `aggml.models.decoder.Decoder.hidden`."""
        self._check(ids, 0)
        (pieces,) = await self._take([_Job(slot, ids, 0)], ResultForm(hidden=True), last=False)
        return np.concatenate([piece[0] for piece in pieces])

    async def decode(self, ids: Sequence[int], positions: Sequence[int], slot: int = 0) -> F32:
        """As `aggml.models.decoder.Decoder.decode`."""
        found = await self._one_more(ids, positions, slot, ResultForm())
        return np.concatenate([logits for (logits,) in found])

    async def decode_best(
        self, ids: Sequence[int], positions: Sequence[int], best: int, slot: int = 0
    ) -> Best:
        """As `aggml.models.decoder.Decoder.decode_best`."""
        found = await self._one_more(ids, positions, slot, ResultForm(best))
        return Best(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def close(self) -> None:
        """Do nothing more than note it: the stages are closed by `PipelineModel.aclose`."""
        self.lifetime.close()

    def _forget(self) -> None:
        """Do nothing: there is no memory here."""

    def _check(self, ids: Sequence[int], start: int) -> None:
        check(ids, start, self.ctx, self.vocabulary, "pipeline")

    async def _one_more(
        self, ids: Sequence[int], positions: Sequence[int], slot: int, form: ResultForm
    ) -> list[list[npt.NDArray[Any]]]:
        """One token of each of the sequences from ``slot`` on; returns the rows of each."""
        if max(positions) >= self.ctx:
            raise ModelError(f"the context of {self.ctx} tokens is full: load with a larger ctx")
        pairs = zip(ids, positions, strict=True)
        jobs = [_Job(slot + i, [token], at) for i, (token, at) in enumerate(pairs)]
        return [pieces[0] for pieces in await self._take(jobs, form, last=True)]

    async def _take(
        self, jobs: Sequence[_Job], form: ResultForm, *, last: bool
    ) -> list[list[list[npt.NDArray[Any]]]]:
        """Process the tokens of some jobs; returns the rows of each piece of each job.

        Raises:
            StageLost: a stage was lost and did not come back, or was lost TRIES times.
        """
        tries = 0
        while True:
            epoch = self.stages.epoch
            try:
                await self._hold_again(jobs, epoch)
                found = await self._through(jobs, form, last=last)
            except StageLost as lost:
                tries += 1
                if tries == TRIES:
                    raise
                await self.stages.heal(epoch, lost)
            else:
                for job in jobs:
                    held = self._slots[job.slot]
                    held.ids[job.start :] = job.ids
                return found

    async def _hold_again(self, jobs: Sequence[_Job], epoch: int) -> None:
        """If slots are cached by stages of an older epoch, process their tokens again."""
        stale = [job for job in jobs if self._slots[job.slot].epoch != epoch]
        for job in stale:
            if len(self._slots[job.slot].ids) < job.start:
                raise InvalidState(
                    f"[pipeline] a step of slot {job.slot} begins at position {job.start}, but the "
                    f"slot has only {len(self._slots[job.slot].ids)} tokens"
                )
            self._slots[job.slot].begin_anew()
        again = [_Job(x.slot, self._slots[x.slot].ids[: x.start], 0) for x in stale if x.start]
        await self._through(again, CHEAP, last=True)
        for job in stale:
            self._slots[job.slot].epoch = epoch

    async def _through(
        self, jobs: Sequence[_Job], form: ResultForm, *, last: bool
    ) -> list[list[list[npt.NDArray[Any]]]]:
        """Send the pieces of all jobs and wait for their results.

        If ``last``, only the last piece of each job has results in the form ``form``.
        """
        asked = []
        for job in jobs:
            held = self._slots[job.slot]
            mine = []
            for at in range(0, len(job.ids), CHUNK):
                ids = tuple(int(x) for x in job.ids[at : at + CHUNK])
                final = at + CHUNK >= len(job.ids)
                ask = Ask(job.slot, job.start + at, ids, held.life, held.turn, last)
                held.turn += 1
                wanted = form if final or not last else CHEAP
                mine.append(self._dispatcher.queue(ask, wanted))
            asked.append(mine)
        try:
            return [[await piece.result() for piece in mine] for mine in asked]
        except BaseException:
            for mine in asked:
                for piece in mine:
                    piece.withdraw()
            for job in jobs:
                self._slots[job.slot].begin_anew()
            raise
