"""Beams: the best of several texts of a window, which are continued side by side (beam search).

Here: which continuations are kept, on values alone; moving keys and values among the decoder's
sequences, one of which each text has. Not here: the steps themselves (windows.py), which token may
come (deciding.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

import aggml
from aggml import DType, Graph, ops
from aggml.models.decoder.sampling import without_nan
from aggml.models.speech.deciding import log_softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.decoder.decoder import Decoder
    from aggml.models.speech.deciding import SpeechRules

    F32 = npt.NDArray[np.float32]

__all__ = ["Beams", "SequenceMover"]

ROUND: Final = 128  # rows that are moved are rounded up to so many, so that few graphs are needed


class _Hypothesis(NamedTuple):
    """Tokens, and the sum of the logarithms of their probabilities."""

    tokens: list[int]
    score: float


@dataclass(slots=True)
class Beams:
    """The texts of one window.

    Attributes:
        slot: the decoder's first sequence; each text has one.
        size: the most texts.
        rules: which token may come.
        position: of the last token.
        most: tokens of a text.
        rows: logits after each text.
        done: whether the best text is known.
        moves: (source, target) of the sequences that change since the last step.
    """

    slot: int
    size: int
    rules: SpeechRules
    position: int
    most: int
    rows: list[F32]
    done: bool = False
    moves: list[tuple[int, int]] = field(default_factory=list)
    _texts: list[_Hypothesis] = field(default_factory=lambda: [_Hypothesis([], 0.0)])
    _ended: list[_Hypothesis] = field(default_factory=list)

    @property
    def last(self) -> list[int]:
        """The last token of each sequence."""
        found = [x.tokens[-1] if x.tokens else self.rules.special.begin for x in self._texts]
        return found + [found[0]] * (self.size - len(found))

    def step(self) -> None:
        """Choose the best continuations of all texts. Takes a millisecond for each text.

        As many texts as ``size`` go on; those that end are set aside. When ``size`` have ended, the
        search is done.
        """
        found: list[tuple[float, int, int]] = []  # score, text, token
        for i, text in enumerate(self._texts):
            logits = without_nan(self.rows[i])
            self.rules.apply(logits, text.tokens)
            logprobs = log_softmax(logits)
            best = np.arange(len(logprobs))
            if len(best) > self.size + 1:
                best = np.sort(np.argpartition(-logprobs, self.size)[: self.size + 1])
            found += [
                (text.score + float(logprobs[token]), i, int(token))
                for token in best[np.isfinite(logprobs[best])]
            ]
        found.sort(key=lambda x: -x[0])
        texts: list[_Hypothesis] = []
        self.moves = []
        for score, i, token in found:
            before = self._texts[i].tokens
            if token == self.rules.special.end:
                if len(self._ended) < self.size:
                    self._ended.append(_Hypothesis(before, score))
                continue
            if i != len(texts):
                self.moves.append((self.slot + i, self.slot + len(texts)))
            texts.append(_Hypothesis([*before, token], score))
            if len(texts) == self.size:
                break
        self.position += 1
        if texts:
            self._texts = texts
        full = len(self._texts[0].tokens) >= self.most
        self.done = full or not texts or len(self._ended) >= self.size

    @property
    def best(self) -> tuple[list[int], float]:
        """The text whose tokens have the greatest mean, and the sum of its logarithms."""
        others = sorted(self._texts, key=lambda x: -x.score)
        all_ = self._ended + others[: max(0, self.size - len(self._ended))]
        return max(all_, key=lambda x: x.score / max(len(x.tokens), 1))


class SequenceMover:
    """Moves keys and values among the sequences of a decoder.

    Args:
        decoder: has the caches.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._graphs: dict[int, tuple[Graph, Tensor, Tensor]] = {}

    def close(self) -> None:
        """Forget the graphs."""
        for graph, _, _ in self._graphs.values():
            self._decoder.site.forget(graph)
        self._graphs.clear()

    async def spread(self, slot: int, size: int, n: int) -> None:
        """Copy what sequence ``slot`` hears, and its first ``n`` positions, to those behind it.

        Cancellation: aborts the computation; these sequences are undefined.
        """
        decoder = self._decoder
        with decoder.lifetime.use("SequenceMover"):
            copies: list[Tensor] = []
            for target in range(slot + 1, slot + size):
                copies += decoder.caches.copies(slot, target, n)
            graph = Graph(*copies)
            await decoder.site.prepare(graph)
            try:
                await decoder.site.run(graph)
            finally:
                decoder.site.forget(graph)

    async def move(self, moves: Sequence[tuple[int, int]], first: int, n: int) -> None:
        """Copy positions ``first`` to ``n`` among sequences, all at once.

        Args:
            moves: source and target of each copy.
            first: the first position.
            n: the position behind the last one.

        Cancellation: aborts the computation; the targets are undefined.
        """
        if not moves or first >= n:
            return
        decoder = self._decoder
        with decoder.lifetime.use("SequenceMover"):
            at = np.arange(first, n, dtype=np.int32)
            pairs = [
                np.concatenate([slot * decoder.ctx + at for slot in slots])
                for slots in zip(*moves, strict=True)
            ]
            count = -(-len(pairs[0]) // ROUND) * ROUND
            source, target = (np.resize(x, count) for x in pairs)  # repeats copies
            graph, old, new = await self._graph(count)
            await decoder.site.run(graph, {old: source, new: target})

    async def _graph(self, count: int) -> tuple[Graph, Tensor, Tensor]:
        found = self._graphs.get(count)
        if found is None:
            old = aggml.new_tensor(DType.I32, ne=(count,), name="old").set_input()
            new = aggml.new_tensor(DType.I32, ne=(count,), name="new").set_input()
            nodes = [
                ops.set_rows(cache, ops.get_rows(cache, old), new)
                for cache, _ in self._decoder.caches.rows
            ]
            found = self._graphs[count] = Graph(*nodes), old, new
            await self._decoder.site.prepare(found[0])
        return found
