"""TextModel: a model that continues text: logits, generation, vectors.

Here: the public object, the slots of concurrent generations. Not here: loading (loading.py), the
steps (decoding/), the tokenizers (tokenizers/).
"""

from __future__ import annotations

import codecs
import contextlib
from typing import TYPE_CHECKING

import anyio
import numpy as np

from aggml import InvalidArgument, InvalidState
from aggml.models.decoding import generating
from aggml.models.decoding.sampling import Sampler
from aggml.models.model import Model, Token
from aggml.models.tokenizers.template import ChatTemplate
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from aggml.models.decoding.decoder import F32
    from aggml.models.decoding.interface import Decoding
    from aggml.models.model import Closing
    from aggml.models.tokenizers import Vocabulary

__all__ = ["TextModel"]


class TextModel(Model):
    """A model that continues text: `load` returns it for such an architecture.

    ``async with await aggml.models.load("model.gguf") as model: ...``

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: positions that a sequence may have, prompt and answer together.
        slots: sequences at a time; further generations wait, first come, first served.
    """

    def __init__(
        self,
        decoder: Decoding,
        tokenizer: Vocabulary | None,
        *,
        owned: Closing | None = None,
        template: Mapping[str, str] | None = None,
    ) -> None:
        self.architecture = decoder.model.architecture
        self.ctx = decoder.ctx
        self.slots = decoder.sequences
        super().__init__(decoder, tokenizer, owned)
        self._decoder = decoder
        self._template_source = template
        self._template: ChatTemplate | None = None
        self._free = list(range(self.slots))
        self._holders: dict[int, object] = {}  # slot: the task that uses it
        self._admission = anyio.Semaphore(self.slots)

    @property
    def template(self) -> ChatTemplate:
        """The chat template, from messages to text: ``model.template.render(messages)``.

        Raises:
            ModelError: the template cannot be read; jinja2 is not installed; no vocabulary.
        """
        if self._template is None:
            words = self.tokenizer
            names = {"bos_token": words.bos, "eos_token": words.eos}
            tokens = {k: "" if x is None else words.pieces[x] for k, x in names.items()}
            self._template = ChatTemplate(self._template_source, tokens)
        return self._template

    @property
    def width(self) -> int:
        """Elements of a vector of `embed`."""
        return self._decoder.model.width

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return self._decoder.vocabulary

    def __repr__(self) -> str:
        state = (
            "closed" if self._closed else f"{self.slots - len(self._free)} of {self.slots} slots"
        )
        return f"<TextModel {self.architecture}, ctx {self.ctx}, {state}>"

    async def logits(self, ids: Sequence[int]) -> F32:
        """The logits after each token of a sequence.

        Args:
            ids: token ids, at least one, at most ``ctx``.

        Returns:
            float32 (len(ids), vocabulary).

        Raises:
            InvalidArgument: no token, or an id that is not in the vocabulary.
            ModelError: more tokens than ``ctx``.

        Cancellation: aborts the computation; the model stays usable.
        """
        async with self._slot() as slot:
            return await self._decoder.logits(list(ids), slot)

    async def generate(  # type: ignore[override]  # its options by name
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 24,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.0,
        seed: int | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> AsyncGenerator[Token]:
        """Continue a prompt, token by token.

        Args:
            prompt: text, to which the tokens that begin and end a text are added as the model
                expects; or token ids, which are taken as they are.
            max_tokens: the most tokens to generate; a full context ends the generation, too.
            temperature: 0 takes the best token, among equal ones the first.
            top_k: draw among so many of the best tokens; 0: among all.
            top_p: draw among the best tokens whose probabilities add up to this.
            min_p: draw among tokens whose probability is at least this times that of the best.
            seed: of the draws; None: a different seed each time.
            stop_ids: tokens that end the text and are not yielded; None: those that the file names.

        Yields:
            Each token as soon as it is known.

        Raises:
            InvalidArgument: an empty prompt, an id that is not in the vocabulary, max_tokens < 0.
            ModelError: the prompt is longer than ``ctx``; text without a vocabulary.

        Cancellation, and closing the generator: aborts the running step and frees the slot.
        """
        if max_tokens < 0:
            raise InvalidArgument(f"[generate] max_tokens is {max_tokens}, must not be negative")
        ids = await self._ids(prompt)
        ends = frozenset(stop_ids) if stop_ids is not None else self._ends()
        sampler = Sampler(temperature, top_k, top_p, seed, min_p)
        n = min(max_tokens, self.ctx - len(ids) + 1)
        text = codecs.getincrementaldecoder("utf-8")("replace")
        async with self._slot() as slot:
            steps = generating.generate(
                self._decoder, ids, [sampler], n_predict=n, ends=ends, slot=slot
            )
            async with contextlib.aclosing(steps):
                made = 0
                async for (token,) in steps:
                    if token is None:
                        return
                    made += 1
                    piece = b"" if self._tokenizer is None else self._tokenizer.bytes_of(token)
                    yield Token(token, text.decode(piece, final=made == n))
                    self._holders[slot] = current_task()

    async def embed(self, texts: Sequence[str]) -> F32:
        """A vector for each text: the mean of its tokens' hidden states, scaled to length 1.

        A hidden state is the normalised output of the last layer.

        Args:
            texts: each of them must have at least one token.

        Returns:
            float32 (len(texts), width).

        Raises:
            ModelError: no vocabulary; a text longer than ``ctx``.

        Cancellation: aborts the computation; the model stays usable.
        """
        return await self.embed_ids(await self._encoded(texts))

    async def embed_ids(self, sequences: Sequence[Sequence[int]]) -> F32:
        """`embed` for texts that are given as token ids.

        Args:
            sequences: token ids of each, at least one.

        Returns:
            float32 (len(sequences), width).

        Cancellation: aborts the computation; the model stays usable.
        """
        found = np.empty((len(sequences), self.width), np.float32)
        for i, ids in enumerate(sequences):
            async with self._slot() as slot:
                mean = (await self._decoder.hidden(list(ids), slot)).mean(axis=0)
            found[i] = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return found

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncGenerator[int]:
        """A free slot for the time of the block; waits until there is one.

        Raises:
            InvalidState: the current task itself holds all slots, so it would wait for ever.
        """
        task = current_task()
        if not self._free and all(x is task for x in self._holders.values()):
            raise InvalidState(
                f"[TextModel] a generation under way in this task has all {self.slots} sequences "
                f"of the model: load it with slots={self.slots + 1}, or let it end first"
            )
        async with self._admission:
            self._check_open("TextModel")
            slot = self._free.pop(0)
            self._holders[slot] = task
            try:
                yield slot
            finally:
                del self._holders[slot]
                self._free.append(slot)

    async def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return (await self._encoded([prompt]))[0]

    def _ends(self) -> frozenset[int]:
        return frozenset() if self._tokenizer is None else self._tokenizer.ends
