# Written by tools/blocking_stubs.py from the asynchronous classes.
# ruff: noqa: ANN401 - options of the asynchronous classes

import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, overload

import numpy.typing as npt

from aggml import Backend, DType, Scheduler
from aggml.models.adapters.stacks import AdapterNames
from aggml.models.chat.messages import ChatDelta, ChatFinish, ChatMessage, ToolCall, Usage
from aggml.models.chat.template import ChatTemplate
from aggml.models.engine.constraints import Thinking
from aggml.models.engine.grammars import Grammar
from aggml.models.engine.interface import TextEngine
from aggml.models.engine.requests import Counters, PlacedPicture, TextRequest
from aggml.models.fitting import Fit
from aggml.models.host import Host as HostType
from aggml.models.host import ModelStatus
from aggml.models.memory import Memory
from aggml.models.model import F32, Mixed, Model, Pixels, TokenIds
from aggml.models.portal import BlockingObject, BlockingStream
from aggml.models.speech import Segment
from aggml.models.speech.live import Partial
from aggml.models.speech.spans import Span
from aggml.models.text_model import TextModel
from aggml.models.token_stream import FinishReason, PromptToken, Token, TokenStream
from aggml.models.tokenizers import Vocabulary
from aggml.models.voice_model import VoiceModel

__all__ = [
    "BlockingChatStream",
    "BlockingEncoderDecoderModel",
    "BlockingEncoderModel",
    "BlockingHost",
    "BlockingModel",
    "BlockingModelUse",
    "BlockingSpeechModel",
    "BlockingStream",
    "BlockingTextModel",
    "BlockingTokenStream",
    "BlockingVoiceModel",
    "Host",
    "fit",
    "load",
    "unwrap",
    "wrap",
]

class BlockingTokenStream(BlockingStream[Token]):
    made: list[int]
    before: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    prompt_logprobs: list[PromptToken] | None
    @property
    def stop_text(self) -> str | None: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def drafted_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...
    def start(self) -> None: ...
    def ids(self, tokenizer: Vocabulary) -> list[int] | None: ...
    def prepare(
        self, ids: list[int], pictures: tuple[PlacedPicture, ...] = ()
    ) -> TextRequest | None: ...
    def close(self) -> None: ...

class BlockingChatStream(BlockingStream[ChatDelta]):
    tokens: TokenStream | None
    finish_reason: ChatFinish | None
    def open(self) -> None: ...
    def start(self) -> None: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def calls(self) -> list[ToolCall]: ...
    def close(self) -> None: ...

