"""Embedder: vectors and ranks of texts for any number of tasks; requests become batches.

Not here: queue and batches (aggml/models/batching.py), the computation (aggml.models).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import anyio.to_thread
import numpy as np

from aggml.models import ModelError
from aggml.models.batching import Batcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models import EncoderModel
    from aggml.models.decoder import F32

__all__ = ["Embedder"]

BATCH: Final = 1024  # tokens of a full batch
LONG_TEXT: Final = 500  # characters; longer texts are tokenized in a thread


class Embedder:
    """Embeds and ranks texts with one model. Requests of many tasks are computed together.

    ``async with Embedder("name", model) as e: vector = await e.embed(await e.tokens("a text"))``

    Args:
        name: the name under which the model is served.
        model: an encoder; closed by its owner.
        max_waiting: how many texts may be queued or computing; others wait their turn.
    """

    def __init__(self, name: str, model: EncoderModel, *, max_waiting: int = 1024) -> None:
        self.name = name
        self.model = model

        async def vectors(texts: list[list[int]]) -> list[F32]:
            return list(await model.embed_ids(texts))

        async def scores(pairs: list[list[int]]) -> list[float]:
            return list(map(float, await model.rerank_ids(pairs)))

        self._vectors: Batcher[list[int], F32] = Batcher(
            vectors, full=BATCH, max_waiting=max_waiting
        )
        self._scores: Batcher[list[int], float] = Batcher(
            scores, full=BATCH, max_waiting=max_waiting
        )
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._vectors)
        await self._open.enter_async_context(self._scores)
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        """Stop. Whoever still waits for a vector or a score gets a `BatchError`."""
        return await self._open.__aexit__(*raised)  # type: ignore[arg-type]

    async def tokens(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            ModelError: there are more than the model takes, or none.
        """
        return await self._checked(self.model.tokenizer.encode, text)

    async def pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document, for `score`.

        Raises:
            ModelError: as `tokens`.
        """
        return await self._checked(self.model.tokenizer.encode_pair, query, document)

    async def _checked(self, encode: Callable[..., list[int]], *texts: str) -> list[int]:
        if sum(map(len, texts)) > LONG_TEXT:
            ids = await anyio.to_thread.run_sync(encode, *texts)
        else:
            ids = encode(*texts)
        if not 0 < len(ids) <= self.model.ctx:
            raise ModelError(f"{len(ids)} tokens, but the model takes 1 to {self.model.ctx}")
        return ids

    async def embed(self, ids: list[int]) -> F32:
        """The vector of a text, normalized to length 1: (width,) float32.

        Args:
            ids: the token ids that `tokens` gave.

        Raises:
            BatchError: the computation failed, or the service has ended.

        Cancellation: takes the request back; others go on.
        """
        # A copy, because a view of one vector would keep the vectors of the whole batch.
        return np.array(await self._vectors.submit(ids))

    async def score(self, ids: list[int]) -> float:
        """How well a document answers a query; greater is better.

        Args:
            ids: the token ids that `pair` gave.

        Raises:
            BatchError: the computation failed; the model has no rank head; the service has ended.

        Cancellation: takes the request back; others go on.
        """
        return await self._scores.submit(ids)
