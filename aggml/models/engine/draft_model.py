"""DraftModel: drafts from a smaller model with the same vocabulary.

It has a decoder of its own, whose slots are those of the engine. Each token of a draft is drawn
with the request's own settings, and with the random number with which the engine will draw the
token at that place. So the two models often choose the same token at any temperature.

Here: which tokens the draft model computes, and its steps. Not here: whether drafts pay
(speculation.py), their verification (engine.py), loading (../loading.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from aggml import InvalidState
from aggml.models.decoder.batch import CHAINED, Batch, Group
from aggml.models.engine import steps
from aggml.models.engine.agreement import DraftAgreement
from aggml.models.engine.requests import BEST, draws_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml import Future
    from aggml.models.decoder.batch import Shape
    from aggml.models.decoder.drawing import Draws
    from aggml.models.engine.requests import TextRequest
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["DraftModel"]

BEHIND: Final = 4  # tokens that a sequence may lack when its draft begins
#: Tokens of a prompt in one step: few sizes, because each needs graphs of its own for each slot.
PIECES: Final = (16, 64, 256)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """Steps that make drafts, or that process a prompt.

    Attributes:
        futures: of the steps, the last one last.
        rows: each request, its row, and how many tokens it had.
        begun: when they were queued.
    """

    futures: list[Future[Any]]
    rows: list[tuple[TextRequest, int, int]]
    begun: float


@dataclass(frozen=True, slots=True)
class _Part:
    """A step that is to be queued."""

    batch: Batch
    shape: Shape
    draws: Draws | None
    chained: bool


class DraftModel:
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
        self.unbuilt: Shape | None = None
        self._rows = steps.Rows(decoder.ctx, slots, 1)
        self._vocabulary = vocabulary
        self._is_open = is_open
        self._least = min(vocabulary, decoder.vocabulary)
        self._known: dict[int, _Known] = {}
        self._filling: Future[Any] | None = None
        self._going: _Draft | None = None
        self._ready: dict[TextRequest, tuple[int, list[int]]] = {}
        self._agreement = DraftAgreement()
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """As of `Drafter`."""
        return self._seconds or 0.0

    @property
    def pending(self) -> Future[Any] | None:
        """As of `Drafter`."""
        last = None if self._going is None else self._going.futures[-1]
        return None if last is None or last.done() else last

    async def prepare(self) -> None:
        """Build the graph without which no draft can be made: that of `unbuilt`.

        Cancellation: it is not built.
        """
        shape = self.unbuilt
        if shape is not None:
            await self.decoder.prepare_step(shape)
            self.unbuilt = None

    def chances(self, request: TextRequest, most: int) -> list[float]:
        """As of `Drafter`."""
        if not self._is_open():
            raise InvalidState("[draft] the draft model was closed")
        self._collect()
        n = len(request.tokens)
        if request.adapter.number or request.pictures:
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
        agreement = request.agreement
        if agreement is None:
            agreement = request.agreement = DraftAgreement(self._agreement)
        agreement.idle()
        share = agreement.share()
        return [share ** (i + 1) for i in range(most)]

    def _of(self, request: TextRequest) -> _Known:
        """What the slot of a request has of its tokens."""
        assert request.slot is not None
        known = self._known.get(request.slot)
        if known is None or known.request != request.number:
            known = self._known[request.slot] = _Known(request.number, 0)
        if self._going is None:
            known.settle(request.tokens)
        return known

    # -- what it computes

    def _fill(self, request: TextRequest, known: _Known) -> None:
        """Process some tokens of a request that has just begun, beside the steps of the engine."""
        if self._filling is not None:
            if not self._filling.done():
                return
            filling, self._filling = self._filling, None
            filling.result()
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
        part = _Part(batch, batch.shape(1), None, chained=False)
        futures = self._run([part])
        if futures:
            self._filling = futures[0]
            known.n += len(ids)

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]] | None:
        """As of `Drafter`."""
        self._collect()
        if self._going is not None:
            return None
        ready, self._ready = self._ready, {}
        found = {
            x: ready[x][1][:n] for x, n in wanted.items()
            if x in ready and ready[x][0] == len(x.tokens)
        }  # fmt: skip
        if found:
            return found
        requests = [*wanted]
        parts = self._parts(requests, max(wanted.values()))
        first, _ = steps.slots_of(requests, self._rows)
        begun = time.perf_counter()
        futures = self._run(parts)
        if not futures:
            return None
        drawn = [x for x, part in zip(futures, parts, strict=True) if part.shape.chained]
        rows = [(x, x.slot - first, len(x.tokens)) for x in requests if x.slot is not None]
        self._going = _Draft(drawn, rows, begun)
        return None

    def _parts(self, requests: list[TextRequest], n: int) -> list[_Part]:
        """The steps of drafts of ``n`` tokens: what sequences lack, then a token in each step."""
        parts: list[_Part] = []
        first, slots = steps.slots_of(requests, self._rows)
        lacking = {x: x.tokens[self._of(x).n : -1] for x in requests}
        if any(lacking.values()):
            parts.append(self._catching_up(requests, lacking, first, slots))
        among = max(x.sampler.looks_at(self._vocabulary) for x in requests if x.sampler)
        among = min(among if among == 1 else max(among, BEST), self._least)
        follows = [(x, x.slot - first) for x in requests if x.slot is not None]
        for ahead in range(n):
            group = steps.next_tokens(requests, first, slots, self._rows, 0, ahead)
            batch = Batch((group,))
            shape = batch.shape(CHAINED)
            draws = None
            if among > 1 or any(x.adjuster is not None for x in requests):
                draws = draws_of(follows, slots, among, ahead)
                shape = draws.shaped(shape)
            parts.append(_Part(batch, shape, draws, chained=ahead > 0))
        return parts

    def _catching_up(
        self,
        requests: list[TextRequest],
        lacking: Mapping[TextRequest, list[int]],
        first: int,
        slots: int,
    ) -> _Part:
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
        return _Part(batch, batch.shape(1), None, chained=False)

    def _run(self, parts: Sequence[_Part]) -> list[Future[Any]]:
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
            futures.append(decoder.run_step(step, inputs, part.batch, chained=part.chained))
        return futures

    def _collect(self) -> None:
        """Take the tokens of drafts if they are complete."""
        going = self._going
        if going is None or not going.futures[-1].done():
            return
        self._going = None
        took = (time.perf_counter() - going.begun) / len(going.futures)
        old = took if self._seconds is None else self._seconds
        self._seconds = old + 0.2 * (min(took, 3 * old) - old)
        tokens = [np.asarray(x.result()[0]).reshape(-1).tolist() for x in going.futures]
        for request, row, n in going.rows:
            draft = [each[row] for each in tokens]
            known = None if request.slot is None else self._known.get(request.slot)
            if known is not None and known.request == request.number:  # else it was moved
                known.n, known.guessed = n, draft[:-1]
                known.settle(request.tokens)
            end = next((i for i, x in enumerate(draft) if x >= self._vocabulary), len(draft))
            if draft[:end]:
                self._ready[request] = n, draft[:end]

    def close(self) -> None:
        """Free the decoder."""
        self.decoder.close()
