"""Weights of words of a text, by token id, from the numbers of a head.

Here: plain functions on values. Not here: the heads (graph.py), texts (../encoder_model.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from aggml.models.encoder.packing import F32

__all__ = ["weights_of_terms", "weights_of_tokens"]


def weights_of_terms(numbers: F32, logs: int) -> dict[int, float]:
    """The weights above 0, by token id.

    Args:
        numbers: of all words of the vocabulary.
        logs: how often log(1 + x) is taken of each.
    """
    ids = np.flatnonzero(~(numbers <= 0))  # NaN is no weight that is left out silently
    values = numbers[ids]
    for _ in range(logs):
        values = np.log1p(values)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def weights_of_tokens(
    ids: Sequence[int], numbers: F32, left_out: AbstractSet[int]
) -> dict[int, float]:
    """The largest number above 0 of each token id, in order of the ids.

    Args:
        ids: of a text's tokens.
        numbers: of these tokens.
        left_out: ids that have no weight.
    """
    found: dict[int, float] = {}
    for token, number in zip(map(int, ids), numbers.ravel().tolist(), strict=True):
        if token not in left_out and not number <= found.get(token, 0.0):
            found[token] = number
    return dict(sorted(found.items()))
