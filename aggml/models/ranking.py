"""Ranking: documents in the order of their scores, for the program and for the service.

Not here: the scores (encoder_model.py, text_model.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import InvalidArgument
from aggml.models.arguments import integer, show

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
    """Return the best ``most`` documents, or all: best first, equal scores in the given order.

    Scores that are NaN come last.

    Raises:
        InvalidArgument: a score is no number; ``most`` is negative or no integer.
    """
    wanted = None if most is None else integer("rank", "most", most, 0)
    try:
        found = [Ranked(i, float(score)) for i, score in enumerate(scores)]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"[rank] scores are {show(scores)}, expected a list of numbers: {error}"
        ) from None
    found.sort(key=lambda x: (math.isnan(x.score), -x.score))
    return found[:wanted]
