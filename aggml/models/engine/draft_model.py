"""DraftModel: drafts from a smaller model with the same vocabulary.

It has a decoder of its own, whose slots are those of the engine. Each token of a draft is drawn
with the request's own settings, and with the random number with which the engine will draw the
token at that place. So the two models often choose the same token at any temperature.

Here: which tokens the draft model computes, and its steps. Not here: whether drafts pay
(speculation.py), their verification (engine.py), loading (../loading.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from aggml import InvalidState
from aggml.models.decoder.batch import Batch, Group
from aggml.models.engine import steps
from aggml.models.engine.agreement import DraftAgreement
from aggml.models.engine.draft_steps import PIECES, DraftStep, DraftSteps, StepDrafter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.engine.requests import TextRequest
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["DraftModel"]

BEHIND: Final = 4  # tokens that a sequence may lack when its draft begins


@dataclass(slots=True)
class _Known:
    """What a slot of the draft model has.

    Attributes:
        request: the number of the request whose tokens it has.
        n: how many first tokens.
        guessed: tokens after these, of which it is not known whether they are the request's.
    """

    request: int
    n: int
    guessed: list[int] = field(default_factory=list)

    def settle(self, tokens: Sequence[int]) -> None:
        """Look how many of the guessed tokens have come."""
        while self.guessed and self.n < len(tokens):
            if tokens[self.n] != self.guessed.pop(0):
                self.guessed = []
                return
            self.n += 1


class DraftModel(StepDrafter):
    """A `Drafter` that asks a model.

    Args:
        decoder: of that model, with one sequence more than ``slots``, for padding.
        slots: sequences of the engine.
        vocabulary: how many tokens the engine's model has.
        is_open: whether the weights are still there; they may belong to another model.
    """

    at_once: ClassVar[bool] = False

    def __init__(
        self,
        decoder: PagedDecoder,
        slots: int,
        vocabulary: int,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.decoder = decoder
        super().__init__(DraftSteps(decoder, slots, vocabulary))
        self._vocabulary = vocabulary
        self._is_open = is_open
        self._least = min(vocabulary, decoder.vocabulary)
        self._known: dict[int, _Known] = {}
        self._agreement = DraftAgreement()

    def chances(self, request: TextRequest, most: int) -> list[float]:
        """As of `Drafter`."""
        if not self._is_open():
            raise InvalidState("[draft] the draft model was closed")
        self._collect()
        n = len(request.tokens)
        if request.adapter or request.pictures:
            return []  # the draft model has no such adapter, and sees nothing
        if request.slot is None or not request.decodes:
            return []
        if n + most > self.decoder.ctx:
            return []
        known = self._of(request)
        if n - known.n > 1 + BEHIND:
            self._fill(request, known)
            return []
        if max(request.tokens[known.n :], default=0) >= self._least:
            return []  # the draft model has no such token
        if request.adjuster is not None and self.decoder.vocabulary < self._vocabulary:
            return []  # its changes may concern tokens that the draft model does not have
        if request.agreement is None:
            request.agreement = DraftAgreement(self._agreement)
        return request.agreement.chances(most)

    def _of(self, request: TextRequest) -> _Known:
        """What the slot of a request has of its tokens."""
        assert request.slot is not None
        known = self._known.get(request.slot)
        if known is None or known.request != request.number:
            known = self._known[request.slot] = _Known(request.number, 0)
        if not self._steps.is_going:
            known.settle(request.tokens)
        return known

    # -- what it computes

    def _fill(self, request: TextRequest, known: _Known) -> None:
        """Process some tokens of a request that has just begun, beside the steps of the engine."""
        if self._steps.is_filling:
            return
        slot, first, missing = request.slot, known.n, len(request.tokens) - 1 - known.n
        assert slot is not None
        ids = request.tokens[first : first + min(missing, PIECES[-1])]
        if max(ids) >= self._least:
            return
        size = next(x for x in PIECES if x >= len(ids))
        tokens = np.full((1, size), ids[-1], np.int32)
        positions = np.full((1, size), first + len(ids) - 1, np.int32)
        rows = np.full((1, size), self._rows.nowhere, np.int32)
        tokens[0, : len(ids)] = ids
        positions[0, : len(ids)] = np.arange(first, first + len(ids))
        rows[0, : len(ids)] = slot * self._rows.ctx + positions[0, : len(ids)]
        kv = steps.seen(first + len(ids), self._rows.ctx)
        batch = Batch((Group(tokens, positions, rows, slot, kv),), np.zeros(1, np.int32))
        if self._steps.fill(DraftStep(batch, batch.shape(1))):
            known.n += len(ids)

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]] | None:
        """As of `Drafter`."""
        self._collect()
        if self._steps.is_going:
            return None
        found = self._steps.take(wanted)
        if found:
            return found
        requests = [*wanted]
        self._steps.begin(self._parts(requests, max(wanted.values())), requests)
        return None

    def _parts(self, requests: list[TextRequest], n: int) -> list[DraftStep]:
        """The steps of drafts of ``n`` tokens: what sequences lack, then a token in each step."""
        parts: list[DraftStep] = []
        first, slots = steps.slots_of(requests, self._rows)
        lacking = {x: x.tokens[self._of(x).n : -1] for x in requests}
        if any(lacking.values()):
            parts.append(self._catching_up(requests, lacking, first, slots))
        groups = [
            steps.next_tokens(requests, first, slots, self._rows, 0, ahead) for ahead in range(n)
        ]
        return parts + self._steps.chain(requests, groups, slots, first)

    def _catching_up(
        self,
        requests: list[TextRequest],
        lacking: Mapping[TextRequest, list[int]],
        first: int,
        slots: int,
    ) -> DraftStep:
        """A step of the tokens that sequences lack, except their last ones."""
        ids, positions = np.zeros((2, slots, BEHIND), np.int32)
        rows = np.full((slots, BEHIND), self._rows.nowhere, np.int32)
        for request in requests:
            assert request.slot is not None
            at, tokens = request.slot - first, lacking[request]
            n = len(tokens)
            ids[at, :n] = tokens
            positions[at, :] = max(len(request.tokens) - 2, 0)
            positions[at, :n] = np.arange(len(request.tokens) - 1 - n, len(request.tokens) - 1)
            rows[at, :n] = request.slot * self._rows.ctx + positions[at, :n]
        kv = steps.seen(int(positions.max()) + 1, self._rows.ctx)
        batch = Batch((Group(ids, positions, rows, first, kv),), np.zeros(1, np.int32))
        return DraftStep(batch, batch.shape(1))

    def _collect(self) -> None:
        """Take note of drafts that are complete."""
        for done in self._steps.collect():
            slot = done.request.slot
            known = None if slot is None else self._known.get(slot)
            if known is not None and known.request == done.request.number:  # else it was moved
                known.n, known.guessed = done.n, done.tokens[:-1]
                known.settle(done.request.tokens)

    def close(self) -> None:
        """Free the decoder."""
        self._steps.close()
