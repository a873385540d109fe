"""DraftModel: drafts from a smaller model with the same vocabulary.

Its decoder has the engine's slots. Each token of a draft is drawn with the request's own settings
and the random number with which the engine will draw it. So the two models often choose the same
token at any temperature. States are kept after each token of a draft: the right one is chosen.

Here: which tokens the draft model computes, and its steps. Not here: whether drafts pay
(speculation.py), their verification (engine.py), loading (../loading.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from aggml import InvalidState
from aggml.models.decoder.batch import Batch, Group
from aggml.models.engine import steps
from aggml.models.engine.agreement import DraftAgreement
from aggml.models.engine.draft_steps import PIECES, DraftStep, DraftSteps, StepDrafter
from aggml.models.kv.rows import ROWS_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.engine.requests import TextRequest
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["DraftModel"]

BEHIND: Final = 4  # tokens that a sequence may lack when its draft begins
#: Tokens of a prompt in one step, for models with states: no padding, which would change them.
WHOLE: Final = (256, 64, 16)


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
        # Tokens of which states are kept; None: there are no states.
        self._kept = decoder.widest
        # Tokens of each sequence in a step that computes what they lack.
        self._behind = (BEHIND,) if self._kept is None else (1, self._kept)

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
        if not self.lacking(request) and max(request.tokens[known.n :], default=0) >= self._least:
            return []  # the draft model has no such token
        if request.adjuster is not None and self.decoder.vocabulary < self._vocabulary:
            return []  # its changes may concern tokens that the draft model does not have
        if request.agreement is None:
            request.agreement = DraftAgreement(self._agreement)
        return request.agreement.chances(most if self._kept is None else min(most, self._kept))

    def lacking(self, request: TextRequest) -> int:
        """As of `Drafter`."""
        n = len(request.tokens) - self._of(request).n
        return n if n > 1 + self._behind[-1] else 0

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

    def catch_up(self, request: TextRequest) -> None:
        """As of `Drafter`: those of one request at a time."""
        known = self._of(request)
        if self._steps.is_filling or (self._kept is not None and self._steps.is_going):
            return
        if self._kept is not None:
            self._go_back(request, known)
        first = known.n
        missing = min(len(request.tokens) - 1 - first, PIECES[-1])
        if max(request.tokens[first : first + missing]) >= self._least:
            return
        parts: list[DraftStep] = []
        if self._kept is None:
            parts.append(self._piece(request, first, missing, PIECES))
        else:
            end = first + missing
            while end - first >= self._kept:
                n = next(x for x in (*WHOLE, self._kept) if x <= end - first)
                parts.append(self._piece(request, first, n, (n,)))
                first += n
            missing = first - known.n
        if self._steps.fill(parts):
            known.n += missing

    def _piece(self, request: TextRequest, first: int, n: int, sizes: Sequence[int]) -> DraftStep:
        """A step of ``n`` tokens of a sequence from a position on, padded to one of the sizes."""
        slot = request.slot
        assert slot is not None
        ids, size = request.tokens[first : first + n], next(x for x in sizes if x >= n)
        tokens = np.full((1, size), ids[-1], np.int32)
        positions = np.full((1, size), first + n - 1, np.int32)
        rows = np.full((1, size), self._rows.nowhere, np.int32)
        tokens[0, :n] = ids
        positions[0, :n] = np.arange(first, first + n)
        rows[0, :n] = slot * self._rows.ctx + positions[0, :n]
        group = Group(tokens, positions, rows, slot, self._rows_to_read(first + n))
        batch = Batch((group,), np.zeros(1, np.int32))
        return DraftStep(batch, batch.shape(1))

    def _rows_to_read(self, n: int) -> int:
        """How many rows attention reads to see ``n`` positions."""
        return steps.rows_to_read(n, self._rows.ctx) if self._rows.grows else ROWS_STEP

    def _go_back(self, request: TextRequest, known: _Known) -> None:
        """Have the next step of a sequence go on with the state after the tokens that are known.

        The last token is computed again if its state is known, as each draft begins with it.
        """
        assert request.slot is not None
        known.n, known.guessed = min(known.n, len(request.tokens) - 1), []
        if known.n:  # else it begins with no state
            self.decoder.choose_state(request.slot, known.n)

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
        if self._kept is not None:
            for request in requests:
                self._go_back(request, self._of(request))
        lacking = {x: x.tokens[self._of(x).n : -1] for x in requests}
        if any(lacking.values()):
            parts.append(self._catch_up_step(requests, lacking, first, slots))
        groups = [
            steps.next_tokens(requests, first, slots, self._rows, 0, ahead) for ahead in range(n)
        ]
        if self._kept is not None:
            groups = [replace(group, place=ahead) for ahead, group in enumerate(groups)]
        return parts + self._steps.chain(requests, groups, slots, first)

    def _catch_up_step(
        self,
        requests: list[TextRequest],
        lacking: Mapping[TextRequest, list[int]],
        first: int,
        slots: int,
    ) -> DraftStep:
        """A step of the tokens that sequences lack, except their last ones.

        It is padded; the states after each token are kept, and that after the last one that is no
        padding is chosen.
        """
        most = max(map(len, lacking.values()))
        size = next(x for x in self._behind if x >= most)
        ids, positions = np.zeros((2, slots, size), np.int32)
        rows = np.full((slots, size), self._rows.nowhere, np.int32)
        kept, chosen = None, {}
        if self._kept is not None:
            kept = np.full(slots, self._rows.slots, np.int32)  # of no sequence
        for request in requests:
            assert request.slot is not None
            at, tokens = request.slot - first, lacking[request]
            n, end = len(tokens), len(request.tokens) - 1
            ids[at, :n] = tokens
            if n or kept is None:
                positions[at, :] = max(end - 1, 0)
            positions[at, :n] = np.arange(end - n, end)
            rows[at, :n] = request.slot * self._rows.ctx + positions[at, :n]
            if n and kept is not None:
                kept[at] = request.slot
                chosen[request.slot] = end
        kv = self._rows_to_read(int(positions.max()) + 1)
        history = 1 if kept is None else size
        group = Group(ids, positions, rows, first, kv, kept=kept, history=history)
        batch = Batch((group,), np.zeros(1, np.int32))
        return DraftStep(batch, batch.shape(1), chosen=chosen)

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
