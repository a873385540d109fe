"""Model: the interface of every model that `load` returns. What one cannot do raises Unsupported.

A model may be used from any event loop and any thread.

Here: the interface, closing. Not here: models that continue text (text_model.py), that make vectors
(encoder_model.py), that write what is said (speech_model.py).
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.to_thread

from aggml import AggmlError, InvalidArgument, InvalidState, Unsupported
from aggml.models.arguments import show
from aggml.models.errors import ModelError
from aggml.models.lifetime import Lifetime, closed_error
from aggml.models.memory import Memory, measure
from aggml.models.token_stream import FinishReason, Token, TokenStream
from aggml.process import html

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        Iterable,
        Mapping,
        Sequence,
    )  # fmt: skip

    import numpy as np
    import numpy.typing as npt

    from aggml.models.chat.answers import ChatStream
    from aggml.models.chat.messages import ChatMessage
    from aggml.models.chat.template import ChatTemplate
    from aggml.models.speech import Segment
    from aggml.models.tokenizers import Vocabulary

    F32 = npt.NDArray[np.float32]
    TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]
    Pixels = npt.NDArray[np.uint8] | bytes | str
    Mixed = Sequence[str | TokenIds | Pixels]

__all__ = ["LONG_TEXT", "Closing", "Computer", "FinishReason", "Model", "Token"]

LONG_TEXT = 2000  # characters; longer texts take over 0.5 ms, so a thread tokenizes them


class Closing(Protocol):
    """What a model owns and closes with itself: a backend, or stages on other machines."""

    async def aclose(self) -> None:
        """Close the backend or the stages."""
        ...


class Computer(Protocol):
    """The part of a model that computes: a decoder or an encoder.

    Attributes:
        lifetime: closed by `close`; frees the memory when no task is using it.
    """

    lifetime: Lifetime

    def close(self) -> None:
        """Free weights, caches and graphs, as soon as no task is building or queueing a step."""
        ...


class Model(ABC):
    """A model: ``async with aggml.models.load("model.gguf") as model: ...``.

    Attributes:
        architecture: as the file names it.
        ctx: tokens that a sequence may have.
        prompts: what a folder of sentence-transformers puts before texts of which vectors are made,
            by name; often "query" and "document".
        prompt: the name of the prompt that is used if the caller names none; None: none is.
    """

    architecture: str
    ctx: int
    prompts: dict[str, str]
    prompt: str | None

    def __init__(
        self,
        computer: Computer,
        tokenizer: Vocabulary | None,
        owned: Closing | None,
        prompts: Mapping[str, str] | None = None,
        prompt: str | None = None,
    ) -> None:
        self.prompts, self.prompt = dict(prompts or {}), prompt
        self._computer = computer
        self._tokenizer = tokenizer
        self._owned = owned
        self._closed = False
        self._process = os.getpid()

    @property
    def tokenizer(self) -> Vocabulary:
        """Text to token ids and back: ``encode``, ``decode``.

        Raises:
            ModelError: the file has no vocabulary.
        """
        if self._tokenizer is None:
            raise ModelError("the file has no vocabulary: give token ids instead of text")
        return self._tokenizer

    def _repr_html_(self) -> str:
        """For notebooks: what it is, and the memory that it takes."""
        rows: list[tuple[str, object]] = [("architecture", self.architecture)]
        rows += [
            (name, getattr(self, name))
            for name in ("ctx", "slots", "adapters")
            if getattr(self, name, None)
        ]
        if not self._closed:
            with contextlib.suppress(AggmlError):  # a model in other processes tells no memory
                parts = [line.split(None, 1) for line in str(self.memory).splitlines()]
                rows += [(name, value) for name, value in parts]
        return html.table(repr(self), (), rows)

    @property
    @abstractmethod
    def width(self) -> int:
        """Elements of a vector of `embed`."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """How many tokens there are."""

    @property
    def template(self) -> ChatTemplate:
        """The chat template, from messages to text; only models that continue text have one."""
        raise self._cannot("template", "does not continue text, so it has no chat template")

    async def logits(self, ids: TokenIds | Mixed) -> F32:
        """The logits after each token, float32 (len(ids), vocabulary).

        Raises:
            Unsupported: the model does not continue text.
        """
        raise self._cannot("logits", "does not continue text")

    def generate(self, prompt: str | TokenIds | Mixed, **options: Any) -> TokenStream:  # noqa: ANN401
        """Continue a prompt, token by token; the options are those of `TextModel.generate`.

        Raises:
            Unsupported: the model does not continue text.
        """
        raise self._cannot("generate", "does not continue text")

    async def embed_image(self, rgb: Pixels) -> F32:
        """The embeddings of a picture, float32 [n, width].

        Raises:
            Unsupported: the model does not continue text.
        """
        raise self._cannot("embed_image", "does not continue text, so it sees no pictures")

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        **options: Any,  # noqa: ANN401
    ) -> ChatMessage:
        """Answer a conversation; the options are those of `TextModel.chat`.

        Raises:
            Unsupported: the model does not continue text.
        """
        raise self._cannot("chat", "does not continue text")

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        **options: Any,  # noqa: ANN401
    ) -> ChatStream:
        """Answer a conversation, piece by piece; the options are those of `TextModel.chat`.

        Raises:
            Unsupported: the model does not continue text.
        """
        raise self._cannot("chat_stream", "does not continue text")

    def transcribe(
        self,
        samples: npt.ArrayLike | str | os.PathLike[str],
        rate: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator[Segment]:
        """Write what is said; the options are those of `SpeechModel.transcribe`.

        Raises:
            Unsupported: the model is no model of speech.
        """
        raise self._cannot("transcribe", "does not transcribe speech: load a Whisper model")

    def listen(
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = 16000,
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator[Any]:
        """Hear a sound that comes in chunks; see `SpeechModel.listen` and `VoiceModel.listen`.

        Raises:
            Unsupported: the model hears nothing.
        """
        raise self._cannot("listen", "hears nothing: load a Whisper model or Silero's detector")

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> F32:
        """A vector for each text: float32 (len(texts), width)."""

    @abstractmethod
    async def embed_ids(self, sequences: Sequence[TokenIds]) -> F32:
        """A vector for each sequence of token ids: float32 (len(sequences), width)."""

    async def embed_multi(self, texts: Sequence[str]) -> list[F32]:
        """The vectors of all tokens of each text, float32 (tokens, width).

        Raises:
            Unsupported: the model makes no vectors of texts.
        """
        raise self._cannot("embed_multi", "makes no vectors of texts")

    async def embed_sparse(self, texts: Sequence[str]) -> list[dict[int, float]]:
        """The weights of words of each text, by token id.

        Raises:
            Unsupported: the model has no head for such weights.
        """
        raise self._cannot("embed_sparse", "has no head for weights of words: load a SPLADE model")

    async def rerank(self, query: str, documents: Sequence[str]) -> F32:
        """How well each document answers the query: float32 (len(documents),), greater is better.

        Raises:
            Unsupported: the model has no rank head.
        """
        raise self._cannot("rerank", "has no rank head: load a reranker")

    async def classify(self, texts: Sequence[str]) -> F32:
        """The numbers of the rank head for each text, one for each class: float32 (texts, classes).

        Raises:
            Unsupported: the model has no rank head.
        """
        raise self._cannot("classify", "has no rank head: load a classifier or a reranker")

    @property
    def closed(self) -> bool:
        """Whether the model was closed."""
        return self._closed

    @property
    def memory(self) -> Memory:
        """Bytes that the model takes at this moment, by parts.

        Raises:
            InvalidState: the model is closed.
            Unsupported: it computes on other machines.
        """
        self._check_open("memory")
        return measure(self._computer)

    async def aclose(self) -> None:
        """End the model and free its memory: weights, caches, graphs.

        Calls of other tasks that are under way end with InvalidState, "the model is closed". On a
        backend that `load` opened, running steps are aborted. On a backend of the caller the
        running step ends normally, and the next one raises. Memory that a step is using is freed
        when that step ends; what is being prepared for a step is given up, and is waited for.

        Cancellation: takes effect after the model is closed.
        """
        if not self._closed:
            self._closed = True
            try:
                self._computer.close()
            finally:
                owned, self._owned = self._owned, None  # a backend has scratch memory
                if owned is not None:
                    with anyio.CancelScope(shield=True):
                        await owned.aclose()
        await self._computer.lifetime.wait_until_freed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _cannot(self, what: str, why: str) -> Unsupported:
        return Unsupported(f"[{what}] a model of the architecture {self.architecture!r} {why}")

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise closed_error(what)
        if self._process != os.getpid():
            raise InvalidState(
                f"[{what}] the model belongs to the parent process of a fork: load it in this one"
            )

    def _open(self, what: str) -> _OpenBlock:
        """A block that uses the model; if closing the model ends it, its error says so."""
        return _OpenBlock(self, what)

    def _put_prompts(self, what: str, texts: Sequence[str], prompt: str | None) -> list[str]:
        """Texts with a prompt of the folder before each.

        Raises:
            InvalidArgument: there is no such prompt.
        """
        name: Any = self.prompt if prompt is None else prompt
        if name is None:
            return [*texts]
        if not isinstance(name, str) or name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InvalidArgument(
                f"[{what}] prompt is {show(name)}, but the model's folder names {known}"
            )
        return [self.prompts[name] + text for text in texts]

    async def _encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts; long texts are tokenized in a thread."""
        words = self.tokenizer
        if sum(map(len, texts)) <= LONG_TEXT:
            return [words.encode_prompt(text) for text in texts]
        return await anyio.to_thread.run_sync(lambda: [words.encode_prompt(text) for text in texts])


class _OpenBlock:
    """See `Model._open`. It is entered for each token, so it is no generator, which takes 2 us."""

    __slots__ = ("_model", "_what")

    def __init__(self, model: Model, what: str) -> None:
        self._model = model
        self._what = what

    def __enter__(self) -> None:
        self._model._check_open(self._what)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, AggmlError) and self._model._closed:
            raise closed_error(self._what) from error
