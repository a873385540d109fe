"""LangChain: a chat model with tools and structured answers, embeddings, a reranker.

``llm = ChatAggml(model=model)``, ``llm.with_structured_output(Person).invoke("...")``

Needs ``aggml[langchain]``. Not here: what a request does (aggml.models).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages import ChatMessage as RoleMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call, tool_call_chunk
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from aggml import InvalidArgument, Unsupported
from aggml.integrations.opened import (
    DOCUMENT,
    QUERY,
    OpenedModel,
    call_of,
    logprobs_of,
    open_given,
    prompt_for,
)
from aggml.models import ChatDelta, ChatMessage, Token, ToolCallDelta, Usage, rank

__all__ = ["AggmlCompressor", "AggmlEmbeddings", "ChatAggml"]

#: Arguments that all chat models of LangChain have, and that mean nothing to this one.
NOTHING: Final = ("api_key", "base_url", "max_retries")
#: What LangChain puts among the arguments of a call for itself.
INTERNAL: Final = ("ls_structured_output_format", "model", "output_version", "stream",
                   "stream_usage", "strict")  # fmt: skip
#: Options of `TextModel.chat` that are fields of `ChatAggml`.
FIELDS: Final = (
    "temperature", "max_tokens", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logprobs", "think",
)  # fmt: skip


class ChatAggml(BaseChatModel):
    """A model of aggml as a chat model of LangChain.

    ``ainvoke``, ``astream`` and the like await the model; ``invoke``, ``stream`` and ``batch`` may
    be called in any thread. Requests of both share the steps of the model.

    Attributes:
        model: a model of `aggml.models.load` or `aggml.models.blocking.load`, which stays its
            owner's; or the path of a file, which is loaded at once, and is freed by `close`.
        model_name: what answers tell as their model; empty: the name of the file, or of the
            architecture.
        load_options: for a path: options of `aggml.models.load`.
        temperature, max_tokens, top_k, top_p, min_p, seed, stop, presence_penalty,
        frequency_penalty, repetition_penalty, think: options of `TextModel.chat`; None: its
            defaults.
        logprobs: how many probable tokens are told beside each one, in
            ``response_metadata["logprobs"]``; None: none is told.
        timeout: seconds in which the answer is needed, the ``deadline`` of the request.
        options: any further options of `TextModel.chat`.
        streaming: whether ``invoke`` reads the answer piece by piece, for callbacks.
    """

    model: Any = Field(exclude=True, repr=False)
    model_name: str = ""
    load_options: dict[str, Any] = Field(default_factory=dict)
    temperature: float | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    think: bool | int | str | None = None
    logprobs: bool | int | None = None
    timeout: float | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    streaming: bool = False
    _opened: OpenedModel = PrivateAttr()

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", protected_namespaces=()
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if name not in NOTHING}
        return values

    def model_post_init(self, context: Any, /) -> None:
        """Open the model; pydantic calls it."""
        super().model_post_init(context)
        name = self.model_name or None
        self._opened = open_given("ChatAggml", self.model, self.load_options, name)
        self.model_name = self._opened.name

    @property
    def _llm_type(self) -> str:
        return "aggml"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        told = {name: getattr(self, name) for name in FIELDS}
        return {"model_name": self.model_name, **told, **self.options}

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    # -- requests

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, given: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options of `TextModel.chat`."""
        options = {name: getattr(self, name) for name in FIELDS}
        options |= {"deadline": self.timeout, **self.options}
        options |= {name: value for name, value in given.items() if name not in INTERNAL}
        if stop is not None:
            options["stop"] = stop
        told, best = options.pop("logprobs"), options.pop("top_logprobs", None)
        if told is True or (told is None and best is not None):
            told = best or 0
        options["logprobs"] = None if told is False else told
        if options.get("timeout") is not None:
            options["deadline"] = options["timeout"]
        options.pop("timeout", None)
        asked = {name: value for name, value in options.items() if value is not None}
        return [_message_of(x) for x in messages], asked

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        given, options = self._request(messages, stop, kwargs)
        return self._result(self._opened.face.chat(given, **options))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        given, options = self._request(messages, stop, kwargs)
        return self._result(await self._opened.model.chat(given, **options))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        given, options = self._request(messages, stop, kwargs)
        with self._opened.face.chat_stream(given, **options) as stream:
            for delta in stream:
                yield self._chunk(delta, stream.usage)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        given, options = self._request(messages, stop, kwargs)
        async with aclosing(self._opened.model.chat_stream(given, **options)) as stream:
            async for delta in stream:
                yield self._chunk(delta, stream.usage)

    # -- answers

    def _result(self, answer: ChatMessage) -> ChatResult:
        message = AIMessage(
            content=answer.content,
            additional_kwargs=_reasoning(answer.reasoning),
            tool_calls=[
                tool_call(id=x.id, name=x.name, args=x.arguments) for x in answer.tool_calls
            ],
            usage_metadata=_usage(answer.usage),
            response_metadata=self._metadata(answer.finish_reason, answer.tokens),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunk(self, delta: ChatDelta, usage: Usage) -> ChatGenerationChunk:
        last = delta.finish_reason is not None
        metadata = self._metadata(delta.finish_reason, delta.tokens) if last else {}
        if not last and (told := logprobs_of(self._opened.model, delta.tokens)):
            metadata = {"logprobs": {"content": told}}
        message = AIMessageChunk(
            content=delta.content,
            additional_kwargs=_reasoning(delta.reasoning),
            tool_call_chunks=_call_chunks(delta.tool_calls),
            usage_metadata=_usage(usage) if last else None,
            response_metadata=metadata,
            chunk_position="last" if last else None,
        )
        return ChatGenerationChunk(message=message)

    def _metadata(self, reason: str | None, tokens: Sequence[Token]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "finish_reason": reason, "model_name": self.model_name, "model_provider": "aggml",
        }  # fmt: skip
        told = logprobs_of(self._opened.model, tokens)
        if told:
            found["logprobs"] = {"content": told}
        return found

    # -- tools and forms

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools.

        Args:
            tools: functions, in any form of LangChain.
            tool_choice: "auto", "none", the name of a tool that must be called; "any", "required"
                or True: some tool must be called.
            strict: whether arguments are always restricted to the schema.
            kwargs: further options of each request, such as ``parallel_tool_calls``.
        """
        found = [convert_to_openai_tool(x, strict=strict) for x in tools]
        chosen = "required" if tool_choice is True or tool_choice == "any" else tool_choice
        if chosen:
            kwargs["tool_choice"] = chosen
        return self.bind(tools=found, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """The model with answers of a form.

        Args:
            schema: a class of pydantic, a TypedDict or a JSON schema.
            method: "json_schema": the answer is JSON that the schema allows. "function_calling": it
                is a call of a function that the model must call. "json_mode": it is any JSON
                object; the prompt says which.
            include_raw: give a dict with "raw", "parsed" and "parsing_error".
            strict: of "function_calling"; the others need no such word.
            kwargs: further options of each request.
        """
        if method not in ("json_schema", "function_calling", "json_mode"):
            raise InvalidArgument(
                f"[ChatAggml] method is {method!r}, expected 'json_schema', 'function_calling' or "
                "'json_mode'"
            )
        if method == "function_calling":
            return super().with_structured_output(
                schema, include_raw=include_raw, method=method, strict=strict, **kwargs
            )
        form: dict[str, Any] = {"type": "json_object"}
        plain = convert_to_json_schema(schema)
        if method == "json_schema":
            form = {"type": "json_schema", "json_schema": {"name": plain.get("title", "answer"),
                                                           "schema": plain}}  # fmt: skip
        told = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        llm = self.bind(response_format=form, ls_structured_output_format=told, **kwargs)
        parser: BaseOutputParser[Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        if not include_raw:
            return llm | parser
        parsed = RunnablePassthrough.assign(
            parsed=(lambda x: x["raw"]) | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=llm) | parsed.with_fallbacks(
            [failed], exception_key="parsing_error"
        )  # fmt: skip


def _call_chunks(pieces: Sequence[ToolCallDelta]) -> list[ToolCallChunk]:
    """Pieces of calls, one for each call: LangChain joins those of different chunks alone."""
    found: dict[int, ToolCallChunk] = {}
    for x in pieces:
        chunk = found.setdefault(
            x.index, tool_call_chunk(id=x.id, name=x.name, args="", index=x.index)
        )
        chunk["args"] = (chunk["args"] or "") + x.arguments
    return list(found.values())


def _reasoning(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"reasoning_content": text}


def _usage(usage: Usage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_token_details={"cache_read": usage.cached_tokens},
        output_token_details={"reasoning": usage.reasoning_tokens},
    )


def _message_of(message: BaseMessage) -> dict[str, Any]:
    """A message as `TextModel.chat` reads it."""
    content, thoughts = _content_of(message.content)
    found: dict[str, Any] = {"content": content}
    if message.name:
        found["name"] = message.name
    if isinstance(message, AIMessage):
        found["role"] = "assistant"
        thought = message.additional_kwargs.get("reasoning_content") or thoughts
        if thought:
            found["reasoning"] = thought
        if message.tool_calls:
            found["tool_calls"] = [
                call_of(x["id"], x["name"], x["args"]) for x in message.tool_calls
            ]
    elif isinstance(message, HumanMessage):
        found["role"] = "user"
    elif isinstance(message, SystemMessage):
        found["role"] = message.additional_kwargs.get("__openai_role__", "system")
    elif isinstance(message, ToolMessage):
        found |= {"role": "tool", "tool_call_id": message.tool_call_id}
    elif isinstance(message, FunctionMessage):
        found["role"] = "tool"
    elif isinstance(message, RoleMessage):
        found["role"] = message.role
    else:
        raise Unsupported(f"[ChatAggml] a message of the type {message.type!r} has no role")
    return found


def _content_of(content: str | list[str | dict[str, Any]]) -> tuple[str | list[Any], str]:
    """The content as parts that `TextModel.chat` reads, and the thoughts among them."""
    if isinstance(content, str):
        return content, ""
    parts: list[Any] = []
    thoughts = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        kind = part.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": part.get("text", "")})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("reasoning") or part.get("thinking") or ""))
        elif kind in ("tool_call", "tool_use", "tool_call_chunk", "invalid_tool_call"):
            pass  # the message has them as tool_calls
        elif kind == "image" and "base64" in part:
            parts.append({"type": "image", "image": part["base64"]})
        elif kind == "image" and "url" in part:
            parts.append({"type": "image_url", "image_url": {"url": part["url"]}})
        elif kind == "image" and "source" in part:
            parts.append({"type": "image", "source": part["source"]})
        else:
            parts.append(part)  # a picture as OpenAI has it; anything else is refused by name
    if all(x.get("type") == "text" for x in parts):
        return "".join(x["text"] for x in parts), "".join(thoughts)
    return parts, "".join(thoughts)


class AggmlEmbeddings(Embeddings):
    """A model of aggml as embeddings of LangChain.

    If the model's folder has prompts named "query" and "document" ("passage", "corpus"), these are
    put before queries and documents.

    Args:
        model: as of `ChatAggml`.
        load_options: as of `ChatAggml`.
        options: options of `EncoderModel.embed`, such as ``dimensions``.
    """

    def __init__(
        self,
        model: object,
        *,
        load_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._opened = open_given("AggmlEmbeddings", model, load_options, None)
        self._options = options

    def _for(self, names: Sequence[str]) -> dict[str, Any]:
        return {"prompt": prompt_for(self._opened.model, names), **self._options}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each document."""
        return self._opened.face.embed(texts, **self._for(DOCUMENT)).tolist()  # type: ignore[no-any-return, call-arg]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self._opened.face.embed([text], **self._for(QUERY))[0].tolist()  # type: ignore[no-any-return, call-arg]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each document.

        Cancellation: takes the texts back.
        """
        return (await self._opened.model.embed(texts, **self._for(DOCUMENT))).tolist()  # type: ignore[no-any-return, call-arg]

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a query.

        Cancellation: takes the text back.
        """
        return (await self._opened.model.embed([text], **self._for(QUERY)))[0].tolist()  # type: ignore[no-any-return, call-arg]

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()


class AggmlCompressor(BaseDocumentCompressor):
    """A reranker of aggml as a document compressor of LangChain.

    Documents come back best first, each with its score as ``metadata["relevance_score"]``.

    Attributes:
        model, load_options: as of `ChatAggml`.
        top_n: the most documents; None: all.
        options: options of `EncoderModel.rerank`, such as ``deadline``.
    """

    model: Any = Field(exclude=True, repr=False)
    load_options: dict[str, Any] = Field(default_factory=dict)
    top_n: int | None = 3
    options: dict[str, Any] = Field(default_factory=dict)
    _opened: OpenedModel = PrivateAttr()

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", protected_namespaces=()
    )  # fmt: skip

    def model_post_init(self, context: Any, /) -> None:
        """Open the model; pydantic calls it."""
        super().model_post_init(context)
        self._opened = open_given("AggmlCompressor", self.model, self.load_options, None)

    def compress_documents(
        self,
        documents: Sequence[Document],
        query: str,
        callbacks: Callbacks | None = None,
    ) -> Sequence[Document]:
        """The best documents for a query."""
        texts = [x.page_content for x in documents]
        return self._best(documents, self._opened.face.rerank(query, texts, **self.options))

    async def acompress_documents(
        self,
        documents: Sequence[Document],
        query: str,
        callbacks: Callbacks | None = None,
    ) -> Sequence[Document]:
        """The best documents for a query.

        Cancellation: takes the documents back.
        """
        texts = [x.page_content for x in documents]
        return self._best(documents, await self._opened.model.rerank(query, texts, **self.options))

    def _best(self, documents: Sequence[Document], scores: Any) -> list[Document]:
        return [
            documents[x.index].model_copy(
                update={"metadata": {**documents[x.index].metadata, "relevance_score": x.score}}
            )
            for x in rank(scores, self.top_n)
        ]

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()
