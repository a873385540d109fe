"""Embedder: an encoder that is served under a name, and its texts as tokens.

Not here: vectors and ranks, for which requests of all clients share batches (aggml.models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from aggml.models import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models import EncoderModel

__all__ = ["Embedder"]

LONG_TEXT: Final = 500  # characters; longer texts are tokenized in a thread


@dataclass(frozen=True, slots=True)
class Embedder:
    """A model that embeds and ranks texts.

    Attributes:
        name: the name under which the model is served.
        model: an encoder; closed by its owner.
    """

    name: str
    model: EncoderModel

    async def tokens(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            ModelError: there are more than the model takes, or none.
        """
        return await self._checked(self.model.tokenizer.encode, text)

    async def pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document.

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
