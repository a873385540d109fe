"""Lookup: drafts from a sequence's own tokens, by looking up where its last ones came before.

Here: the index of one sequence, and how often what it expects comes. Not here: whether a draft is
worth a step (speculation.py), its verification (engine.py).
"""

from __future__ import annotations

from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AT_ONCE", "Hits", "Lookup"]

# Tokens of a prompt that are read into the index in one turn, which takes 0.3 ms.
AT_ONCE: Final = 1024
#: How often an expected token comes before anything was measured: where two tokens came before,
#: where three did, and after 1, 4 and 16 that came as expected.
PRIORS: Final = (0.25, 0.45, 0.7, 0.85, 0.93)
MEMORY: Final = 64.0  # observations that are remembered; older ones count less and less
WEIGHT: Final = 4.0  # of what is known of all sequences, in observations of one


class Hits:
    """How often expected tokens came, by how much speaks for them (see `PRIORS`).

    Args:
        prior: what is known of others, which counts until more is known here; None: ``priors``.
        priors: the shares before anything was measured.
    """

    def __init__(self, prior: Hits | None = None, priors: Sequence[float] = PRIORS) -> None:
        self._prior = prior
        self._priors: Sequence[float] = priors if prior is None else prior._priors
        self._hits = [0.0] * len(self._priors)
        self._tries = [0.0] * len(self._priors)

    def share(self, level: int) -> float:
        """The share of expected tokens that came."""
        prior = self._priors[level] if self._prior is None else self._prior.share(level)
        return (self._hits[level] + WEIGHT * prior) / (self._tries[level] + WEIGHT)

    def note(self, level: int, *, came: bool) -> None:
        """Note whether an expected token came."""
        if self._prior is not None:
            self._prior.note(level, came=came)
        if self._tries[level] >= MEMORY:
            self._hits[level] *= 1 - 1 / MEMORY
            self._tries[level] *= 1 - 1 / MEMORY
        self._hits[level] += came
        self._tries[level] += 1


class Lookup:
    """Expects that a sequence goes on as it did where its last two or three tokens came before.

    Each token shows whether it came as expected, whether or not a step has verified it. So it is
    known what drafts would be worth before any is computed.

    Args:
        hits: of all sequences.
    """

    def __init__(self, hits: Hits) -> None:
        self._hits = Hits(hits)
        self._read = 0  # tokens that are in the index
        self._places: dict[tuple[int, ...], int] = {}  # some tokens: the place after them
        self._at: int | None = None  # the place of the token that is expected next
        self._level = 0  # of `PRIORS`, when `_at` was found
        self._run = 0  # tokens in a row that came as expected

    def follow(self, tokens: Sequence[int]) -> bool:
        """Read the tokens that have come since the last call; whether all are read."""
        n = len(tokens)
        if n - self._read > AT_ONCE // 8:
            # Without looking at what was expected: these are tokens of a prompt.
            begin, end = max(self._read, 2), min(self._read + AT_ONCE, n - 1)
            part = tokens[begin - 2 : end]
            self._places.update(zip(pairwise(part[1:]), count(begin + 1)))
            self._places.update(
                zip(zip(part, part[1:], part[2:], strict=False), count(begin + 1))
            )  # fmt: skip
            self._read, self._at = end, None
            if end < n - 1:
                return False
        for i in range(self._read, n):
            self._take(tokens, i)
        self._read = n
        return True

    def _take(self, tokens: Sequence[int], i: int) -> None:
        token = tokens[i]
        if self._at is not None:
            came = tokens[self._at] == token
            self._hits.note(self._level_after(0), came=came)
            self._at = self._at + 1 if came else None
            self._run = self._run + 1 if came else 0
        if i < 2:
            return
        three = tokens[i - 2], tokens[i - 1], token
        two = three[1:]
        if self._at is None:
            at = self._places.get(three)
            self._level = 0 if at is None else 1
            self._at = self._places.get(two) if at is None else at
            self._run = 0
        self._places[three] = self._places[two] = i + 1

    def _level_after(self, more: int) -> int:
        """What speaks for the token after ``more`` further ones that come as expected."""
        run = self._run + more
        if run == 0:
            return self._level
        return 2 if run < 4 else 3 if run < 16 else 4

    def chances(self, most: int) -> list[float]:
        """For each token of a draft how probable it is that it and those before it come."""
        found: list[float] = []
        chance = 1.0
        for i in range(most if self._at is not None else 0):
            chance *= self._hits.share(self._level_after(i))
            found.append(chance)
        return found

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        """The ``n`` tokens that are expected next, or fewer; those of a loop go round and round."""
        at = self._at
        if at is None:
            return []
        found = list(tokens[at : at + n])
        for i in range(len(found), n):
            found.append(found[at + i - len(tokens)])
        # Positions of pictures have keys below 0 (requests.py): no token of an answer is one.
        return found[: next((i for i, token in enumerate(found) if token < 0), n)]
