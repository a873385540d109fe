"""Chunks: a sound that comes piece by piece, as samples at 16 kHz.

Not here: what is done with them (../voice_model.py, live.py), files (sounds.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint

from aggml import InvalidArgument
from aggml.models.arguments import show
from aggml.models.speech.waves import RATE, Resampler, mono

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["heard_chunks"]

PIECE: Final = RATE  # samples of a chunk that are treated together: a second


def heard_chunks(
    place: str, chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike], rate: int
) -> AsyncGenerator[F32]:
    """The samples of chunks, float32, mono, 16,000 a second, in pieces of at most a second.

    Raises:
        InvalidArgument: ``chunks`` is no iterable; by the iteration: a chunk is no audio.
    """
    given: object = chunks
    if (
        isinstance(given, (str, bytes, bytearray))
        or not isinstance(given, (Iterable, AsyncIterable))
        or (isinstance(given, np.ndarray) and given.ndim == 0)
    ):
        raise InvalidArgument(
            f"[{place}] chunks is {show(given)}, expected an iterable or an async one, of arrays"
        )
    if isinstance(given, np.ndarray) and given.ndim == 1:
        raise InvalidArgument(
            f"[{place}] chunks is one array of the shape {given.shape}, expected arrays: put "
            "brackets around it"
        )
    return _pieces(chunks, rate)


async def _pieces(
    chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike], rate: int
) -> AsyncGenerator[F32]:
    resampler = Resampler(rate)
    if not isinstance(chunks, AsyncIterable):
        chunks = _one_by_one(chunks)
    items = aiter(chunks)
    try:
        async for chunk in items:
            samples = mono(chunk)
            for first in range(0, len(samples), PIECE):
                piece = samples[first : first + PIECE]
                if rate == RATE:
                    yield piece
                else:  # a second of a high rate takes milliseconds
                    yield await anyio.to_thread.run_sync(partial(resampler.take, piece))
        yield resampler.finish()
    finally:
        aclose = getattr(items, "aclose", None)
        if aclose is not None:
            await aclose()


async def _one_by_one(chunks: Iterable[npt.ArrayLike]) -> AsyncGenerator[npt.ArrayLike]:
    for chunk in chunks:
        yield chunk
        await checkpoint()
