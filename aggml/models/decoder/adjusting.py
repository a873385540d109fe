"""Changes a model's logits before a token is drawn: biases, penalties, bans.

Here: which tokens of a sequence get other logits, and the best tokens after these changes. Not
here: the draw itself (sampling.py), where logits come from (decoder.py).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    Ids = npt.NDArray[np.int32]

__all__ = ["FIRST", "Adjuster", "Rules"]

FIRST: Final = 64  # tokens that a new sequence has room for


@dataclass(frozen=True)
class Rules:
    """The changes that a request asks for; the defaults change nothing.

    If its token is in the prompt or the answer, a logit l first becomes l / repetition, or l *
    repetition if l is below zero. Then l becomes l + bias - presence - frequency * count. Here
    count is how often the token is in the answer, and presence applies only if that is not 0.
    These are the rules of vLLM and, except ``repetition``, of OpenAI.

    Attributes:
        presence, frequency: penalties for tokens of the answer; negative ones favour them.
        repetition: divisor for tokens of prompt and answer; 1: none.
        bias: token ids, each with the number that is added to its logit.
        least: while the answer has fewer tokens, a token that ends it cannot be chosen.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    least: int = 0

    def __bool__(self) -> bool:
        """Whether they change anything."""
        return self != Rules()


class Adjuster:
    """Applies `Rules` to the logits of one sequence.

    Args:
        rules: the changes.
        prompt: token ids; the penalty for repetition counts them as seen.
        ends: tokens that end the answer.
    """

    def __init__(self, rules: Rules, prompt: Sequence[int], ends: Iterable[int]) -> None:
        self._rules = rules
        self._place: dict[int, int] = {}  # token whose logit may change -> index in the arrays
        self._ids = np.zeros(FIRST, np.int32)
        self._count = np.zeros(FIRST, np.float32)  # how often the token is in the answer
        self._seen = np.zeros(FIRST, bool)  # whether the token is in the prompt or the answer
        self._bias = np.zeros(FIRST, np.float32)
        self._made = 0
        # `_of` may replace the arrays by longer ones, so it is called before they are looked up.
        for token, bias in rules.bias.items():
            at = self._of(token)
            self._bias[at] = bias
        if rules.repetition != 1.0:
            for token in prompt:
                at = self._of(token)
                self._seen[at] = True
        # Penalties do not concern end tokens: an end token would have ended the answer.
        self._ends = np.array([self._of(token) for token in ends] if rules.least else [], np.intp)
        self._counts = bool(rules.presence or rules.frequency or rules.repetition != 1.0)

    @property
    def is_constant(self) -> bool:
        """Whether the changes are the same for all tokens that are still to come."""
        return not self._counts and self._made >= self._rules.least

    def _of(self, token: int) -> int:
        """The index of a token in the arrays; a new token gets the next one."""
        at = self._place.setdefault(token, len(self._place))
        if at == len(self._ids):
            for name in ("_ids", "_count", "_seen", "_bias"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self._ids[at] = token
        return at

    def take(self, token: int) -> None:
        """Note that the answer has one token more, ``token``."""
        self._made += 1
        if self._counts:
            at = self._of(token)
            self._count[at] += 1
            self._seen[at] = True

    def after(self, tokens: Iterable[int]) -> Adjuster:
        """What it will be when the answer has these tokens more; it does not change itself."""
        if self.is_constant:
            return self
        found = copy.copy(self)
        found._place = dict(self._place)
        for name in ("_ids", "_count", "_seen", "_bias"):
            setattr(found, name, getattr(self, name).copy())
        for token in tokens:
            found.take(token)
        return found

    def adjust(self, row: F32, *, penalties: bool = True) -> tuple[Ids, F32]:
        """Return the tokens whose logits may change, and their new logits.

        Args:
            row: logits of all tokens.
            penalties: whether these are among the changes.
        """
        rules, n = self._rules, len(self._place)
        ids, count = self._ids[:n], self._count[:n]
        logits = row[ids]
        if not penalties:
            logits = logits + self._bias[:n]
        else:
            if rules.repetition != 1.0:
                factor = np.where(logits > 0, 1 / rules.repetition, rules.repetition)
                logits = np.where(self._seen[:n], logits * factor.astype(np.float32), logits)
            logits = (
                logits + self._bias[:n] - rules.frequency * count - rules.presence * (count > 0)
            )
        if self._made < rules.least:
            logits[self._ends] = -np.inf
        return ids, logits.astype(np.float32)

    def penalize(
        self, at: npt.NDArray[np.int64], value: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The logits of some tokens after the penalties alone.

        Args:
            at: the tokens.
            value: their logits.
        """
        rules, n = self._rules, len(self._place)
        if not self._counts or not n:
            return value
        order = np.argsort(self._ids[:n])
        ids = self._ids[:n][order]
        place = np.minimum(np.searchsorted(ids, at), n - 1)
        known = ids[place] == at
        count = np.where(known, self._count[:n][order][place], 0.0)
        seen = known & self._seen[:n][order][place]
        factor = np.where(value > 0, 1 / rules.repetition, rules.repetition)
        found = np.where(seen, value * factor, value)
        result: npt.NDArray[np.float64] = (
            found - rules.frequency * count - rules.presence * (count > 0)
        )
        return result

    def numbers(self, n: int) -> tuple[Ids, F32]:
        """The arguments of `ops.penalize` by which the device makes the changes of `adjust`.

        Args:
            n: length of the arrays, at least `changing`.

        Returns:
            Token ids, (n,) int32, filled up with -1; and their five numbers, (5, n) float32.
        """
        rules, m = self._rules, self.changing
        ids, how = np.full(n, -1, np.int32), np.zeros((5, n), np.float32)
        count, seen = self._count[:m], self._seen[:m]
        ids[:m] = self._ids[:m]
        how[:2, :m] = 1.0
        if rules.repetition != 1.0:
            how[0, :m][seen] = 1 / rules.repetition
            how[1, :m][seen] = rules.repetition
        how[2, :m] = self._bias[:m]
        if self._made < rules.least:
            how[2, self._ends] = -np.inf
        how[3, :m] = rules.frequency * count
        how[4, :m] = rules.presence * (count > 0)
        return ids, how

    @property
    def changing(self) -> int:
        """How many tokens have logits that may change."""
        return len(self._place)

    def best(self, row: F32, ids: Ids, logits: F32, need: int) -> tuple[Ids, F32]:
        """The best tokens after the changes, in any order.

        Tokens outside ``ids`` that do not change stay below the lowest of ``logits``. So it is
        enough to look at ``ids`` and the changed tokens, provided that ``need`` of them reach that
        lowest logit. Otherwise the whole row is searched.

        Args:
            row: logits of all tokens.
            ids: the best tokens before the changes.
            logits: the logits of ``ids``, before the changes.
            need: how many of the best tokens the draw looks at; at most as many as ``ids``.

        Returns:
            As many tokens as ``ids``, and their logits. The best ``need`` of them are the best of
            all tokens. If fewer tokens were found, the rest have logits of -inf.
        """
        other, new = self.adjust(row)
        kept = ~np.isin(ids, other)
        found = np.concatenate([ids[kept], other])
        value = np.concatenate([logits[kept], new])
        k = len(ids)
        if np.count_nonzero(value >= logits.min()) < min(need, k):
            value = row.copy()
            value[other] = new
            found = np.arange(len(row), dtype=np.int32)
        if len(found) > k:
            at = np.argpartition(value, len(found) - k)[len(found) - k :]
            found, value = found[at], value[at]
        missing = k - len(found)
        return np.pad(found, (0, missing)), np.pad(value, (0, missing), constant_values=-np.inf)
