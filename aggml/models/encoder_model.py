"""EncoderModel: a model like BERT, from texts to vectors and from query and document to scores.

Here: the public object. Not here: loading (loading.py), the computation (encoder/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread
import numpy as np

from aggml.models.arguments import flag, integer, one_text, sequences_of, text_list
from aggml.models.model import LONG_TEXT, Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml import Backend
    from aggml.models.encoder.encoder import Encoder
    from aggml.models.encoder.packing import F32
    from aggml.models.model import TokenIds
    from aggml.models.tokenizers import Vocabulary

__all__ = ["EncoderModel"]


class EncoderModel(Model):
    """A model like BERT: `load` returns it for such an architecture.

    ``async with aggml.models.load("model.gguf") as model: await model.embed(["a text"])``

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: tokens that a text may have.
    """

    def __init__(
        self, encoder: Encoder, tokenizer: Vocabulary | None, *, owned: Backend | None = None
    ) -> None:
        self.architecture = encoder.model.architecture
        self.ctx = encoder.model.context_length
        super().__init__(encoder, tokenizer, owned)
        self._encoder = encoder

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return self._encoder.model.width

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return self._encoder.vocabulary

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.width} elements"
        return f"<EncoderModel {self.architecture}, ctx {self.ctx}, {state}>"

    async def embed(
        self, texts: Sequence[str], *, dimensions: int | None = None, normalize: bool | None = None
    ) -> F32:
        """A vector for each text; a text longer than ``ctx`` tokens is cut.

        Args:
            texts: any number of texts.
            dimensions: keep only the first so many elements, if the model was trained for that.
            normalize: whether vectors have length 1; None: as the file says, yes by default.

        Returns:
            float32 (len(texts), width).

        Raises:
            InvalidArgument: ``texts`` is no list of texts; ``dimensions`` is not within 1 and the
                width.
            ModelError: the file has no vocabulary.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed")
        wanted = self._dimensions("embed", dimensions), self._normalize("embed", normalize)
        ids = await self._encoded(text_list("embed", "texts", texts))
        cut = [x if len(x) <= self.ctx else [*x[: self.ctx - 1], x[-1]] for x in ids]
        return await self._vectors("embed", cut, *wanted)

    async def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> F32:
        """`embed` for texts that are given as token ids, with those that begin and end a text.

        Raises:
            InvalidArgument: a text without tokens, an id that is not in the vocabulary; arguments
                as for `embed`.
            ModelError: a text longer than ``ctx``.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed_ids")
        wanted = self._dimensions("embed_ids", dimensions), self._normalize("embed_ids", normalize)
        ids = sequences_of("embed_ids", "sequences", sequences, self.vocabulary_size)
        return await self._vectors("embed_ids", ids, *wanted)

    def _dimensions(self, what: str, given: int | None) -> int:
        return self.width if given is None else integer(what, "dimensions", given, 1, self.width)

    def _normalize(self, what: str, given: bool | None) -> bool:
        return self._encoder.model.normalize if given is None else flag(what, "normalize", given)

    async def _vectors(
        self, what: str, sequences: Sequence[Sequence[int]], dimensions: int, normalize: bool
    ) -> F32:
        with self._open(what):
            found = await self._encoder.vectors([np.asarray(x, np.int32) for x in sequences])
        found = found[:, :dimensions]
        if normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return found

    async def rerank(self, query: str, documents: Sequence[str]) -> F32:
        """How well each document answers the query: float32 (len(documents),), greater is better.

        The scores are the numbers of the rank head as they are, and may be below 0. A document that
        has more than ``ctx`` tokens together with the query is cut.

        Raises:
            InvalidArgument: ``query`` is no text, ``documents`` no list of texts.
            ModelError: the file has no rank head (``cls.output``); no vocabulary.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("rerank")
        asked = one_text("rerank", "query", query)
        texts = text_list("rerank", "documents", documents)
        words = self.tokenizer
        if len(asked) * len(texts) + sum(map(len, texts)) <= LONG_TEXT:
            pairs = [words.encode_pair(asked, text) for text in texts]
        else:
            pairs = await anyio.to_thread.run_sync(
                lambda: [words.encode_pair(asked, text) for text in texts]
            )
        cut = [x if len(x) <= self.ctx else [*x[: self.ctx - 1], x[-1]] for x in pairs]
        return await self.rerank_ids(cut)

    @property
    def ranks(self) -> bool:
        """Whether the file has a rank head, so that `rerank` works."""
        return self._encoder.ranks

    async def rerank_ids(self, pairs: Sequence[TokenIds]) -> F32:
        """`rerank` for pairs that are given as token ids, from ``tokenizer.encode_pair``.

        Raises:
            InvalidArgument: a pair without tokens, an id that is not in the vocabulary.
            ModelError: the file has no rank head; a pair longer than ``ctx``.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("rerank_ids")
        ids = sequences_of("rerank_ids", "pairs", pairs, self.vocabulary_size)
        with self._open("rerank_ids"):
            return await self._encoder.scores([np.asarray(x, np.int32) for x in ids])