class BlockingModel(BlockingObject):
    architecture: str
    ctx: int
    prompts: dict[str, str]
    prompt: str | None
    @property
    def tokenizer(self) -> Vocabulary: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def template(self) -> ChatTemplate: ...
    def logits(self, ids: TokenIds | Mixed) -> F32: ...
    def generate(self, prompt: str | TokenIds | Mixed, **options: Any) -> BlockingTokenStream: ...
    def embed_image(self, rgb: Pixels) -> F32: ...
    def chat(
        self, messages: Sequence[Mapping[str, Any] | ChatMessage], **options: Any
    ) -> ChatMessage: ...
    def chat_stream(
        self, messages: Sequence[Mapping[str, Any] | ChatMessage], **options: Any
    ) -> BlockingChatStream: ...
    def transcribe(
        self,
        samples: npt.ArrayLike | str | os.PathLike[str],
        rate: int | None = None,
        **options: Any,
    ) -> BlockingStream[Segment]: ...
    def listen(
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = 16000,
        **options: Any,
    ) -> BlockingStream[Any]: ...
    def embed(self, texts: Sequence[str]) -> F32: ...
    def embed_ids(self, sequences: Sequence[TokenIds]) -> F32: ...
    def embed_multi(self, texts: Sequence[str]) -> list[F32]: ...
    def embed_sparse(self, texts: Sequence[str]) -> list[dict[int, float]]: ...
    def rerank(self, query: str, documents: Sequence[str]) -> F32: ...
    def classify(self, texts: Sequence[str]) -> F32: ...
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
    engine: TextEngine
    adapters: tuple[str, ...]
    @property
    def sees(self) -> bool: ...
    @property
    def template(self) -> ChatTemplate: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def memory(self) -> Memory: ...
    def logits(self, ids: TokenIds | Mixed, *, adapter: AdapterNames = None) -> F32: ...
    def embed_image(self, rgb: Pixels) -> F32: ...
    def generate(  # type: ignore[override]
        self,
        prompt: str | TokenIds | Mixed,
        *,
        max_tokens: int = 24,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | Iterable[str] = (),
        stop_ids: Sequence[int] | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        post_sampling_probs: bool = False,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        schema: Mapping[str, Any] | str | bool | None = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        grammar: str | None = None,
        typical_p: float = 1.0,
        top_n_sigma: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_range: int | None = None,
        dry_breakers: Sequence[str] | None = None,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        samplers: Sequence[str] | None = None,
        adapter: AdapterNames = None,
        prompt_logprobs: int | None = None,
        truncate_prompt: int | None = None,
        include_stop: bool = False,
        show_special: bool = False,
        allowed_ids: Sequence[int] | None = None,
        bad_words: Sequence[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        _continue: Sequence[int] = (),
        _thinking: Thinking | None = None,
        _shown: frozenset[int] = ...,
        _grammar: Grammar | None = None,
        _place: str = "generate",
    ) -> BlockingTokenStream: ...
    @property
    def tool_format(self) -> str | None: ...
    @property
    def think_format(self) -> str | None: ...
    def check(self, streams: Iterable[TokenStream | BlockingTokenStream]) -> None: ...
    def chat(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        response_format: Mapping[str, Any] | None = None,
        think: bool | int | str | None = None,
        template_args: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        continue_final: bool = False,
        parallel_tool_calls: bool = True,
        **options: Any,
    ) -> ChatMessage: ...
    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        response_format: Mapping[str, Any] | None = None,
        think: bool | int | str | None = None,
        template_args: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        continue_final: bool = False,
        parallel_tool_calls: bool = True,
        **options: Any,
    ) -> BlockingChatStream: ...
    def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    def embed_multi(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: AdapterNames = None,
    ) -> list[F32]: ...
    @property
    def ranks(self) -> bool: ...
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    def encode_pair(self, query: str, document: str, *, most: int | None = None) -> list[int]: ...
    def rerank_ids(
        self,
        pairs: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    def classify(
        self,
        texts: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    def classify_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32: ...
    def close(self) -> None: ...

class BlockingEncoderModel(BlockingModel):
    architecture: str
    ctx: int
    labels: tuple[str, ...]
    counters: Counters
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: str | None = None,
    ) -> F32: ...
    def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32: ...
    def embed_multi(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
    ) -> list[F32]: ...
    @property
    def has_terms(self) -> bool: ...
    def embed_sparse(
        self,
        texts: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
    ) -> list[dict[int, float]]: ...
    def embed_sparse_ids(
        self, sequences: Sequence[TokenIds], *, priority: int = 0, deadline: float | None = None
    ) -> list[dict[int, float]]: ...
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> F32: ...
    @property
    def ranks(self) -> bool: ...
    def encode_pair(self, query: str, document: str, *, most: int | None = None) -> list[int]: ...
    def rerank_ids(
        self, pairs: Sequence[TokenIds], *, priority: int = 0, deadline: float | None = None
    ) -> F32: ...
    def classify(
        self, texts: Sequence[str], *, priority: int = 0, deadline: float | None = None
    ) -> F32: ...
    def classify_ids(
        self, sequences: Sequence[TokenIds], *, priority: int = 0, deadline: float | None = None
    ) -> F32: ...

class BlockingEncoderDecoderModel(BlockingModel):
    architecture: str
    ctx: int
    start: int
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    def logits(self, ids: TokenIds | Mixed, decoder_ids: TokenIds | None = None) -> F32: ...
    def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        prompt: str | None = None,
    ) -> F32: ...
    def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> F32: ...
    def embed_multi(self, texts: Sequence[str], *, normalize: bool = False) -> list[F32]: ...

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
        samples: npt.ArrayLike | str | os.PathLike[str],
        rate: int | None = None,
        *,
        words: bool = False,
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        timestamps: bool = True,
        temperature: float | Sequence[float] = ...,
        prompt: str = "",
        previous: bool = True,
        seed: int | None = None,
        beam_size: int = 1,
        compression_ratio_threshold: float | None = 2.4,
        logprob_threshold: float | None = ...,
        no_speech_threshold: float | None = 0.6,
    ) -> BlockingStream[Segment]: ...
    def transcribe_all(
        self, recordings: Sequence[npt.ArrayLike], rate: int | None = None, **options: Any
    ) -> list[list[Segment]]: ...
    def listen(  # type: ignore[override]
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = ...,
        *,
        language: str | None = None,
        prompt: str = "",
        step: float = 1.0,
        temperature: float | Sequence[float] = 0.0,
        seed: int | None = None,
        beam_size: int = 1,
        compression_ratio_threshold: float | None = 2.4,
        logprob_threshold: float | None = ...,
        no_speech_threshold: float | None = 0.6,
        vad: VoiceModel | BlockingVoiceModel | None = None,
    ) -> BlockingStream[Partial]: ...

