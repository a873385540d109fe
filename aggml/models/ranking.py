"""Ranking: documents in the order of their scores, for the program and for the service.

Not here: the scores (encoder_model.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ranked", "rank"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its score.

    Attributes:
        index: its number in the given order.
        score: as `Model.rerank` returns it.
    """

    index: int
    score: float


def rank(scores: Iterable[float], most: int | None = None) -> list[Ranked]:
    """Return the best ``most`` documents, or all: best first, equal scores in the given order."""
    found = [Ranked(i, float(score)) for i, score in enumerate(scores)]
    found.sort(key=lambda x: -x.score)
    return found[:most]
