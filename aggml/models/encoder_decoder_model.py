"""EncoderDecoderModel: a model like T5, from two texts to logits, and from texts to vectors.

Here: the public object. Not here: the computation (encoder_decoder.py), loading (loading.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import flag, integer, sequences_of, text_list, token_ids
from aggml.models.errors import ModelError
from aggml.models.model import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.encoder_decoder import EncoderDecoder
    from aggml.models.model import F32, Closing, Mixed, TokenIds
    from aggml.models.tokenizers import Vocabulary

__all__ = ["EncoderDecoderModel"]


class EncoderDecoderModel(Model):
    """A model like T5: `load` returns it for the architectures t5 and t5encoder.

    ``logits = await model.logits(ids, decoder_ids)``; a decoded text begins with ``start``.

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: tokens that each text may have.
        start: the token with which a decoded text begins.
    """

    def __init__(
        self,
        computer: EncoderDecoder,
        tokenizer: Vocabulary | None,
        *,
        owned: Closing | None = None,
    ) -> None:
        self.architecture: str = computer.model.architecture
        self.ctx: int = computer.model.context_length
        self.start: int = computer.model.start
        super().__init__(computer, tokenizer, owned)
        self._both = computer

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return self._both.model.width

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return self._both.vocabulary

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.width} elements"
        return f"<EncoderDecoderModel {self.architecture}, ctx {self.ctx}, {state}>"

    async def logits(self, ids: TokenIds | Mixed, decoder_ids: TokenIds | None = None) -> F32:
        """The logits after each token of the decoded text, float32 (len(decoder_ids), vocabulary).

        Args:
            ids: of the text that the encoder reads.
            decoder_ids: of the text that the decoder writes, so far; None: ``start`` alone.

        Raises:
            InvalidArgument: there are no tokens, or an id is not in the vocabulary.
            ModelError: a text has more than ``ctx`` tokens.
            Unsupported: the model has no decoder.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("logits")
        if not self._both.model.decoder_layers:
            raise self._cannot("logits", "has no decoder")
        given = [self.start] if decoder_ids is None else decoder_ids
        read = token_ids("logits", "ids", ids, self.vocabulary_size)
        written = token_ids("logits", "decoder_ids", given, self.vocabulary_size)
        for name, one in (("ids", read), ("decoder_ids", written)):
            if not one:
                raise InvalidArgument(f"[logits] {name} has no tokens, expected was at least one")
        self._check_lengths([read, written])
        with self._open("logits"):
            return await self._both.compute(read, written)

    def _check_lengths(self, sequences: Sequence[Sequence[int]]) -> None:
        most = max(map(len, sequences), default=0)
        if most > self.ctx:
            raise ModelError(f"a text has {most} tokens, but this model takes at most {self.ctx}")

    async def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        prompt: str | None = None,
    ) -> F32:
        """A vector for each text, pooled of the encoder's results as the file says.

        Args:
            texts: any number of texts, of at most ``ctx`` tokens each.
            dimensions: keep only the first so many elements.
            normalize: whether vectors have length 1.
            prompt: as of `EncoderModel.embed`.

        Returns:
            float32 (len(texts), dimensions or width).

        Raises:
            InvalidArgument: ``texts`` is no list of texts; there is no such prompt.
            ModelError: a text is too long; the file has no vocabulary; it says that vectors of
                tokens make no vector of a text.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed")
        given = self._put_prompts("embed", text_list("embed", "texts", texts), prompt)
        ids = await self._encode_texts(given)
        return await self.embed_ids(ids, dimensions=dimensions, normalize=normalize)

    async def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> F32:
        """`embed` for texts that are given as token ids.

        Raises:
            InvalidArgument, ModelError, InvalidState: as of `embed`.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed_ids")
        unit = flag("embed_ids", "normalize", normalize)
        width = self.width
        if dimensions is not None:
            width = integer("embed_ids", "dimensions", dimensions, 1, self.width)
        ids = sequences_of("embed_ids", "sequences", sequences, self.vocabulary_size)
        self._check_lengths(ids)
        pooling = self._both.model.pooling
        if pooling == "none":
            raise ModelError("the file says that a text has no vector: use embed_multi")
        found = np.empty((len(ids), width), np.float32)
        for i, every in enumerate(await self._vectors("embed_ids", ids)):
            one = {"mean": every.mean(0), "cls": every[0], "last": every[-1]}[pooling][:width]
            found[i] = one / max(float(np.linalg.norm(one)), 1e-12) if unit else one
        return found

    async def embed_multi(self, texts: Sequence[str], *, normalize: bool = False) -> list[F32]:
        """The vectors of all tokens of each text, by the encoder.

        Args:
            texts: as of `embed`.
            normalize: whether each vector has length 1.

        Returns:
            For each text float32 (tokens, width).

        Raises:
            InvalidArgument, ModelError, InvalidState: as of `embed`.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed_multi")
        unit = flag("embed_multi", "normalize", normalize)
        ids = await self._encode_texts(text_list("embed_multi", "texts", texts))
        self._check_lengths(ids)
        found = await self._vectors("embed_multi", ids)
        if not unit:
            return found
        return [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in found]

    async def _vectors(self, what: str, sequences: Sequence[Sequence[int]]) -> list[F32]:
        with self._open(what):
            return [await self._both.compute(ids) for ids in sequences]
