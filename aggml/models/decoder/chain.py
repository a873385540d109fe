"""Chain: the steps between logits and a draw on the host, in an order that can be given.

The device draws with temperature, top_k, top_p and min_p in llama.cpp's order (drawing.py).
Requests that name another order, or one of the other steps, are drawn here, from all logits. The
steps are those of llama.cpp. Not here: that other way (sampling.py), biases and penalties
themselves (adjusting.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.decoder.adjusting import Adjuster

    F64 = npt.NDArray[np.float64]
    Ids = npt.NDArray[np.int64]

__all__ = ["BREAKERS", "STEPS", "Chain", "ChainDraw"]

#: The steps in llama.cpp's order.
STEPS: Final = (
    "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
BREAKERS: Final = ("\n", ":", '"', "*")
LONGEST: Final = 128  # tokens of a repetition beyond the allowed ones; more are punished no harder
GREATEST: Final = 1e30  # penalty of a repetition
ESTIMATE: Final = 100  # tokens from which mirostat 1 estimates how steep the probabilities are


@dataclass(frozen=True, slots=True)
class Chain:
    """Which steps a request takes, and their numbers; see `TextModel.generate`."""

    steps: tuple[str, ...] = STEPS
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int | None = None
    dry_breakers: tuple[str, ...] = BREAKERS
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    tells: bool = False  # keeps the probabilities with which tokens were drawn

    @property
    def changes_something(self) -> bool:
        """Whether a draw needs them; not if all of them are without effect."""
        return (
            self.steps != STEPS
            or self.typical_p < 1
            or self.top_n_sigma > 0
            or (self.xtc_probability > 0 and self.xtc_threshold <= 0.5)
            or (self.dry_multiplier > 0 and self.dry_range != 0)
            or self.dynatemp_range > 0
            or self.mirostat > 0
            or self.tells
        )


class ChainDraw:
    """Draws the tokens of one answer with the steps of a `Chain`.

    Args:
        chain: the steps.
        bytes_of: the bytes of a token, in which texts are looked for over which no repetition
            reaches.
    """

    def __init__(self, chain: Chain, bytes_of: Callable[[int], bytes]) -> None:
        self._chain = chain
        self._bytes_of = bytes_of
        self._surprise = 2 * chain.mirostat_tau  # mirostat's bound, which adapts
        self._breakers = [x.encode() for x in chain.dry_breakers if x]
        self._breaks: list[bool] = []  # for each token, whether such a text ends in it
        self._tail = b""
        self._chances: dict[int, tuple[Ids, F64]] = {}  # by the number of the token

    @property
    def tells(self) -> bool:
        """Whether it keeps the probabilities with which tokens were drawn."""
        return self._chain.tells

    def take_chances(self, number: int) -> tuple[Ids, F64]:
        """The tokens among which one was drawn and their probabilities, the best first; once.

        Args:
            number: of the token in its answer.
        """
        return self._chances.pop(number)

    def note(self, number: int, ids: Ids, shares: F64) -> None:
        """Keep the probabilities with which a token was drawn, if they are asked for."""
        if self.tells:
            self._chances[number] = ids, shares

    def draw(
        self,
        logits: npt.NDArray[np.float32],
        adjuster: Adjuster | None,
        tokens: Sequence[int],
        numbers: tuple[float, int, float, float],
        one: float,
        another: float,
        number: int = 0,
    ) -> int | None:
        """The next token; None: all logits are NaN or -inf.

        Args:
            logits: of all tokens.
            adjuster: has the biases and penalties.
            tokens: of prompt and answer so far.
            numbers: temperature, top_k, top_p and min_p.
            one: a random number within 0 and 1, with which the token is drawn.
            another: the same, which decides whether xtc applies.
            number: of the token in its answer.
        """
        temperature, top_k, top_p, min_p = numbers
        chain = self._chain
        row = logits
        if adjuster is not None:
            ids, new = adjuster.adjust(logits, penalties=False)
            row = logits.copy()
            row[ids] = new
        at: Ids = np.flatnonzero(row > -np.inf)  # NaN is not
        if not len(at):
            return None
        value: F64 = row[at].astype(np.float64)
        if np.isposinf(value).any():
            at, value = at[np.isposinf(value)], np.zeros(int(np.isposinf(value).sum()))
        steps = chain.steps
        if chain.mirostat:
            steps = ("penalties", "temperature")
        for step in steps:
            if step == "penalties":
                if adjuster is not None:
                    value = adjuster.penalize(at, value)
            elif step == "dry":
                value = self._without_repetition(at, value, tokens)
            elif step == "temperature":
                at, value = self._apply_temperature(at, value, temperature)
            else:
                kept = self._keep(step, at, value, top_k, top_p, min_p, another)
                at, value = at[kept], value[kept]
        at, value = _sort(at, value)
        if chain.mirostat:
            return self._mirostat(at, value, len(logits), one, number)
        share = _shares(value)
        self.note(number, at, share)
        return int(at[_draw(share, one)])

    def _keep(
        self,
        step: str,
        at: Ids,
        value: F64,
        top_k: int,
        top_p: float,
        min_p: float,
        another: float,
    ) -> Ids | npt.NDArray[np.bool_]:
        """Which tokens one step keeps."""
        chain = self._chain
        every: Ids = np.arange(len(at))
        if step == "top_k":
            return every if not 0 < top_k < len(at) else _order(at, value)[:top_k]
        if step == "min_p":
            return every if min_p <= 0 else np.asarray(np.exp(value - value.max()) >= min_p)
        if step == "top_n_sigma":
            if chain.top_n_sigma <= 0:
                return every
            return np.asarray(value >= value.max() - chain.top_n_sigma * value.std())
        if step == "top_p":
            if top_p >= 1:
                return every
            order = _order(at, value)
            reached = np.cumsum(_shares(value[order]))
            return order[: 1 + int(np.count_nonzero(reached < top_p))]
        share = _shares(value)
        if step == "typical_p":
            if chain.typical_p >= 1:
                return every
            surprise = -np.log(np.maximum(share, np.finfo(np.float64).tiny))
            expected = float(np.sum(share * surprise))
            order = np.lexsort((at, np.abs(surprise - expected)))
            reached = np.cumsum(share[order])
            return order[: 1 + int(np.count_nonzero(reached <= chain.typical_p))]
        assert step == "xtc"
        if chain.xtc_probability <= 0 or chain.xtc_threshold > 0.5 or len(at) < 2:
            return every
        if another >= chain.xtc_probability:
            return every
        order = _order(at, value)
        above = int(np.count_nonzero(share >= chain.xtc_threshold))
        return order[max(0, above - 1) :]

    def _apply_temperature(self, at: Ids, value: F64, temperature: float) -> tuple[Ids, F64]:
        """The logits at a temperature; at 0 the best one alone."""
        chain = self._chain
        if chain.dynatemp_range > 0 and len(at) > 1:
            share = _shares(value)
            share = share[share > 0]
            certain = float(-np.sum(share * np.log(share)) / math.log(len(at)))
            least = max(0.0, temperature - chain.dynatemp_range)
            most = temperature + chain.dynatemp_range
            temperature = least + (most - least) * max(0.0, certain) ** chain.dynatemp_exponent
        if temperature <= 0:
            best = _order(at, value)[:1]
            return at[best], value[best]
        return at, (value - value.max()) / temperature

    def _without_repetition(self, at: Ids, value: F64, tokens: Sequence[int]) -> F64:
        """The logits after the penalty for tokens with which a text would come again."""
        chain = self._chain
        if chain.dry_multiplier <= 0 or chain.dry_range == 0:
            return value
        for token in tokens[len(self._breaks) :]:
            self._breaks.append(self._ends_breaker(token))
        n = len(tokens) if chain.dry_range in (None, -1) else min(len(tokens), chain.dry_range or 0)
        ids = np.array(tokens[len(tokens) - n :], np.int64)
        breaks = np.array(self._breaks[len(tokens) - n : len(tokens)], bool)
        lengths = _repetitions(ids, breaks, chain.dry_allowed_length + LONGEST)
        found = value.copy()
        for token, length in lengths.items():
            over = length - chain.dry_allowed_length
            if over < 0:
                continue
            where = np.flatnonzero(at == token)
            if len(where):
                power = over * math.log(chain.dry_base)
                penalty = GREATEST if power > math.log(GREATEST) else math.exp(power)
                found[where] -= min(GREATEST, chain.dry_multiplier * penalty)
        return found

    def _ends_breaker(self, token: int) -> bool:
        """Whether a text ends in a token over which no repetition reaches."""
        if token < 0:  # it stands for a picture
            self._tail = b""
            return True
        if not self._breakers:
            return False
        window = self._tail + self._bytes_of(token)
        most = max(map(len, self._breakers)) - 1
        self._tail = window[len(window) - most :] if most else b""
        return any(x in window for x in self._breakers)

    def _mirostat(self, at: Ids, value: F64, vocabulary: int, one: float, number: int) -> int:
        """Draw with mirostat; the tokens are sorted."""
        chain = self._chain
        share = _shares(value)
        if chain.mirostat == 1:
            keep = min(len(at), _mirostat_k(share, self._surprise, vocabulary))
        else:
            with np.errstate(divide="ignore"):
                keep = max(1, int(np.count_nonzero(-np.log2(share) <= self._surprise)))
        share = share[:keep] / share[:keep].sum()
        self.note(number, at[:keep], share)
        i = _draw(share, one)
        self._surprise -= chain.mirostat_eta * (-math.log2(share[i]) - chain.mirostat_tau)
        return int(at[i])


def _order(at: Ids, value: F64) -> Ids:
    """The places of tokens, the best first; of equal logits the lowest token."""
    return np.lexsort((at, -value))


def _sort(at: Ids, value: F64) -> tuple[Ids, F64]:
    order = _order(at, value)
    return at[order], value[order]


def _shares(value: F64) -> F64:
    """Probabilities."""
    found: F64 = np.exp(value - value.max())
    found /= found.sum()
    return found


def _draw(share: F64, one: float) -> int:
    """The place at which the sum of probabilities passes a number within 0 and 1."""
    reached = np.cumsum(share)
    return min(int(np.count_nonzero(reached <= one * reached[-1])), len(share) - 1)


def _repetitions(ids: Ids, breaks: npt.NDArray[np.bool_], most: int) -> dict[int, int]:
    """For tokens with which an end of the text would come again: how long that end is."""
    n = len(ids)
    if n < 2 or breaks[-1]:
        return {}
    places = np.flatnonzero((ids[:-1] == ids[-1]) & ~breaks[1:])
    found: dict[int, int] = {}
    length = 1
    while len(places):
        for token in np.unique(ids[places + 1]):
            found[int(token)] = length
        if length >= most or length >= n or breaks[n - 1 - length]:
            break
        before = places - length
        fits = before >= 0
        places, before = places[fits], before[fits]
        places = places[ids[before] == ids[n - 1 - length]]
        length += 1
    return found


def _mirostat_k(share: F64, bound: float, vocabulary: int) -> int:
    """How many of the best tokens mirostat 1 draws among."""
    n = min(ESTIMATE, len(share) - 1)
    some = share[: n + 1]
    some = some[some > 0]
    n = len(some) - 1
    if n < 1:
        return 1
    ranks = np.arange(1, n + 1)
    steps = np.log((ranks + 1) / ranks)
    falls = np.log(some[:-1] / some[1:])
    steep = float(np.sum(steps * falls) / np.sum(steps * steps))
    over = steep - 1
    if steep <= 0 or over == 0:
        return vocabulary
    try:
        k = ((over * 2**bound) / (1 - vocabulary**-over)) ** (1 / steep)
    except (OverflowError, ZeroDivisionError):
        return vocabulary
    return max(1, min(int(k), vocabulary)) if math.isfinite(k) else vocabulary
