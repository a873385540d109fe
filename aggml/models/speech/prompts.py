"""Prompts: tokens of several windows, each from a position of its own on, in one step.

Here: the arrays of such a step. Not here: which tokens (windows.py, aligning.py), the step itself
(../decoder/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.decoder.batch import Batch, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.decoder.decoder import Decoder

__all__ = ["prompts"]

TOKENS: Final = 32  # tokens of a window are rounded up to so many, so that few graphs are needed
ENDS: Final = 8  # and so are the logits


def prompts(
    decoder: Decoder,
    slot: int,
    texts: Sequence[tuple[Sequence[int], int]],
    ends: Sequence[Sequence[int]],
) -> Batch:
    """The step for tokens of the sequences ``slot``, ``slot`` + 1, ...

    All sequences take the same number of tokens: the last one is repeated at its own position,
    where it writes the same keys and values again. Logits are rounded up in the same way.

    Args:
        decoder: computes the step.
        slot: the first sequence.
        texts: the tokens of each sequence, at least one, and the position of its first one.
        ends: of each sequence, which of its tokens get logits; those of all sequences follow each
            other in the result.
    """
    n = -(-max(len(ids) for ids, _ in texts) // TOKENS) * TOKENS
    at = [np.minimum(np.arange(n), len(ids) - 1) for ids, _ in texts]
    tokens = np.stack([np.asarray(ids, np.int32)[x] for (ids, _), x in zip(texts, at, strict=True)])
    positions = np.stack([x + start for (_, start), x in zip(texts, at, strict=True)])
    positions = positions.astype(np.int32)
    first = (np.arange(slot, slot + len(texts), dtype=np.int32) * decoder.ctx)[:, None]
    kv = decoder.rows_to_read(int(positions.max()))
    last = [i * n + end for i, those in enumerate(ends) for end in those]
    last += last[-1:] * (-len(last) % ENDS)
    group = Group(tokens, positions, positions + first, slot, kv)
    return Batch((group,), np.array(last, np.int32))
