"""What benchmarks use of examples/ and of models: ``from benchmarks.models import embed``."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# At the end of the path: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed

from aggml.models import small
from aggml.models.decoder import Batch, Decoder, Group
from aggml.models.decoder.batch import CHAINED
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from aggml import Future

__all__ = ["Decoder", "best_tokens", "embed", "load_decoder", "open_model", "small"]


async def best_tokens(decoder: Decoder, ids: list[int], first: int, n: int) -> list[int]:
    """Take the best token of some sequences ``n`` times, as the engine does.

    Each step takes the tokens of the one before where they lie on the device, and is queued while
    that one is awaited.

    Args:
        decoder: computes.
        ids: the first token of each sequence.
        first: its position.
        n: how many steps.
    """
    rows = np.arange(len(ids), dtype=np.int32)[:, None] * decoder.ctx
    given = np.array(ids, np.int32)[:, None]
    queued: deque[Future[Any]] = deque()
    for at in range(first, first + n):
        positions = np.full_like(rows, at)
        batch = Batch((Group(given, positions, rows + positions, 0, decoder.rows_to_read(at)),))
        step = await decoder.prepare_step(batch.shape(CHAINED))
        inputs = decoder.inputs_of(step, batch, None, chained=at > first)
        queued.append(decoder.run_step(step, inputs, batch, chained=at > first))
        if len(queued) > 1:
            await queued.popleft()
    tokens, _ = await queued.pop()
    found: list[int] = np.asarray(tokens).reshape(-1).tolist()
    return found
