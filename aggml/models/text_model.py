"""TextModel: a model that continues text: logits, generation, vectors.

Here: the public object, the slots of concurrent generations. Not here: loading (loading.py), one
generation (token_stream.py), the steps (decoder/), the tokenizers (tokenizers/).
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

from aggml import InvalidArgument, InvalidState, Unsupported
from aggml.models.arguments import (
    flag,
    integer,
    number,
    prompt_of,
    sequences_of,
    stop_ids_of,
    text_list,
    token_ids,
)  # fmt: skip
from aggml.models.chat.template import ChatTemplate
from aggml.models.decoder.sampling import Sampler
from aggml.models.model import Model
from aggml.models.token_stream import TokenStream
from aggml.stream.reactor import current_task
from aggml.stream.slot_pool import SlotPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from aggml.models.decoder.decoder import F32
    from aggml.models.decoder.interface import Decoding
    from aggml.models.model import Closing, TokenIds
    from aggml.models.tokenizers import Vocabulary

__all__ = ["TextModel"]

# Seconds to wait for a slot that a generation of the same task has. The generation may be inside a
# generator of the program that was left and that its event loop has still to finish: that takes
# some turns of the loop, or as long as its `finally` takes. The first wait comes before Python's
# collector is asked, because a generation in a cycle of references ends only then.
AT_ONCE: Final = 0.02
PATIENCE: Final = 1.0


class TextModel(Model):
    """A model that continues text: `load` returns it for such an architecture.

    ``async with aggml.models.load("model.gguf") as model: ...``

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: positions that a sequence may have, prompt and answer together.
        slots: sequences at a time; further generations wait, first come, first served.
        asked_ctx: the ``ctx`` that `load` was given, before it was rounded up; None: as ``ctx``.
    """

    asked_ctx: int | None = None

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
        self._pool = SlotPool(self.slots)
        self._holders: dict[int, weakref.ref[object] | None] = {}  # slot: the task that uses it
        self._fed: dict[int, list[int]] = {}  # free slot: the tokens that its caches hold

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
        used = self.slots - self._pool.free
        state = "closed" if self._closed else f"{used} of {self.slots} slots"
        rounded = "" if self.asked_ctx in (None, self.ctx) else f" ({self.asked_ctx} rounded up)"
        return f"<TextModel {self.architecture}, ctx {self.ctx}{rounded}, {state}>"

    async def logits(self, ids: TokenIds) -> F32:
        """The logits after each token of a sequence.

        Args:
            ids: token ids, at least one, at most ``ctx``.

        Returns:
            float32 (len(ids), vocabulary).

        Raises:
            InvalidArgument: no token, or an id that is not in the vocabulary.
            ModelError: more tokens than ``ctx``.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("logits")
        tokens = token_ids("logits", "ids", ids, self.vocabulary_size)
        async with _Slot(self, "logits") as slot:
            return await self._decoder.logits(tokens, slot)

    def generate(  # type: ignore[override]  # its options by name
        self,
        prompt: str | TokenIds,
        *,
        max_tokens: int = 24,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.0,
        seed: int | None = None,
        stop_ids: Sequence[int] | None = None,
        reuse_prefix: bool = False,
    ) -> TokenStream:
        """Continue a prompt, token by token: ``async for token in model.generate(...)``.

        Leaving the loop early, by ``break`` or an exception, ends the generation.

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
            reuse_prefix: keep what is computed, so that a later prompt that begins with the same
                tokens, such as the next turn of a conversation, computes only its new tokens. The
                numbers may differ in their last bits from those of the whole prompt. Models with
                recurrent states compute the whole prompt.

        Returns:
            An asynchronous iterator: each token as soon as it is known. Why the text ended is in
            its ``finish_reason``, and in that of the last token.

        Raises:
            InvalidArgument: an argument of another type or out of its range; an empty prompt, an id
                that is not in the vocabulary. An argument raises here, the empty text by the first
                token.
            ModelError: text without a vocabulary. By the first token: the prompt is longer than
                ``ctx``. By any token: all logits are NaN or -inf.
            InvalidState: the model is closed.

        Cancellation, and closing the generator: aborts the running step and frees the slot.
        """
        self._check_open("generate")
        given = prompt_of("generate", prompt, self.vocabulary_size)
        if isinstance(given, str):
            _ = self.tokenizer  # raises if there is none
        elif not given:
            raise InvalidArgument("[generate] prompt is empty, there must be at least one token")
        return TokenStream(
            self, given, _sampler(temperature, top_k, top_p, min_p, seed),
            max_tokens=integer("generate", "max_tokens", max_tokens, 0),
            ends=self._ends() if stop_ids is None
            else stop_ids_of("generate", stop_ids, self.vocabulary_size),
            reuse=flag("generate", "reuse_prefix", reuse_prefix),
        )  # fmt: skip

    async def embed(self, texts: Sequence[str]) -> F32:
        """A vector for each text, scaled to length 1.

        It is made of hidden states, the normalised outputs of the last layer, as the file says in
        its ``pooling_type``: their mean over all tokens, or that of the first or of the last token.
        If the file says nothing it is the mean.

        Args:
            texts: each of them must have at least one token.

        Returns:
            float32 (len(texts), width).

        Raises:
            InvalidArgument: ``texts`` is no list of texts.
            ModelError: no vocabulary; a text longer than ``ctx``.
            Unsupported: the file's ``pooling_type`` is 4, scores of a reranker.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed")
        return await self._vectors(await self._encoded(text_list("embed", "texts", texts)), "embed")

    async def embed_ids(self, sequences: Sequence[TokenIds]) -> F32:
        """`embed` for texts that are given as token ids.

        Args:
            sequences: token ids of each, at least one.

        Returns:
            float32 (len(sequences), width).

        Raises:
            InvalidArgument: ``sequences`` is no list of lists of ids in the vocabulary.
            ModelError, Unsupported, InvalidState: as `embed`.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("embed_ids")
        ids = sequences_of("embed_ids", "sequences", sequences, self.vocabulary_size)
        return await self._vectors(ids, "embed_ids")

    async def _vectors(self, sequences: Sequence[Sequence[int]], what: str) -> F32:
        pooling = self._decoder.model.pooling
        if pooling == "rank":
            raise Unsupported(
                f"[{what}] the file's {self.architecture}.pooling_type is 4 (rank): it gives "
                "scores, and no vectors"
            )
        found = np.empty((len(sequences), self.width), np.float32)
        for i, ids in enumerate(sequences):
            async with _Slot(self, what) as slot:
                hidden = await self._decoder.hidden(list(ids), slot)
            if pooling == "mean":
                vector = hidden.mean(axis=0)
            else:
                vector = hidden[0 if pooling == "cls" else -1]
            found[i] = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return found

    # -- slots

    async def _take(self, prompt: Sequence[int] | None = None) -> tuple[int, int]:
        """A free slot; waits until there is one.

        Args:
            prompt: to be computed after its beginning that a slot holds; None: from its first token
                on.

        Returns:
            The slot, and how many first tokens of the prompt its caches hold.

        Raises:
            InvalidState: the current task itself holds all slots, so it would wait for ever.
        """
        wanted = None if prompt is None else self._longest(prompt)
        task = current_task()
        slot: int | None = None
        if self._has_all(task):
            with anyio.move_on_after(AT_ONCE):
                slot = await self._pool.take(wanted)
            if slot is None:
                gc.collect()
                with anyio.move_on_after(PATIENCE):
                    slot = await self._pool.take(wanted)
            if slot is None and self._has_all(task):
                raise InvalidState(
                    f"[TextModel] a generation under way in this task has all {self.slots} "
                    f"sequences of the model: load it with slots={self.slots + 1}, or let it end "
                    "first"
                )
        if slot is None:
            slot = await self._pool.take(wanted)
        self._keep(slot)
        fed = self._fed.pop(slot, ())
        if self._closed:
            self._give(slot)
            self._check_open("TextModel")
        if prompt is None:
            return slot, 0
        common = _common(prompt, fed)
        return slot, self._decoder.reusable(min(common, len(prompt) - 1), len(fed))

    def _has_all(self, task: object | None) -> bool:
        holders = list(self._holders.values())
        return (
            task is not None
            and len(holders) == self.slots
            and all(x is not None and x() is task for x in holders)
        )

    def _longest(self, prompt: Sequence[int]) -> int | None:
        """The free slot that holds the longest beginning of a prompt."""
        held = [(_common(prompt, fed), slot) for slot, fed in list(self._fed.items())]
        return max(held, default=(0, None))[1]

    def _keep(self, slot: int) -> None:
        task = current_task()
        self._holders[slot] = None if task is None else weakref.ref(task)

    def _give(self, slot: int, fed: Sequence[int] = ()) -> None:
        """Give a slot back, from any thread.

        Args:
            slot: as `_take` gave it.
            fed: the tokens that its caches hold.
        """
        self._holders.pop(slot, None)
        if fed:
            self._fed[slot] = list(fed)
        self._pool.give(slot)

    async def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return (await self._encoded([prompt]))[0]

    def _ends(self) -> frozenset[int]:
        return frozenset() if self._tokenizer is None else self._tokenizer.ends

    def _bytes_of(self, token: int) -> bytes:
        return b"" if self._tokenizer is None else self._tokenizer.bytes_of(token)


class _Slot:
    """``async with``: a slot of a model for one computation.

    A class, because leaving the block must not depend on an event loop, see `SlotPool`.
    """

    def __init__(self, model: TextModel, what: str) -> None:
        self._model = model
        self._open = model._open(what)

    async def __aenter__(self) -> int:
        self._open.__enter__()
        try:
            self._slot, _ = await self._model._take()
        except BaseException as error:
            self._open.__exit__(type(error), error, error.__traceback__)
            raise
        return self._slot

    async def __aexit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._model._give(self._slot)
        self._open.__exit__(raised, error, trace)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first elements are equal."""
    n = min(len(one), len(other))
    return next((i for i in range(n) if one[i] != other[i]), n)


def _sampler(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None
) -> Sampler:
    """The sampler of one generation, from checked arguments."""
    place = "generate"
    return Sampler(
        temperature=number(place, "temperature", temperature, 0),
        top_k=integer(place, "top_k", top_k, 0),
        top_p=number(place, "top_p", top_p, 0, 1, above=True),
        seed=None if seed is None else integer(place, "seed", seed, 0),
        min_p=number(place, "min_p", min_p, 0, 1),
    )
