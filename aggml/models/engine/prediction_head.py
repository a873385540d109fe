"""PredictionHead: drafts from a model's own head, which predicts a token further (MTP).

The head is one layer with keys and values of its own. At each place it takes a token, and the
hidden state that the model had at the token before; steps of the engine bring these states here.
For the tokens of a draft, which the model has not computed yet, it takes its own output instead.

Here: which tokens the head computes, and its steps. Not here: its graph (../decoder/step.py),
whether drafts pay (speculation.py), their verification (engine.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from aggml import AggmlError
from aggml.models.decoder.batch import Batch, GivenEmbeddings, Group
from aggml.models.engine import steps
from aggml.models.engine.agreement import DraftAgreement
from aggml.models.engine.draft_steps import PIECES, DraftStep, DraftSteps, StepDrafter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.decoder.batch import F32, I32
    from aggml.models.engine.requests import TextRequest
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["PredictionHead"]

#: Places that a sequence may lack when its draft begins: as many as a step may have verified.
BEHIND: Final = (4, 16)


@dataclass(slots=True)
class _Fed:
    """What a slot of the head has of a sequence.

    Its place i has the token at position ``base + i + 1`` and the hidden state at ``base + i``. So
    it needs nothing of what came before ``base``, as when the beginning of a prompt was loaded: its
    attention sees less then. Rotary positions are counted from ``base`` on; only differences count.

    Attributes:
        request: the sequence.
        base: the position of the first hidden state.
        n: places whose keys and values are computed from the model's own hidden states.
        hidden: hidden states of the places after these.
        drafted: how many tokens the sequence had when its last draft was begun.
    """

    request: TextRequest
    base: int
    n: int = 0
    hidden: deque[F32] = field(default_factory=deque)
    drafted: int = 0

    @property
    def places(self) -> int:
        """How many places there are hidden states for."""
        return self.n + len(self.hidden)


class PredictionHead(StepDrafter):
    """A `Drafter` that asks the head of the model itself; `observe` gives it hidden states.

    Args:
        decoder: of the head, with one sequence more than ``slots``, for padding.
        slots: sequences of the engine.
    """

    at_once: ClassVar[bool] = False

    def __init__(self, decoder: PagedDecoder, slots: int) -> None:
        self.decoder = decoder
        super().__init__(DraftSteps(decoder, slots, decoder.vocabulary))
        self._fed: dict[int, _Fed] = {}  # by slot
        self._agreement = DraftAgreement()

    def observe(self, request: TextRequest, first: int, hidden: F32) -> None:
        """Take the hidden states of some positions of a sequence.

        Args:
            request: the sequence.
            first: the first of these positions.
            hidden: (positions, width); they are copied.
        """
        for gone in [slot for slot, x in self._fed.items() if x.request.over]:
            del self._fed[gone]
        slot = request.slot
        if slot is None or request.over or not self._serves(request):
            return
        fed = self._fed.get(slot)
        if fed is None or fed.request is not request or fed.base + fed.places != first:
            fed = self._fed[slot] = _Fed(request, first)
        fed.hidden.extend(hidden.copy())
        if len(fed.hidden) > PIECES[-1]:  # of a long prompt: they take memory
            self._fill(request, fed)

    def move(self, request: TextRequest, source: int, target: int) -> None:
        """As of `HiddenObserver`."""
        fed = self._fed.pop(source, None)
        if fed is None or fed.request is not request:
            return
        try:
            self.decoder.move(source, target, fed.n)
        except AggmlError:  # a step has failed: it begins anew
            return
        self._fed[target] = fed

    @staticmethod
    def _serves(request: TextRequest) -> bool:
        """Whether drafts are made for a sequence: the head has no adapters and sees nothing."""
        if request.adapter or request.pictures:
            return False
        return request.may_speculate and request.max_tokens > 1

    def chances(self, request: TextRequest, most: int) -> list[float]:
        """As of `Drafter`."""
        self._steps.collect()
        if request.slot is None or not request.decodes:
            return []
        fed = self._fed.get(request.slot)
        if fed is None or fed.request is not request:
            return []
        n = len(request.tokens)
        if fed.base + fed.places != n - 1 or not (fed.hidden or fed.drafted == n):
            return []
        if fed.places + most > self._rows.ctx:
            return []
        if request.agreement is None:
            request.agreement = DraftAgreement(self._agreement)
        return request.agreement.chances(most)

    def lacking(self, request: TextRequest) -> int:
        """As of `Drafter`."""
        n = len(self._fed[self._slot(request)].hidden) - 1
        return n if n > BEHIND[-1] else 0

    def catch_up(self, request: TextRequest) -> None:
        """As of `Drafter`: those of one request at a time."""
        self._fill(request, self._fed[self._slot(request)])

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]] | None:
        """As of `Drafter`."""
        self._steps.collect()
        if self._steps.is_going:
            return None
        found = self._steps.take(wanted)
        if found:
            return found
        requests = [x for x in wanted if self._fed[self._slot(x)].hidden]
        if not requests:
            return {}
        if self._steps.begin(self._parts(requests, max(wanted.values())), requests):
            for one in requests:
                fed = self._fed[self._slot(one)]
                fed.n, fed.drafted = fed.places, len(one.tokens)
                fed.hidden.clear()
        return None

    @staticmethod
    def _slot(request: TextRequest) -> int:
        assert request.slot is not None
        return request.slot

    # -- what it computes

    def _fill(self, request: TextRequest, fed: _Fed) -> None:
        """Process some places of a prompt, beside the steps of the engine."""
        if self._steps.is_filling:
            return
        n = min(len(fed.hidden) - 1, PIECES[-1])
        size = next(x for x in PIECES if x >= n)
        group = self._places([request], self._slot(request), 1, size, {request: n})
        if self._steps.fill([self._unread(group)]):
            for _ in range(n):
                fed.hidden.popleft()
            fed.n += n

    def _parts(self, requests: list[TextRequest], n: int) -> list[DraftStep]:
        """The steps of drafts of ``n`` tokens: what sequences lack, then a token in each step."""
        first, slots = steps.slots_of(requests, self._rows)
        lacking = {x: len(self._fed[self._slot(x)].hidden) - 1 for x in requests}
        parts = []
        most = max(lacking.values())
        if most:
            size = next(x for x in BEHIND if x >= most)
            parts.append(self._unread(self._places(requests, first, slots, size, lacking)))
        groups = [self._last(requests, first, slots, ahead) for ahead in range(n)]
        return parts + self._steps.chain(requests, groups, slots, first)

    @staticmethod
    def _unread(group: Group) -> DraftStep:
        """A step for its keys and values alone."""
        batch = Batch((group,), np.zeros(1, np.int32))
        return DraftStep(batch, replace(batch.shape(0), hidden=True))

    def _places(
        self,
        requests: Sequence[TextRequest],
        first: int,
        slots: int,
        size: int,
        counts: Mapping[TextRequest, int],
    ) -> Group:
        """The next places of sequences, of each as many as ``counts`` says, padded to ``size``."""
        ids, positions = np.zeros((2, slots, size), np.int32)
        rows = np.full((slots, size), self._rows.nowhere, np.int32)
        hidden = np.zeros((slots, size, self.decoder.model.width), np.float32)
        for request in requests:
            n, slot = counts[request], self._slot(request)
            fed, at = self._fed[slot], slot - first
            begin = fed.base + fed.n + 1
            ids[at, :n] = request.tokens[begin : begin + n]
            positions[at, :n] = np.arange(fed.n, fed.n + n)
            positions[at, n:] = max(fed.n + n - 1, 0)
            rows[at, :n] = slot * self._rows.ctx + positions[at, :n]
            for i, each in enumerate(islice(fed.hidden, n)):
                hidden[at, i] = each
        return self._group(ids, positions, rows, first, hidden)

    def _last(self, requests: Sequence[TextRequest], first: int, slots: int, ahead: int) -> Group:
        """The last place of each sequence, or one that is ``ahead`` of it."""
        ids, positions = np.zeros((2, slots, 1), np.int32)
        rows = np.full((slots, 1), self._rows.nowhere, np.int32)
        hidden = np.zeros((slots, 1, self.decoder.model.width), np.float32)
        for request in requests:
            slot = self._slot(request)
            fed, at = self._fed[slot], slot - first
            ids[at] = request.tokens[-1]
            positions[at] = fed.places - 1 + ahead
            rows[at] = slot * self._rows.ctx + positions[at]
            if not ahead:
                hidden[at, 0] = fed.hidden[-1]
        return self._group(ids, positions, rows, first, hidden)

    def _group(
        self,
        ids: I32,
        positions: I32,
        rows: I32,
        first: int,
        hidden: F32,
    ) -> Group:
        values = hidden.reshape(-1, hidden.shape[-1])
        given = GivenEmbeddings(np.ones((len(values), 1), np.float32), values)
        kv = steps.rows_to_read(int(positions.max()) + 1, self._rows.ctx)
        return Group(ids, positions, rows, first, kv, given=given)

    def close(self) -> None:
        """Free the decoder."""
        self._steps.close()
