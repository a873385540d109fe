"""DraftSteps: the steps of a decoder that makes drafts, queued beside those of the engine.

All steps of a draft are queued at once; each takes its token from the one before. Here: queueing
them and collecting their tokens. Not here: which tokens they compute (draft_model.py,
prediction_head.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.decoder.batch import CHAINED, Batch
from aggml.models.engine import steps
from aggml.models.engine.requests import BEST, draws_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Future
    from aggml.models.decoder.batch import Group, Shape
    from aggml.models.decoder.drawing import Draws
    from aggml.models.engine.requests import TextRequest
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["PIECES", "DraftStep", "DraftSteps", "FinishedDraft", "StepDrafter"]

#: Tokens of a prompt in one step: few sizes, because each needs graphs of its own for each slot.
PIECES: Final = (16, 64, 256)


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A step that is to be queued.

    Attributes:
        batch: its inputs.
        shape: of the batch.
        draws: how tokens are drawn; None: none are, or the best one.
        chained: whether it takes its tokens from the step before.
        chosen: for each slot of which the step keeps several states, the position of the one with
            which the next step goes on.
    """

    batch: Batch
    shape: Shape
    draws: Draws | None = None
    chained: bool = False
    chosen: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Going:
    """Steps that make drafts.

    Attributes:
        futures: of the steps, the last one last.
        rows: each request, its row, and how many tokens it had.
        begun: when they were queued.
    """

    futures: list[Future[Any]]
    rows: list[tuple[TextRequest, int, int]]
    begun: float


@dataclass(frozen=True, slots=True, eq=False)
class FinishedDraft:
    """Tokens that were drawn for a request.

    Attributes:
        request: the request.
        n: how many tokens it had.
        tokens: the draft, with all tokens that the decoder has.
    """

    request: TextRequest
    n: int
    tokens: list[int]


