"""Which token comes next: greedy, or drawn from the most probable ones.

The samplers are llama.cpp's, in its order: top_k keeps the k best tokens, top_p the fewest of them
whose probabilities add up to p, min_p those not much less probable than the best; then one is drawn
at a temperature. Not here: the logits (decoder.py), penalties and biases (adjusting.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator, default_rng  # else numpy loads it at the first draw, in 20 ms

from aggml.models.errors import NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.decoder.adjusting import Adjuster
    from aggml.models.decoder.chain import ChainDraw

__all__ = [
    "PromptReport", "Report", "Sampler", "check_drawable", "choose", "prompt_reports", "report",
    "without_nan",
]  # fmt: skip


def check_drawable(best: npt.NDArray[Any]) -> None:
    """Check that a token can be drawn for each sequence, whose best logits are given.

    Raises:
        NotFiniteError: one of them is NaN or -inf; then all logits of that sequence are.
    """
    if not (best > -np.inf).all():
        raise NotFiniteError(
            "[sample] no token can be chosen, because all logits are NaN or -inf: the model's "
            "numbers overflow, or its file is damaged"
        )


@dataclass
class Sampler:
    """Draws the tokens of one sequence, with a generator of its own.

    Each token of a sequence is drawn with one random number. `number_of` gives that of any token,
    so a token that was drawn in vain, or that is drawn again, changes no later one.

    Args:
        temperature: 0 takes the best token.
        top_k: draw among so many of the best tokens; 0: among all.
        top_p: draw among the best tokens whose probabilities add up to this.
        seed: of the generator.
        min_p: draw among tokens whose probability is at least this times that of the best token.
        chain: other steps, or another order of them; None: these, in llama.cpp's order.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    seed: int | None = None
    min_p: float = 0.0
    chain: ChainDraw | None = None

    @property
    def is_chain(self) -> bool:
        """Whether tokens are drawn on the host, from all logits."""
        return self.chain is not None

    def draw_by_chain(
        self,
        logits: npt.NDArray[np.float32],
        adjuster: Adjuster | None,
        tokens: Sequence[int],
        token: int,
    ) -> int | None:
        """The next token by the steps of `chain`; None: all logits are NaN or -inf.

        Args:
            logits: of all tokens.
            adjuster: has biases and penalties.
            tokens: of prompt and answer so far.
            token: its index in the answer.
        """
        assert self.chain is not None
        numbers = self.temperature, self.top_k, self.top_p, self.min_p
        greedy = self.temperature <= 0
        one = 0.0 if greedy else self.number_of(token)
        return self.chain.draw(logits, adjuster, tokens, numbers, one, self._another(token), token)

    def _another(self, token: int) -> float:
        """A second random number for the token of that index; the first one draws it."""
        missing = token + 1 - len(self._others)
        if missing > 0:
            self._others += self._more_random.random(missing).tolist()
        return self._others[token]

    @cached_property
    def _others(self) -> list[float]:
        return []

    @cached_property
    def _more_random(self) -> Generator:
        return default_rng(None if self.seed is None else [self.seed, 1])

    @cached_property
    def random(self) -> Generator:
        """The generator. It is made at the first draw, so never at temperature 0."""
        return default_rng(self.seed)

    @cached_property
    def _numbers(self) -> list[float]:
        """The random numbers so far, by the index of the token: 8 bytes each."""
        return []

    def number_of(self, token: int) -> float:
        """The random number with which the token of that index is drawn."""
        missing = token + 1 - len(self._numbers)
        if missing > 0:
            self._numbers += self.random.random(missing).tolist()
        return self._numbers[token]

    def numbers(self, token: int | None = None) -> tuple[float, float, float, float, float]:
        """The numbers with which `ops.sample` draws a token.

        Args:
            token: its index in the sequence; None: the one after the last that was drawn.

        Returns:
            Temperature, top_k, top_p, min_p and one number of the generator.
        """
        if self.temperature <= 0:
            return 0.0, 0.0, 1.0, 0.0, 0.0
        one = self.random.random() if token is None else self.number_of(token)
        return self.temperature, self.top_k, self.top_p, self.min_p, one

    def count_candidates(self, k: int) -> int:
        """Among how many of the ``k`` best tokens one is drawn; a chain takes all logits."""
        return 1 if self.temperature <= 0 or self.chain is not None else min(self.top_k or k, k)

    def __call__(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token, from all logits; at temperature 0 the first of equal logits wins.

        NaN is never drawn.

        Raises:
            NotFiniteError: all logits are NaN or -inf.
        """
        if self.temperature <= 0:
            token = int(np.argmax(logits))  # the first NaN, if there is one
            return token if logits[token] > -np.inf else int(np.argmax(without_nan(logits)))
        k = min(self.top_k, logits.size) if self.top_k > 0 else logits.size
        best = np.argpartition(logits, logits.size - k)[logits.size - k :]  # NaN counts as greatest
        if np.isnan(logits[best]).any():
            logits = without_nan(logits)
            best = np.argpartition(logits, logits.size - k)[logits.size - k :]
        best = best[np.argsort(-logits[best], kind="stable")]
        check_drawable(logits[best[:1]])
        return self._draw(best, logits[best])

    def _draw(self, best: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> int:
        """Draw one of the tokens ``best``, which are sorted by their logits, the best first."""
        above = _above(logits, logits[:1])
        share = np.exp(above)
        share /= share.sum()
        n = int(np.searchsorted(np.cumsum(share), self.top_p)) + 1  # at least the best one
        n = min(n, int(np.count_nonzero(share >= self.min_p * share[0])))
        heat = np.exp(above[:n] / self.temperature)
        return int(self.random.choice(best[:n], p=heat / heat.sum()))


def without_nan(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The logits with -inf in place of NaN, which is never drawn.

    Raises:
        NotFiniteError: all of them are NaN or -inf.
    """
    found = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    check_drawable(found.max())
    return found


def _above(logits: npt.NDArray[np.float32], best: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Logits minus the best one, which may be infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(logits == best, 0.0, logits.astype(np.float64) - best)


@dataclass(frozen=True, slots=True)
class Report:
    """The probability of a token and of the best tokens, as natural logarithms, the best first.

    These are the probabilities of the model, before temperature, penalties and biases, or those
    with which the token was drawn.
    """

    logprob: float
    best: list[tuple[int, float]]


def report(
    row: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int32],
    logits: npt.NDArray[np.float32],
    token: int,
    n: int,
) -> Report:
    """The `Report` of a token; with a vocabulary of 128,000 tokens it takes 0.1 ms.

    Args:
        row: logits of all tokens.
        ids: the best tokens in any order, at least ``n``.
        logits: the logits of ``ids``.
        token: the token that was chosen.
        n: how many of the best tokens to name.
    """
    most = np.max(row)
    whole = float(most) + float(np.log(np.sum(np.exp(row - most), dtype=np.float64)))
    order = np.lexsort((ids, -logits))[:n]
    best = [(int(ids[i]), float(logits[i]) - whole) for i in order]
    return Report(float(row[token]) - whole, best)


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The probability of a token of a prompt, and of the best ones in its place.

    Attributes:
        logprob: natural logarithm of its probability by the model.
        best: ids of the best tokens with theirs, the best first.
        rank: its place among all tokens by that, from 1 on; None: it is no token.
    """

    logprob: float | None
    best: list[tuple[int, float]]
    rank: int | None


def prompt_reports(
    rows: npt.NDArray[np.float32], after: Sequence[int], n: int
) -> list[PromptReport]:
    """The report of each token of a prompt, from the logits after the token before it.

    Args:
        rows: logits of all tokens, a row for each position.
        after: the token that follows each position; of the last position it may be missing. An id
            below 0 stands for a part of a picture.
        n: how many of the best tokens to name.
    """
    found = []
    for row, token in zip(rows, after, strict=False):
        best = max(1, n)  # numpy finds no best 0
        ids = np.argpartition(row, row.size - best)[row.size - best :].astype(np.int32)
        about = report(row, ids, row[ids], max(token, 0), n)
        known = token >= 0
        rank = int(np.count_nonzero(row > row[token])) + 1 if known else None
        found.append(PromptReport(about.logprob if known else None, about.best, rank))
    return found


def choose(
    samplers: Sequence[Sampler],
    ids: npt.NDArray[np.int32],
    logits: npt.NDArray[np.float32],
    tokens: Sequence[int] | None = None,
) -> list[int]:
    """The next token of many sequences at once, each among its best: 16 sequences take 0.15 ms.

    Args:
        samplers: one for each sequence.
        ids: the best tokens of each sequence in any order, (sequences, best).
        logits: the logits of ``ids``; NaN is never drawn if there is another one. If all logits of
            a sequence are NaN it gets any token, so that the others go on: see `check_drawable`.
        tokens: the index of the token in each sequence, for `Sampler.number_of`; None: the next
            numbers of the generators.
    """
    n, k = logits.shape
    logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    best = logits.max(axis=1, keepdims=True)
    if all(sampler.temperature <= 0 for sampler in samplers):
        none = np.iinfo(ids.dtype).max
        return [int(x) for x in np.where(logits == best, ids, none).min(axis=1)]
    order = np.lexsort((ids, -logits), axis=1)  # equal logits: the lowest token id first
    ids = np.take_along_axis(ids, order, axis=1)
    above = _above(np.take_along_axis(logits, order, axis=1), best)
    most, share_kept, least, heat, drawn = (np.empty((n, 1)) for _ in range(5))
    for i, sampler in enumerate(samplers):
        greedy = sampler.temperature <= 0
        most[i] = 1 if greedy else sampler.top_k or k
        share_kept[i], least[i] = sampler.top_p, sampler.min_p
        heat[i] = 1.0 if greedy else sampler.temperature
        if greedy:
            drawn[i] = 0.0
        else:
            drawn[i] = sampler.random.random() if tokens is None else sampler.number_of(tokens[i])
    share = np.where(np.arange(k) < most, np.exp(above), 0.0)
    share = np.cumsum(share, axis=1) / share.sum(axis=1, keepdims=True)
    kept = np.minimum(most, 1 + np.sum(share < share_kept, axis=1, keepdims=True))
    kept = np.minimum(kept, np.sum(np.exp(above) >= least, axis=1, keepdims=True))
    weight = np.where(np.arange(k) < kept, np.exp(above / heat), 0.0)
    reached = np.cumsum(weight, axis=1)
    at = np.sum(reached <= drawn * reached[:, -1:], axis=1)
    return [int(x) for x in ids[np.arange(n), np.minimum(at, k - 1)]]
