"""Ngrams: drafts from what mostly followed some tokens in all sequences of an engine.

Here: the table that the sequences share, and what one of them expects. A sequence also looks its
own tokens up (lookup.py) and takes the draft of which more is expected. Not here: whether a draft
is worth a step (speculation.py), its verification (engine.py), files (ngram_files.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.engine.lookup import AT_ONCE, Hits, Lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["NgramLookup", "NgramTable"]

#: Tokens of a context, the longest first: what followed four tokens says more than what followed
#: two, which may have been followed by many.
ORDERS: Final = (4, 3, 2)
VOTES: Final = (1, 3, 8)  # from how many votes on a token is expected more
#: How often an expected token comes before anything was measured, for each of `ORDERS` (the
#: shortest first) by the votes for it.
PRIORS: Final = (0.1, 0.25, 0.4, 0.2, 0.45, 0.65, 0.35, 0.65, 0.8)
#: Contexts in the younger half of a table; each takes some 200 bytes.
CONTEXTS: Final = 1 << 18
UNLIKELY: Final = 0.02  # a draft ends where it is less probable than that


class NgramTable:
    """For each context the token that mostly followed it, by a vote.

    A token that follows again gets a vote, another one takes one away; without votes its place is
    free (Boyer and Moore's majority). So a context takes the same memory whatever followed it, and
    what is said now replaces what was said long ago. Contexts that nobody met for long are
    forgotten: when the younger half is full, it becomes the older one, and the older one goes.

    Args:
        contexts: of each half.
    """

    def __init__(self, contexts: int = CONTEXTS) -> None:
        self._most = contexts
        self._young: dict[tuple[int, ...], tuple[int, int]] = {}  # the token, and its votes
        self._old: dict[tuple[int, ...], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def entries(self, half: str, order: int) -> list[list[int]]:
        """The contexts of so many tokens: their tokens, the token that follows, its votes.

        Args:
            half: "young" or "old".
            order: one of `ORDERS`.
        """
        held = self._young if half == "young" else self._old
        return [[*key, *value] for key, value in held.items() if len(key) == order]

    def add(self, half: str, rows: Iterable[Sequence[int]]) -> None:
        """Put rows of `entries` back, as many as there is room for."""
        held = self._young if half == "young" else self._old
        for row in rows:
            if len(held) >= self._most - 1:
                return
            held[tuple(row[:-2])] = row[-2], row[-1]

    def learn(self, context: Sequence[int], token: int) -> None:
        """Note that a token followed a context of as many tokens as the longest of `ORDERS`."""
        if token < 0:
            return  # a position of a picture: no answer has it
        for order in ORDERS:
            if order > len(context):
                continue
            key = tuple(context[-order:])
            expected, votes = self._young.get(key) or self._old.get(key, (token, 0))
            if expected == token:
                votes = min(votes + 1, 2 * VOTES[-1])
            elif votes > 1:
                votes -= 1
            else:
                expected, votes = token, 1
            self._young[key] = expected, votes
        if len(self._young) >= self._most:
            self._young, self._old = {}, self._young

    def predict(self, context: Sequence[int]) -> tuple[int, int] | None:
        """Return what mostly followed a context, and its level (of `PRIORS`); None: unknown."""
        for i, order in enumerate(ORDERS):
            if order > len(context):
                continue
            key = tuple(context[-order:])
            found = self._young.get(key) or self._old.get(key)
            if found is not None:
                token, votes = found
                strength = sum(votes >= x for x in VOTES) - 1
                return token, (len(ORDERS) - 1 - i) * len(VOTES) + strength
        return None


class NgramLookup:
    """What one sequence expects: by its own tokens, or by those of all.

    Args:
        table: of all sequences, from which it learns and which it teaches.
        hits: of all sequences, how often the table was right.
        own: what is expected by the tokens of the sequence itself.
    """

    def __init__(self, table: NgramTable, hits: Hits, own: Lookup) -> None:
        self._table, self._own = table, own
        self._hits = Hits(hits)
        self._read = 0  # tokens that the table has learned
        self._context: list[int] = []
        self._draft: list[int] = []
        self._chances: list[float] = []

    def follow(self, tokens: Sequence[int]) -> bool:
        """As `Lookup.follow`. The table learns the tokens, and whether it expected them."""
        new, longest = len(tokens) - self._read, ORDERS[0]
        end = min(len(tokens), self._read + AT_ONCE // 8)  # of a long prompt the rest comes later
        for i in range(self._read, end):
            context = tokens[max(i - longest, 0) : i]
            if new <= AT_ONCE // 8:  # no tokens of a prompt
                expected = self._table.predict(context)
                if expected is not None:
                    self._hits.note(expected[1], came=expected[0] == tokens[i])
            self._table.learn(context, tokens[i])
        self._read = end
        self._draft, self._chances = [], []
        self._context = list(tokens[-longest:])
        return self._own.follow(tokens)

    def lacks(self, tokens: Sequence[int]) -> bool:
        """Whether the table has not learned all of these tokens yet."""
        return self._read < len(tokens)

    def chances(self, most: int) -> list[float]:
        """As `Lookup.chances`, of the draft of which more tokens are expected to come."""
        self._expect(most)
        own = self._own.chances(most)
        return own if sum(own) >= sum(self._chances) else self._chances[:most]

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        """As `Lookup.draft`: that of `chances`."""
        self._expect(n)
        if sum(self._own.chances(n)) >= sum(self._chances[:n]):
            return self._own.draft(tokens, n)
        return self._draft[:n]

    def _expect(self, most: int) -> None:
        """Make the draft of the table so long, if it is not."""
        chance = self._chances[-1] if self._chances else 1.0
        while len(self._draft) < most:
            found = self._table.predict(self._context)
            if found is None:
                return
            token, level = found
            chance *= self._hits.share(level)
            if chance < UNLIKELY:
                return
            self._draft.append(token)
            self._chances.append(chance)
            self._context = [*self._context[1 - ORDERS[0] :], token]
