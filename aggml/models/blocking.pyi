# Written by tools/blocking_stubs.py from the asynchronous classes.
# ruff: noqa: ANN401 - options of the asynchronous classes

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Self

import numpy.typing as npt

from aggml import Backend, DType, Scheduler
from aggml.models.fitting import Fit
from aggml.models.memory import Memory
from aggml.models.model import F32, TokenIds
from aggml.models.portal import BlockingObject, BlockingStream
from aggml.models.speech import Segment
from aggml.models.speech.windows import Said, Window
from aggml.models.token_stream import FinishReason, Token
from aggml.models.tokenizers import Vocabulary
from aggml.models.tokenizers.template import ChatTemplate

__all__ = [
    "BlockingEncoderModel",
    "BlockingModel",
    "BlockingSpeechModel",
    "BlockingStream",
    "BlockingTextModel",
    "BlockingTokenStream",
    "fit",
    "load",
]

class BlockingTokenStream(BlockingStream[Token]):
    finish_reason: FinishReason | None
    def close(self) -> None: ...

class BlockingModel(BlockingObject):
    architecture: str
    ctx: int
    @property
    def tokenizer(self) -> Vocabulary: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def template(self) -> ChatTemplate: ...
    def logits(self, ids: TokenIds) -> F32: ...
    def generate(self, prompt: str | TokenIds, **options: Any) -> BlockingTokenStream: ...
    def transcribe(
        self, samples: npt.ArrayLike, rate: int = 16000, **options: Any
    ) -> BlockingStream[Segment]: ...
    def embed(self, texts: Sequence[str]) -> F32: ...
    def embed_ids(self, sequences: Sequence[TokenIds]) -> F32: ...
    def rerank(self, query: str, documents: Sequence[str]) -> F32: ...
    @property
    def closed(self) -> bool: ...
    @property
    def memory(self) -> Memory: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class BlockingTextModel(BlockingModel):
    asked_ctx: int | None
    architecture: str
    ctx: int
    slots: int
    @property
    def template(self) -> ChatTemplate: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    def logits(self, ids: TokenIds) -> F32: ...
    def generate(  # type: ignore[override]
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
    ) -> BlockingTokenStream: ...
    def embed(self, texts: Sequence[str]) -> F32: ...
    def embed_ids(self, sequences: Sequence[TokenIds]) -> F32: ...

class BlockingEncoderModel(BlockingModel):
    architecture: str
    ctx: int
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    def embed(
        self, texts: Sequence[str], *, dimensions: int | None = None, normalize: bool | None = None
    ) -> F32: ...
    def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> F32: ...
    def rerank(self, query: str, documents: Sequence[str]) -> F32: ...
    @property
    def ranks(self) -> bool: ...
    def rerank_ids(self, pairs: Sequence[TokenIds]) -> F32: ...

class BlockingSpeechModel(BlockingModel):
    architecture: str
    ctx: int
    slots: int
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def languages(self) -> tuple[str, ...]: ...
    def embed(self, texts: Sequence[str]) -> F32: ...
    def embed_ids(self, sequences: Sequence[TokenIds]) -> F32: ...
    def transcribe(  # type: ignore[override]
        self,
        samples: npt.ArrayLike,
        rate: int = ...,
        *,
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        timestamps: bool = True,
        temperature: float | Sequence[float] = ...,
        prompt: str = "",
        previous: bool = True,
        seed: int | None = None,
    ) -> BlockingStream[Segment]: ...
    def transcribe_all(
        self, recordings: Sequence[npt.ArrayLike], rate: int = ..., **options: Any
    ) -> list[list[Segment]]: ...
    def say(self, windows: Sequence[Window]) -> list[Said]: ...
    def segments(
        self,
        say: Callable[[Window], Awaitable[Said]],
        samples: npt.ArrayLike,
        rate: int = ...,
        *,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        temperature: float | Sequence[float] = ...,
        prompt: str = "",
        previous: bool = True,
        seed: int | None = None,
    ) -> BlockingStream[Segment]: ...

def load(
    path: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    ctx: int | None = None,
    slots: int = 1,
    cache: DType | str = "f16",
    progress: Callable[[int, int], None] | None = None,
) -> BlockingModel: ...
def fit(
    path: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    memory: int | None = None,
    ctx: int | None = None,
    slots: int | None = None,
    cache: DType | str = "f16",
) -> Fit: ...
