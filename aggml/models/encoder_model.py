"""EncoderModel: a model like BERT, from texts to vectors and from query and document to scores.

Here: the public object. Not here: loading (loading.py), sharing batches (engine/batches.py), the
computation (encoder/).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.to_thread
import numpy as np

from aggml import AggmlError
from aggml.models.adapters.stacks import choice_of
from aggml.models.arguments import (
    flag,
    integer,
    one_text,
    sequences_of,
    text_list,
    urgency_of,
)  # fmt: skip
from aggml.models.encoder.sparse import weights_of_terms, weights_of_tokens
from aggml.models.engine.batches import BatchEngine
from aggml.models.engine.requests import Counters
from aggml.models.errors import ModelError
from aggml.models.lifetime import closed_error
from aggml.models.model import LONG_TEXT, Model
from aggml.models.tokenizers.roles import CONTROL, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.encoder.encoder import Encoder
    from aggml.models.encoder.graph import Kind
    from aggml.models.encoder.packing import F32, Ids
    from aggml.models.model import Closing, TokenIds
    from aggml.models.tokenizers import Vocabulary

__all__ = ["EncoderModel"]

MOST_WAITING: Final = 1 << 16  # texts of tasks that wait at a time; more are refused


@dataclass(eq=False, slots=True)
class _Text:
    """A request: token ids, and what is made of them."""

    ids: Ids
    kind: Kind

    def __len__(self) -> int:
        return len(self.ids)


class EncoderModel(Model):
    """A model like BERT: `load` returns it for such an architecture.

    ``async with aggml.models.load("model.gguf") as model: await model.embed(["a text"])``

    Texts of all tasks, threads and event loops are computed together: many tasks with one text each
    are as fast as one call with many texts.

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: tokens that a text may have.
        prompts, prompt: of the folder, as of `Model`.
        labels: the names of the numbers of `classify`; empty: the file has no rank head.
        counters: counts of past batches: ``steps``, ``prompt_tokens``, ...
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: Vocabulary | None,
        *,
        owned: Closing | None = None,
        prompts: Mapping[str, str] | None = None,
        prompt: str | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.architecture: str = encoder.model.architecture
        self.ctx: int = encoder.model.context_length
        super().__init__(encoder, tokenizer, owned, prompts, prompt)
        self.labels: tuple[str, ...] = tuple(labels)
        self._encoder = encoder
        self.counters: Counters = Counters()
        self._batches: BatchEngine[_Text, F32] = BatchEngine(
            self._compute, full=encoder.full, max_waiting=MOST_WAITING, at_once=2,
            enough=encoder.enough,
        )  # fmt: skip

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
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: str | None = None,
    ) -> F32:
        """A vector for each text; a text longer than ``ctx`` tokens is cut.

        If the file asks for no pooling, the result is that of `embed_multi`.

        Args:
            texts: any number of texts.
            dimensions: keep only the first so many elements, if the model was trained for that.
            normalize: whether vectors have length 1; None: as the file says, yes by default.
            priority: requests of higher ones are computed first.
            deadline: seconds from now, in which the result is needed.
            prompt: the name of one of ``prompts``, which is put before each text; None: the one
                that the folder names as its default, if any.
            adapter: None: encoders take no adapters.

        Returns:
            float32 (len(texts), width).

        Raises:
            InvalidArgument: ``texts`` is no list of texts; ``dimensions`` is not within 1 and the
                width; there is no such prompt; an adapter is named.
            DeadlineError: the deadline cannot be met, or has passed.
            EngineError: the computation failed; the cause is attached.
            ModelError: the file has no vocabulary.
            InvalidState: the model is closed.

        Cancellation: takes the texts back; the model stays usable.
        """
        place = "embed"
        self._check_open(place)
        choice_of(place, None, adapter)
        wanted = self._dimensions(place, dimensions), self._normalize(place, normalize)
        when = urgency_of(place, priority, deadline)
        ids = await self._tokens(place, texts, prompt)
        return await self._vectors(place, ids, *wanted, *when)

    async def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32:
        """`embed` for texts that are given as token ids, with those that begin and end a text.

        Raises:
            InvalidArgument: a text without tokens, an id that is not in the vocabulary; arguments
                as for `embed`.
            DeadlineError, EngineError: as for `embed`.
            ModelError: a text longer than ``ctx``.
            InvalidState: the model is closed.

        Cancellation: takes the texts back; the model stays usable.
        """
        place = "embed_ids"
        self._check_open(place)
        wanted = self._dimensions(place, dimensions), self._normalize(place, normalize)
        when = urgency_of(place, priority, deadline)
        ids = sequences_of(place, "sequences", sequences, self.vocabulary_size)
        return await self._vectors(place, ids, *wanted, *when)

    async def embed_multi(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
    ) -> list[F32]:
        """The vectors of all tokens of each text; a text longer than ``ctx`` tokens is cut.

        If the file has a head for them (ColBERT), they are its results; of bge-m3's without the
        first token.

        Args:
            texts: any number of texts.
            normalize: whether each vector has length 1.
            priority: as for `embed`.
            deadline: as for `embed`.
            prompt: as for `embed`.

        Returns:
            For each text float32 (tokens, width), the width of the head if there is one.

        Raises:
            InvalidArgument, DeadlineError, EngineError, ModelError, InvalidState: as for `embed`.

        Cancellation: takes the texts back; the model stays usable.
        """
        place = "embed_multi"
        self._check_open(place)
        unit = flag(place, "normalize", normalize)
        when = urgency_of(place, priority, deadline)
        ids = await self._tokens(place, texts, prompt)
        kind = self._encoder.multi
        found = await self._results(place, ids, kind, *when)
        if kind == "multi":
            found = [x[self._encoder.model.multi_left_out :] for x in found]
        return [_unit(x) for x in found] if unit else found

    @property
    def has_terms(self) -> bool:
        """Whether the file has a head for weights of words, so that `embed_sparse` works."""
        return self._encoder.sparse is not None

    async def embed_sparse(
        self,
        texts: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
    ) -> list[dict[int, float]]:
        """The weights of words of each text; a text longer than ``ctx`` tokens is cut.

        With a head that predicts masked words (SPLADE) the weight of a word of the vocabulary is
        log(1 + x), x the largest number that any token of the text has for it, and words count that
        are not in the text. With one number for each token (bge-m3) it is the largest number of the
        tokens that are this word; tokens around a text and unknown ones have none.

        Args:
            texts: any number of texts.
            priority: as for `embed`.
            deadline: as for `embed`.
            prompt: as for `embed`.

        Returns:
            For each text the weights above 0 by token id, in order of the ids.

        Raises:
            InvalidArgument, DeadlineError, EngineError, ModelError, InvalidState: as for `embed`.
            Unsupported: the file has no such head (`has_terms`).

        Cancellation: takes the texts back; the model stays usable.
        """
        place = "embed_sparse"
        self._check_open(place)
        when = urgency_of(place, priority, deadline)
        ids = await self._tokens(place, texts, prompt)
        return await self._terms(place, ids, *when)

    async def embed_sparse_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[dict[int, float]]:
        """`embed_sparse` for texts that are given as token ids.

        Raises:
            InvalidArgument: a text without tokens, an id that is not in the vocabulary.
            DeadlineError, EngineError: as for `embed`.
            ModelError: a text longer than ``ctx``.
            Unsupported: the file has no such head.
            InvalidState: the model is closed.

        Cancellation: takes the texts back; the model stays usable.
        """
        place = "embed_sparse_ids"
        self._check_open(place)
        when = urgency_of(place, priority, deadline)
        ids = sequences_of(place, "sequences", sequences, self.vocabulary_size)
        return await self._terms(place, ids, *when)

    async def _terms(
        self,
        what: str,
        sequences: Sequence[Sequence[int]],
        priority: int,
        deadline: float | None,
    ) -> list[dict[int, float]]:
        kind = self._encoder.sparse
        if kind is None:
            raise self._cannot(
                what, "has no head for weights of words: load a folder or a file with one"
            )
        found = await self._results(what, sequences, kind, priority, deadline)
        if kind == "weights":
            left_out = self._marks()
            pairs = zip(sequences, found, strict=True)
            return [weights_of_tokens(ids, values, left_out) for ids, values in pairs]
        model = self._encoder.model
        logs = model.term_logs if model.term_pooling == "max" else 0
        return await anyio.to_thread.run_sync(lambda: [weights_of_terms(x, logs) for x in found])

    def _marks(self) -> set[int]:
        """Tokens that mark something and are no words."""
        words = self._tokenizer
        kinds = () if words is None else words.kinds
        return {i for i, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN)}

    def _dimensions(self, what: str, given: int | None) -> int:
        return self.width if given is None else integer(what, "dimensions", given, 1, self.width)

    def _normalize(self, what: str, given: bool | None) -> bool:
        return self._encoder.model.normalize if given is None else flag(what, "normalize", given)

    async def _tokens(self, what: str, texts: Sequence[str], prompt: str | None) -> list[list[int]]:
        """Token ids of texts, the prompt before each, cut to the context."""
        given = self._put_prompts(what, text_list(what, "texts", texts), prompt)
        return [self._cut(ids) for ids in await self._encode_texts(given)]

    def _cut(self, ids: list[int]) -> list[int]:
        return ids if len(ids) <= self.ctx else [*ids[: self.ctx - 1], ids[-1]]

    async def _vectors(
        self,
        what: str,
        sequences: Sequence[Sequence[int]],
        dimensions: int,
        normalize: bool,
        priority: int,
        deadline: float | None,
    ) -> F32:
        if self._encoder.model.pooling == "none":
            every = await self._results(what, sequences, "tokens", priority, deadline)
            return cast("F32", [x[:, :dimensions] for x in every])
        whole = dimensions == self.width
        kind: Kind = "unit" if whole and normalize else "pooled"
        vectors = await self._results(what, sequences, kind, priority, deadline)
        if len(vectors) == 1 and vectors[0].base is None:
            found = vectors[0]
        else:  # copied, because a view would keep the vectors of other tasks
            found = np.concatenate(vectors) if vectors else np.empty((0, self.width), np.float32)
        if whole:
            return found
        return _unit(found[:, :dimensions]) if normalize else found[:, :dimensions]

    async def _results(
        self,
        what: str,
        sequences: Sequence[Sequence[int]],
        kind: Kind,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[F32]:
        for ids in sequences:
            self._encoder.check(ids)
        texts = [_Text(np.array(ids, np.int32), kind) for ids in sequences]
        try:
            return await self._batches.submit_all(texts, priority, deadline, what)
        except AggmlError as error:
            if self._closed:
                raise closed_error(what) from error
            raise

    async def _compute(self, texts: list[_Text]) -> list[F32]:
        """The results of a batch; texts of which the same is asked are computed together."""
        kinds: dict[Kind, list[int]] = {}
        for i, text in enumerate(texts):
            kinds.setdefault(text.kind, []).append(i)
        found: list[Any] = [None] * len(texts)
        counters = self.counters
        for kind, numbers in kinds.items():
            begin = time.perf_counter()
            sequences = [texts[i].ids for i in numbers]
            results = await self._encoder.compute(sequences, kind)
            for i, result in zip(numbers, results, strict=True):
                found[i] = result
            sizes = [*map(len, sequences)]
            counters.steps += 1
            counters.sequences += len(sizes)
            counters.prompt_tokens += sum(sizes)
            counters.longest = max(counters.longest, *sizes)
            counters.prompt_seconds += time.perf_counter() - begin
        return found

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32:
        """How well each document answers the query: float32 (len(documents),), greater is better.

        The scores are the numbers of the rank head as they are, and may be below 0. A document that
        has more than ``ctx`` tokens together with the query is cut.

        Args:
            query: a text.
            documents: any number of texts.
            priority: as for `embed`.
            deadline: as for `embed`.

        Raises:
            InvalidArgument: ``query`` is no text, ``documents`` no list of texts.
            DeadlineError, EngineError: as for `embed`.
            ModelError: the file has no rank head (``cls.output``); no vocabulary.
            InvalidState: the model is closed.

        Cancellation: takes the documents back; the model stays usable.
        """
        self._check_open("rerank")
        when = urgency_of("rerank", priority, deadline)
        asked = one_text("rerank", "query", query)
        texts = text_list("rerank", "documents", documents)
        words = self.tokenizer
        if len(asked) * len(texts) + sum(map(len, texts)) <= LONG_TEXT:
            pairs = [words.encode_pair(asked, text) for text in texts]
        else:
            pairs = await anyio.to_thread.run_sync(
                lambda: [words.encode_pair(asked, text) for text in texts]
            )
        return await self._scores("rerank", [self._cut(ids) for ids in pairs], *when)

    @property
    def ranks(self) -> bool:
        """Whether the file has a rank head, so that `rerank` works."""
        return self._encoder.ranks > 0

    def encode_pair(self, query: str, document: str, *, most: int | None = None) -> list[int]:
        """The tokens of a query and a document for `rerank_ids`.

        Args:
            query: a text.
            document: a text.
            most: the pair is cut to so many tokens, whose last one stays; None: however many.

        Raises:
            InvalidArgument: ``most`` is no number of tokens.
            ModelError: the file has no vocabulary.
        """
        ids = self.tokenizer.encode_pair(query, document)
        n = len(ids) if most is None else integer("encode_pair", "most", most, 1)
        return ids if len(ids) <= n else [*ids[: n - 1], ids[-1]]

    async def rerank_ids(
        self,
        pairs: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32:
        """`rerank` for pairs that are given as token ids, from `encode_pair`.

        Raises:
            InvalidArgument: a pair without tokens, an id that is not in the vocabulary.
            DeadlineError, EngineError: as for `embed`.
            ModelError: the file has no rank head; a pair longer than ``ctx``.

        Cancellation: takes the pairs back; the model stays usable.
        """
        self._check_open("rerank_ids")
        when = urgency_of("rerank_ids", priority, deadline)
        ids = sequences_of("rerank_ids", "pairs", pairs, self.vocabulary_size)
        return await self._scores("rerank_ids", ids, *when)

    async def classify(
        self, texts: Sequence[str], *, priority: int = 0, deadline: float | None = None
    ) -> F32:
        """The numbers of the rank head for each text, one for each of `labels`, as they are.

        Args:
            texts: any number of texts; one longer than ``ctx`` tokens is cut.
            priority: as for `embed`.
            deadline: as for `embed`.

        Returns:
            float32 (len(texts), len(labels)).

        Raises:
            InvalidArgument: ``texts`` is no list of texts.
            DeadlineError, EngineError: as for `embed`.
            ModelError: the file has no rank head; no vocabulary.
            InvalidState: the model is closed.

        Cancellation: takes the texts back; the model stays usable.
        """
        self._check_open("classify")
        when = urgency_of("classify", priority, deadline)
        found = await self._encode_texts(text_list("classify", "texts", texts))
        ids = [self._cut(x) for x in found]
        return await self._numbers("classify", ids, *when)

    async def classify_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32:
        """`classify` for texts, or pairs from `encode_pair`, that are given as token ids.

        Raises:
            InvalidArgument: a sequence without tokens, an id that is not in the vocabulary.
            DeadlineError, EngineError: as for `embed`.
            ModelError: the file has no rank head; a sequence longer than ``ctx``.

        Cancellation: takes the sequences back; the model stays usable.
        """
        self._check_open("classify_ids")
        when = urgency_of("classify_ids", priority, deadline)
        ids = sequences_of("classify_ids", "sequences", sequences, self.vocabulary_size)
        return await self._numbers("classify_ids", ids, *when)

    async def _scores(
        self, what: str, pairs: Sequence[Sequence[int]], priority: int, deadline: float | None
    ) -> F32:
        return (await self._numbers(what, pairs, priority, deadline))[:, 0]

    async def _numbers(
        self, what: str, sequences: Sequence[Sequence[int]], priority: int, deadline: float | None
    ) -> F32:
        if not self.ranks:
            raise ModelError(f"[{what}] the file has no rank head (cls.weight, cls.output.weight)")
        found = await self._results(what, sequences, "rank", priority, deadline)
        return np.array(found, np.float32).reshape(len(found), len(self.labels))


def _unit(vectors: F32) -> F32:
    """Vectors of length 1."""
    # What np.linalg.norm computes, without its questions, which take 10 us even for one vector.
    length = np.sqrt(np.add.reduce(vectors * vectors, axis=1, keepdims=True))
    return cast("F32", vectors / np.maximum(length, np.float32(1e-12)))