class DraftSteps:
    """Steps of a decoder that makes drafts.

    Args:
        decoder: has one sequence more than ``slots``, for padding.
        slots: sequences of the engine.
        vocabulary: how many tokens the engine's model has.

    Attributes:
        unbuilt: the shape of a graph without which no draft can be made; None: there is none.
        rows: the rows of the decoder's caches.
    """

    def __init__(self, decoder: PagedDecoder, slots: int, vocabulary: int) -> None:
        self.decoder = decoder
        self.unbuilt: Shape | None = None
        self.rows: steps.Rows = steps.Rows(
            decoder.ctx, slots, 1, states=decoder.has_states, grows=decoder.grows
        )
        self._vocabulary = vocabulary
        self._filling: Future[Any] | None = None
        self._going: _Going | None = None
        self._ready: dict[TextRequest, tuple[int, list[int]]] = {}
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """How long it takes to make one token of all drafts of a step."""
        return self._seconds or 0.0

    @property
    def pending(self) -> Future[Any] | None:
        """The last step of the drafts that are being made."""
        last = None if self._going is None else self._going.futures[-1]
        return None if last is None or last.done() else last

    @property
    def is_going(self) -> bool:
        """Whether drafts are being made, or are not collected yet."""
        return self._going is not None

    async def prepare(self) -> None:
        """Build the graph of `unbuilt`.

        Cancellation: it is not built.
        """
        shape = self.unbuilt
        if shape is not None:
            await self.decoder.prepare_step(shape)
            self.unbuilt = None

    def fill(self, parts: Sequence[DraftStep]) -> bool:
        """Queue steps whose results nobody reads, as for a prompt; whether they were queued.

        Those of one call at a time, beside the steps of the engine.
        """
        if self.is_filling:
            return False
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.result()
        futures = self._run(parts)
        if futures:
            self._filling = futures[-1]
        return bool(futures)

    @property
    def is_filling(self) -> bool:
        """Whether steps of `fill` are under way."""
        return self._filling is not None and not self._filling.done()

    def chain(
        self, requests: Sequence[TextRequest], groups: Sequence[Group], slots: int, first: int
    ) -> list[DraftStep]:
        """Steps of one token of each sequence, each of which takes the tokens of the one before.

        Args:
            requests: those that get drafts.
            groups: of the steps.
            slots: rows of each step.
            first: the slot of the first row.
        """
        least = min(self._vocabulary, self.decoder.vocabulary)
        among = max(x.sampler.count_candidates(self._vocabulary) for x in requests if x.sampler)
        among = min(among if among == 1 else max(among, BEST), least)
        follows = [(x, x.slot - first) for x in requests if x.slot is not None]
        found = []
        for ahead, group in enumerate(groups):
            batch = Batch((group,))
            shape, draws = batch.shape(CHAINED), None
            if among > 1 or any(x.adjuster is not None for x in requests):
                draws = draws_of(follows, slots, among, ahead)
                shape = draws.add_to(shape)
            found.append(DraftStep(batch, shape, draws, chained=ahead > 0))
        return found

    def begin(self, parts: Sequence[DraftStep], requests: Sequence[TextRequest]) -> bool:
        """Queue the steps of drafts; False if a graph has to be built before."""
        first, _ = steps.slots_of(requests, self.rows)
        begun = time.perf_counter()
        futures = self._run(parts)
        if not futures:
            return False
        drawn = [x for x, part in zip(futures, parts, strict=True) if part.shape.chained]
        rows = [(x, x.slot - first, len(x.tokens)) for x in requests if x.slot is not None]
        self._going = _Going(drawn, rows, begun)
        return True

    def _run(self, parts: Sequence[DraftStep]) -> list[Future[Any]]:
        """Queue steps; none if a graph has to be built before."""
        decoder = self.decoder
        found = []
        for part in parts:
            step = decoder.find_step(part.shape)
            if step is None:
                self.unbuilt = part.shape
                return []
            found.append(step)
        futures = []
        for part, step in zip(parts, found, strict=True):
            inputs = decoder.inputs_of(step, part.batch, part.draws, chained=part.chained)
            # States need no step that has ended: all are queued in order, and `collect` looks
            # whether they have succeeded.
            futures.append(decoder.run_step(step, inputs, part.batch, chained=True))
            for slot, at in part.chosen.items():
                decoder.choose_state(slot, at)
        return futures

    def collect(self) -> list[FinishedDraft]:
        """The drafts that have become complete since the last call."""
        going = self._going
        if going is None or not going.futures[-1].done():
            return []
        self._going = None
        took = (time.perf_counter() - going.begun) / len(going.futures)
        old = took if self._seconds is None else self._seconds
        self._seconds = old + 0.2 * (min(took, 3 * old) - old)
        tokens = [np.asarray(x.result()[0]).reshape(-1).tolist() for x in going.futures]
        found = []
        for request, row, n in going.rows:
            draft = [each[row] for each in tokens]
            found.append(FinishedDraft(request, n, draft))
            end = next((i for i, x in enumerate(draft) if x >= self._vocabulary), len(draft))
            if draft[:end]:
                self._ready[request] = n, draft[:end]
        return found

    def take(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]]:
        """The drafts that are ready, and begin where a sequence ends.

        They stay until the sequence has another token: a step that was planned with them may have
        to be planned again.
        """
        ready = self._ready = {
            x: found for x, found in self._ready.items() if found[0] == len(x.tokens) and not x.over
        }
        return {x: ready[x][1][:n] for x, n in wanted.items() if x in ready}

    def close(self) -> None:
        """Free the decoder."""
        self.decoder.close()


class StepDrafter:
    """What every `Drafter` that has steps of its own tells of them."""

    def __init__(self, own: DraftSteps) -> None:
        self._steps = own
        self._rows = own.rows

    @property
    def seconds(self) -> float:
        """As of `Drafter`."""
        return self._steps.seconds

    @property
    def pending(self) -> Future[Any] | None:
        """As of `Drafter`."""
        return self._steps.pending

    @property
    def unbuilt(self) -> Shape | None:
        """As of `Drafter`."""
        return self._steps.unbuilt

    async def prepare(self) -> None:
        """Build the graph without which no draft can be made: that of `unbuilt`.

        Cancellation: it is not built.
        """
        await self._steps.prepare()
