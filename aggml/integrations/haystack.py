"""Haystack: a chat generator with tools, embedders of texts and of documents, a ranker.

``AggmlChatGenerator("model.gguf").run([ChatMessage.from_user("Hello")])["replies"]``

Needs ``aggml[haystack]``. Not here: what a request does (aggml.models).
"""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    ReasoningContent,
    StreamingCallbackT,
    StreamingChunk,
    ToolCall,
    ToolCallDelta,
    select_streaming_callback,
)
from haystack.tools import (
    ToolsType,
    deserialize_tools_or_toolset_inplace,
    flatten_tools_or_toolsets,
    serialize_tools_or_toolset,
)
from haystack.utils import deserialize_callable, serialize_callable

from aggml import InvalidArgument
from aggml.integrations.opened import (
    DOCUMENT,
    QUERY,
    OpenedModel,
    logprobs_of,
    open_given,
    parse_arguments,
    prompt_for,
)
from aggml.models import rank
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models import ChatDelta, Token, Usage
    from aggml.models import ChatMessage as Answer
    from aggml.models import ToolCallDelta as CallDelta

__all__ = ["AggmlChatGenerator", "AggmlDocumentEmbedder", "AggmlRanker", "AggmlTextEmbedder"]

MODEL: Final = "model"


class _Lazy:
    """A model that is opened when it is first needed, or by ``warm_up``."""

    def __init__(self, place: str, given: object, load_options: Mapping[str, Any] | None) -> None:
        self._place, self._given = place, given
        self._load_options = dict(load_options or {})
        self._opened: OpenedModel | None = None
        self._lock = new_lock()
        if not isinstance(given, (str, os.PathLike)):
            self.open()  # raises if it is no model

    def open(self) -> OpenedModel:
        """The model."""
        with self._lock:
            opened = self._opened
            if opened is None:
                opened = open_given(self._place, self._given, self._load_options, None)
                self._opened = opened
            return opened

    async def aopen(self) -> OpenedModel:
        """The model; a file is loaded in a thread."""
        opened = self._opened
        return await anyio.to_thread.run_sync(self.open) if opened is None else opened

    def close(self) -> None:
        """Free the model, if it was loaded here."""
        opened, self._opened = self._opened, None
        if opened is not None and opened.owned:
            opened.face.close()

    def init_parameters(self) -> dict[str, Any]:
        """The arguments with which a pipeline that is read from a file makes it again."""
        if not isinstance(self._given, (str, os.PathLike)):
            raise InvalidArgument(
                f"[{self._place}] an open model cannot be saved with a pipeline: give the path of "
                "a file as model"
            )
        return {MODEL: str(Path(self._given)), "load_options": self._load_options}


class _WithModel:
    """What all components share: a model, of the caller or loaded by the component."""

    _model: _Lazy

    def warm_up(self) -> None:
        """Load the file, if there is one and it is not loaded yet."""
        self._model.open()

    async def warm_up_async(self) -> None:
        """Load the file, if there is one and it is not loaded yet."""
        await self._model.aopen()

    def close(self) -> None:
        """Free the model, if this component has loaded it."""
        self._model.close()