class BlockingModelUse(BlockingObject):
    def __enter__(self) -> BlockingModel: ...
    def __exit__(self, *_: object) -> None: ...

class BlockingHost(BlockingObject):
    def add(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        pinned: bool = False,
        share: float = 1.0,
        **load_options: Any,
    ) -> None: ...
    def use(self, name: str) -> BlockingModelUse: ...
    def unload(self, name: str) -> None: ...
    def tidy(self) -> None: ...
    @property
    def models(self) -> dict[str, ModelStatus]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class BlockingVoiceModel(BlockingModel):
    architecture: str
    ctx: int
    @property
    def width(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> F32: ...
    def embed_ids(self, sequences: Sequence[TokenIds]) -> F32: ...
    def listen(  # type: ignore[override]
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = ...,
        *,
        threshold: float = 0.5,
        silence: float = 0.1,
        shortest: float = 0.25,
        pad: float = 0.03,
        longest: float | None = None,
        began: Callable[[float], object] | None = None,
    ) -> BlockingStream[Span]: ...
    def probabilities(self, samples: npt.ArrayLike, rate: int = ...) -> F32: ...

def load(
    path: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    ctx: int | None = None,
    slots: int | None = None,
    cache: DType | str = "f16",
    memory: int | None = None,
    draft: str | os.PathLike[str] | (TextModel | BlockingTextModel) | None = None,
    kv_memory: int | None = None,
    chunk: int = 128,
    max_waiting: int = 256,
    prefix_cache: int | None = None,
    prefix_folder: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    tool_format: str | None = None,
    adapters: Mapping[str, Any] | Sequence[Any] | None = None,
    control_vectors: Sequence[Any] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
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
    adapters: Mapping[str, Any] | Sequence[Any] | None = None,
    control_vectors: Sequence[Any] | None = None,
    draft: str | os.PathLike[str] | (TextModel | BlockingTextModel) | None = None,
    mmproj: str | os.PathLike[str] | None = None,
) -> Fit: ...
def Host(
    backend: Backend | Scheduler | None = None,
    *,
    memory: int | None = None,
    idle: float | None = None,
) -> BlockingHost: ...

_Blocking = TypeVar("_Blocking", bound=BlockingObject)

_Awaited = TypeVar("_Awaited", bound=Model | HostType)

@overload
def wrap(of: Model) -> BlockingModel: ...
@overload
def wrap(of: HostType) -> BlockingHost: ...
@overload
def wrap(of: _Blocking) -> _Blocking: ...
@overload
def unwrap(of: BlockingModel) -> Model: ...
@overload
def unwrap(of: BlockingHost) -> HostType: ...
@overload
def unwrap(of: _Awaited) -> _Awaited: ...
