"""Embedder: vectors and ranks of texts for any number of tasks; requests become batches.

Not here: queue and batches (aggml/models/batching.py), the computation (aggml.models).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import anyio.to_thread
import numpy as np

from aggml.models import ModelError
from aggml.models.batching import Batcher

if TYPE_CHECKING:
    from types import TracebackType

    from aggml.models import Model
    from aggml.models.decoding import F32

__all__ = ["Embedder"]

BATCH: Final = 1024  # tokens with which a batch is full
LONG_TEXT: Final = 500  # characters; longer ones are not tokenized on the loop


class Embedder:
    """A model whose callers share batches.

    ``async with Embedder("name", model) as e: vector = await e.embed(await e.tokens("a text"))``

    Args:
        name: under which it is served.
        model: an encoder; closed by its owner.
        max_waiting: how many texts may be queued or computing; others wait their turn.
    """

    def __init__(self, name: str, model: Model, *, max_waiting: int = 1024) -> None:
        self.name = name
        self.model = model

        async def compute(texts: list[list[int]]) -> list[F32]:
            return list(await model.embed_ids(texts))

        self._batcher: Batcher[list[int], F32] = Batcher(
            compute, full=BATCH, max_waiting=max_waiting
        )

    async def __aenter__(self) -> Self:
        await self._batcher.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Stop. Whoever still waits for a vector gets a `BatchError`."""
        return await self._batcher.__aexit__(kind, error, trace)

    async def tokens(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            ModelError: there are more than the model takes, or none.
        """
        encode = self.model.tokenizer.encode
        if len(text) > LONG_TEXT:
            ids = await anyio.to_thread.run_sync(encode, text)
        else:
            ids = encode(text)
        if not 0 < len(ids) <= self.model.ctx:
            raise ModelError(f"{len(ids)} tokens, the model takes 1 to {self.model.ctx}")
        return ids

    async def embed(self, ids: list[int]) -> F32:
        """The vector of what `tokens` gave, of length 1: (width,) float32.

        Raises:
            BatchError: the computation failed, or the service has ended.

        Cancellation: takes the request back; others go on.
        """
        # A copy: the view of one vector would keep those of the whole batch.
        return np.array(await self._batcher.submit(ids))