@component
class AggmlChatGenerator(_WithModel):
    """A model of aggml that answers conversations.

    ``run_async`` awaits the model; ``run`` may be called in any thread. Requests of both share the
    steps of the model.
    """

    def __init__(
        self,
        model: Any,
        load_options: dict[str, Any] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        tools: ToolsType | None = None,
        tools_strict: bool = False,
    ) -> None:
        """Note what the model is; a file is loaded by ``warm_up`` or by the first request.

        Args:
            model: the path of a file; or a model of `aggml.models.load` or of
                `aggml.models.blocking.load`, which stays its owner's. Only a path can be saved
                with a pipeline.
            load_options: for a path: options of `aggml.models.load`.
            generation_kwargs: options of `TextModel.chat`.
            streaming_callback: gets each piece of an answer.
            tools: functions that the model may call.
            tools_strict: whether arguments are always restricted to the schema.
        """
        self._model = _Lazy("AggmlChatGenerator", model, load_options)
        self.generation_kwargs: dict[str, Any] = dict(generation_kwargs or {})
        self.streaming_callback = streaming_callback
        self.tools = tools
        self.tools_strict = tools_strict

    def to_dict(self) -> dict[str, Any]:
        """The component, for a file with a pipeline."""
        callback = self.streaming_callback
        found: dict[str, Any] = default_to_dict(
            self,
            **self._model.init_parameters(),
            generation_kwargs=self.generation_kwargs,
            streaming_callback=serialize_callable(callback) if callback else None,
            tools=serialize_tools_or_toolset(self.tools),
            tools_strict=self.tools_strict,
        )
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AggmlChatGenerator:
        """The component of `to_dict`."""
        given = data["init_parameters"]
        deserialize_tools_or_toolset_inplace(given, key="tools")
        if given.get("streaming_callback"):
            given["streaming_callback"] = deserialize_callable(given["streaming_callback"])
        found: AggmlChatGenerator = default_from_dict(cls, data)
        return found

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        tools_strict: bool | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """Answer a conversation.

        Args:
            messages: of the conversation, or the text of the user's.
            streaming_callback: in place of that of the component.
            generation_kwargs: options of `TextModel.chat`; they win over those of the component.
            tools: in place of those of the component.
            tools_strict: in place of that of the component.

        Returns:
            "replies": the answer.
        """
        given = _messages_of(messages)
        if not given:
            return {"replies": []}
        options = self._options(generation_kwargs, tools, strict=tools_strict)
        opened = self._model.open()
        callback = select_streaming_callback(
            self.streaming_callback, streaming_callback, requires_async=False
        )
        if callback is None:
            return {"replies": [_reply(opened, opened.face.chat(given, **options))]}
        pieces = _Pieces(opened, ComponentInfo.from_component(self))
        with opened.face.chat_stream(given, **options) as stream:
            for delta in stream:
                for chunk in pieces.add(delta, stream.usage):
                    callback(chunk)
            return {"replies": [pieces.reply(stream.usage)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        tools_strict: bool | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """`run`, awaited; the callback may be async.

        Cancellation: ends the answer.
        """
        given = _messages_of(messages)
        if not given:
            return {"replies": []}
        options = self._options(generation_kwargs, tools, strict=tools_strict)
        opened = await self._model.aopen()
        callback: Callable[[StreamingChunk], Any] | None = select_streaming_callback(
            self.streaming_callback, streaming_callback, requires_async=True
        )
        if callback is None:
            return {"replies": [_reply(opened, await opened.model.chat(given, **options))]}
        pieces = _Pieces(opened, ComponentInfo.from_component(self))
        async with aclosing(opened.model.chat_stream(given, **options)) as stream:
            async for delta in stream:
                for chunk in pieces.add(delta, stream.usage):
                    waiting = callback(chunk)
                    if waiting is not None:  # the callback is async
                        await waiting
            return {"replies": [pieces.reply(stream.usage)]}

    def _options(
        self, given: Mapping[str, Any] | None, tools: ToolsType | None, *, strict: bool | None
    ) -> dict[str, Any]:
        options = {**self.generation_kwargs, **(given or {})}
        found = flatten_tools_or_toolsets(self.tools if tools is None else tools)
        if found:
            bound = self.tools_strict if strict is None else strict
            options["tools"] = [
                {"type": "function", "function": {**x.tool_spec, "strict": bound}} for x in found
            ]
        return options


def _messages_of(messages: list[ChatMessage] | str) -> list[dict[str, Any]]:
    """Messages as `TextModel.chat` reads them."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    found = []
    for message in messages:
        one = message.to_openai_dict_format(require_tool_call_ids=False)
        if message.reasoning is not None and one["role"] == "assistant":
            one["reasoning"] = message.reasoning.reasoning_text
        found.append(one)
    return found


def _meta(opened: OpenedModel, usage: Usage, reason: str | None, tokens: Sequence[Token]) -> Any:
    found: dict[str, Any] = {
        "model": opened.name, "index": 0, "finish_reason": reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        },
    }  # fmt: skip
    logprobs = logprobs_of(opened.model, tokens)
    if logprobs:
        found["logprobs"] = {"content": logprobs}
    return found


def _reply(opened: OpenedModel, answer: Answer) -> ChatMessage:
    return ChatMessage.from_assistant(
        text=answer.content or None,
        tool_calls=[
            ToolCall(tool_name=x.name, arguments=x.arguments, id=x.id) for x in answer.tool_calls
        ],
        reasoning=answer.reasoning,
        meta=_meta(opened, answer.usage, answer.finish_reason, answer.tokens),
    )


class _Pieces:
    """The pieces of an answer: those that callbacks get, and the whole of it."""

    def __init__(self, opened: OpenedModel, component: ComponentInfo) -> None:
        self._opened, self._component = opened, component
        self._deltas: list[ChatDelta] = []
        self._kinds: list[object] = []  # of the contents so far: text, thoughts, a call

    def add(self, delta: ChatDelta, usage: Usage) -> list[StreamingChunk]:
        """The chunks of a piece: each has text, thoughts or pieces of calls."""
        self._deltas.append(delta)
        chunks = []
        if delta.reasoning:
            thoughts = ReasoningContent(delta.reasoning)
            chunks.append(self._chunk("reasoning", reasoning=thoughts))
        if delta.content:
            chunks.append(self._chunk("text", content=delta.content))
        for x in delta.tool_calls:
            piece = ToolCallDelta(x.index, x.name, x.arguments, x.id)
            chunks.append(self._chunk(x.index, tool_calls=[piece]))
        if delta.finish_reason is not None:
            meta = _meta(self._opened, usage, delta.finish_reason, ())
            chunks.append(
                StreamingChunk(
                    "", meta, self._component, finish_reason=delta.finish_reason
                )
            )  # fmt: skip
        return chunks

    def _chunk(self, kind: object, content: str = "", **more: Any) -> StreamingChunk:
        is_first = kind not in self._kinds
        if is_first:
            self._kinds.append(kind)
        return StreamingChunk(
            content, {"model": self._opened.name}, self._component,
            index=self._kinds.index(kind), start=is_first, **more,
        )  # fmt: skip

    def reply(self, usage: Usage) -> ChatMessage:
        """The whole answer."""
        first: dict[int, CallDelta] = {}  # of each call: the piece with its name
        arguments_of: dict[int, str] = {}
        for x in (y for delta in self._deltas for y in delta.tool_calls):
            first.setdefault(x.index, x)
            arguments_of[x.index] = arguments_of.get(x.index, "") + x.arguments
        reason = self._deltas[-1].finish_reason if self._deltas else None
        return ChatMessage.from_assistant(
            text="".join(x.content for x in self._deltas) or None,
            tool_calls=[
                ToolCall(tool_name=x.name or "", arguments=arguments, id=x.id or "")
                for i, x in first.items()
                if (arguments := parse_arguments(arguments_of[i])) is not None
            ],
            reasoning="".join(x.reasoning or "" for x in self._deltas) or None,
            meta=_meta(self._opened, usage, reason, [y for x in self._deltas for y in x.tokens]),
        )


class _OfDocuments:
    """What both components that read documents share: which text stands for a document."""

    meta_fields_to_embed: list[str]
    embedding_separator: str

    def _read_fields(self, fields: list[str] | None, separator: str) -> None:
        """Note which fields are put before the content, and what stands between all of these."""
        self.meta_fields_to_embed = list(fields or ())
        self.embedding_separator = separator

    def _field_options(self) -> dict[str, Any]:
        """The arguments of the component that say so."""
        return {
            "meta_fields_to_embed": self.meta_fields_to_embed,
            "embedding_separator": self.embedding_separator,
        }

    def _texts(self, documents: list[Document]) -> list[str]:
        return [self._text_of(x) for x in documents]

    def _text_of(self, document: Document) -> str:
        meta, names = document.meta, self.meta_fields_to_embed
        fields = [str(meta[name]) for name in names if meta.get(name) is not None]
        return self.embedding_separator.join([*fields, document.content or ""])


class _Embedding(_WithModel):
    """The parts that both embedders share."""

    _place = ""

    def __init__(
        self, model: Any, load_options: dict[str, Any] | None, options: dict[str, Any] | None
    ) -> None:  # fmt: skip
        self._model = _Lazy(self._place, model, load_options)
        self.embed_options: dict[str, Any] = dict(options or {})

    def _embed(self, texts: list[str], names: Sequence[str]) -> list[list[float]]:
        opened = self._model.open()
        embed: Any = opened.face.embed
        found: list[list[float]] = embed(texts, **self._for(opened, names)).tolist()
        return found

    async def _aembed(self, texts: list[str], names: Sequence[str]) -> list[list[float]]:
        opened = await self._model.aopen()
        embed: Any = opened.model.embed
        found: list[list[float]] = (await embed(texts, **self._for(opened, names))).tolist()
        return found

    def _for(self, opened: OpenedModel, names: Sequence[str]) -> dict[str, Any]:
        return {"prompt": prompt_for(opened.model, names), **self.embed_options}

    def _model_meta(self) -> dict[str, Any]:
        return {"model": self._model.open().name}


@component
class AggmlTextEmbedder(_Embedding):
    """The vector of a text, such as a query.

    If the model's folder has a prompt named "query", it is put before the text.
    """

    _place = "AggmlTextEmbedder"

    def __init__(
        self,
        model: Any,
        load_options: dict[str, Any] | None = None,
        embed_options: dict[str, Any] | None = None,
    ) -> None:
        """Note what the model is.

        Args:
            model: as of `AggmlChatGenerator`.
            load_options: as of `AggmlChatGenerator`.
            embed_options: options of `EncoderModel.embed`, such as ``dimensions``.
        """
        # Not super(): `component` makes another class of this one.
        _Embedding.__init__(self, model, load_options, embed_options)

    def to_dict(self) -> dict[str, Any]:
        """The component, for a file with a pipeline."""
        found: dict[str, Any] = default_to_dict(
            self, **self._model.init_parameters(), embed_options=self.embed_options
        )
        return found

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """The vector, as "embedding"."""
        return {"embedding": self._embed([text], QUERY)[0], "meta": self._model_meta()}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """`run`, awaited.

        Cancellation: takes the text back.
        """
        return {"embedding": (await self._aembed([text], QUERY))[0], "meta": self._model_meta()}


@component
class AggmlDocumentEmbedder(_OfDocuments, _Embedding):
    """Documents with their vectors.

    If the model's folder has a prompt named "document" ("passage", "corpus"), it is put before each
    text.
    """

    _place = "AggmlDocumentEmbedder"

    def __init__(
        self,
        model: Any,
        load_options: dict[str, Any] | None = None,
        embed_options: dict[str, Any] | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        """Note what the model is.

        Args:
            model: as of `AggmlChatGenerator`.
            load_options: as of `AggmlChatGenerator`.
            embed_options: options of `EncoderModel.embed`, such as ``dimensions``.
            meta_fields_to_embed: fields of a document that are put before its content.
            embedding_separator: between these and the content.
        """
        # Not super(): `component` makes another class of this one.
        _Embedding.__init__(self, model, load_options, embed_options)
        self._read_fields(meta_fields_to_embed, embedding_separator)

    def to_dict(self) -> dict[str, Any]:
        """The component, for a file with a pipeline."""
        found: dict[str, Any] = default_to_dict(
            self,
            **self._model.init_parameters(),
            embed_options=self.embed_options,
            **self._field_options(),
        )
        return found

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """The documents, each with its vector, as "documents"."""
        return self._result(documents, self._embed(self._texts(documents), DOCUMENT))

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """`run`, awaited.

        Cancellation: takes the documents back.
        """
        return self._result(documents, await self._aembed(self._texts(documents), DOCUMENT))

    def _result(self, documents: list[Document], vectors: list[list[float]]) -> dict[str, Any]:
        found = [replace(x, embedding=v) for x, v in zip(documents, vectors, strict=True)]
        return {"documents": found, "meta": self._model_meta()}


@component
class AggmlRanker(_OfDocuments, _WithModel):
    """Documents by how well they answer a query, best first, each with its score."""

    def __init__(
        self,
        model: Any,
        load_options: dict[str, Any] | None = None,
        top_k: int = 10,
        rerank_options: dict[str, Any] | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        """Note what the model is.

        Args:
            model: as of `AggmlChatGenerator`.
            load_options: as of `AggmlChatGenerator`.
            top_k: the most documents.
            rerank_options: options of `EncoderModel.rerank`, such as ``deadline``.
            meta_fields_to_embed: fields of a document that are put before its content.
            embedding_separator: between these and the content.
        """
        self._model = _Lazy("AggmlRanker", model, load_options)
        self.top_k = top_k
        self.rerank_options: dict[str, Any] = dict(rerank_options or {})
        self._read_fields(meta_fields_to_embed, embedding_separator)

    def to_dict(self) -> dict[str, Any]:
        """The component, for a file with a pipeline."""
        found: dict[str, Any] = default_to_dict(
            self,
            **self._model.init_parameters(),
            top_k=self.top_k,
            rerank_options=self.rerank_options,
            **self._field_options(),
        )
        return found

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents, as "documents"."""
        texts = self._texts(documents)
        scores = self._model.open().face.rerank(query, texts, **self.rerank_options)
        return self._result(documents, scores, top_k)

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run`, awaited.

        Cancellation: takes the documents back.
        """
        texts = self._texts(documents)
        opened = await self._model.aopen()
        scores = await opened.model.rerank(query, texts, **self.rerank_options)
        return self._result(documents, scores, top_k)

    def _result(
        self, documents: list[Document], scores: Any, top_k: int | None
    ) -> dict[str, list[Document]]:  # fmt: skip
        most = self.top_k if top_k is None else top_k
        return {
            "documents": [replace(documents[x.index], score=x.score) for x in rank(scores, most)]
        }
