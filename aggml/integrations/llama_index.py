"""LlamaIndex: an LLM with tools, embeddings, a reranker of nodes.

``llm = AggmlLLM(model=model)``, ``await llm.achat([ChatMessage("Hello")])``

Needs ``aggml[llama-index]``. Not here: what a request does (aggml.models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    ImageBlock,
    LLMMetadata,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.utils import parse_partial_json
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

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
from aggml.models import rank

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

    from aggml.models import ChatDelta, Token, Usage
    from aggml.models import ChatMessage as Answer

__all__ = ["AggmlEmbedding", "AggmlLLM", "AggmlRerank"]

#: Roles that the model does not have under this name.
ROLES: Final = {"function": "tool", "chatbot": "assistant", "model": "assistant"}


class AggmlLLM(FunctionCallingLLM):
    """A model of aggml as an LLM of LlamaIndex, which calls functions.

    ``achat``, ``astream_chat`` and the like await the model; ``chat``, ``stream_chat`` may be
    called in any thread. ``complete`` continues the text as it is, ``chat`` answers.

    Attributes:
        model: a model of `aggml.models.load` or `aggml.models.blocking.load`, which stays its
            owner's; or the path of a file, which is loaded at once, and is freed by `close`.
        model_name: what the metadata tell; empty: the name of the file, or of the architecture.
        load_options: for a path: options of `aggml.models.load`.
        max_tokens, temperature: options of `TextModel.chat`.
        logprobs: how many probable tokens are told beside each one, in ``response.logprobs``;
            None: none is told.
        options: any further options of `TextModel.chat` and `TextModel.generate`.
    """

    model: Any = Field(exclude=True, repr=False)
    model_name: str = ""
    load_options: dict[str, Any] = Field(default_factory=dict)
    max_tokens: int = DEFAULT_NUM_OUTPUTS
    temperature: float = 0.0
    logprobs: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    _opened: OpenedModel = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the model; pydantic calls it."""
        super().model_post_init(context)
        self._opened = open_given("AggmlLLM", self.model, self.load_options, self.model_name)
        self.model_name = self._opened.name

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex files it."""
        return "AggmlLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex wants to know of a model."""
        return LLMMetadata(
            context_window=self._opened.model.ctx,
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model_name,
        )

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "max_tokens": self.max_tokens, "temperature": self.temperature,
            "logprobs": self.logprobs, **self.options, **given,
        }  # fmt: skip
        return {name: value for name, value in asked.items() if value is not None}

    # -- chat

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation."""
        given = [_message_of(x) for x in messages]
        return self._response(self._opened.face.chat(given, **self._options(kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation.

        Cancellation: ends the answer.
        """
        given = [_message_of(x) for x in messages]
        return self._response(await self._opened.model.chat(given, **self._options(kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation, piece by piece; each response has the answer so far."""
        given = [_message_of(x) for x in messages]
        stream = self._opened.face.chat_stream(given, **self._options(kwargs))

        def pieces() -> ChatResponseGen:
            growing = _Growing(self)
            with stream:
                for delta in stream:
                    yield growing.add(delta, stream.usage)

        return pieces()

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """Answer a conversation, piece by piece; each response has the answer so far.

        Cancellation: ends the answer.
        """
        given = [_message_of(x) for x in messages]
        stream = self._opened.model.chat_stream(given, **self._options(kwargs))

        async def pieces() -> ChatResponseAsyncGen:
            growing = _Growing(self)
            async with aclosing(stream):
                async for delta in stream:
                    yield growing.add(delta, stream.usage)

        return pieces()

    def _response(self, answer: Answer) -> ChatResponse:
        calls = [
            ToolCallBlock(tool_call_id=x.id, tool_name=x.name, tool_kwargs=x.arguments)
            for x in answer.tool_calls
        ]
        return ChatResponse(
            message=_answer(answer.content, answer.reasoning, calls),
            logprobs=self._logprobs(answer.tokens),
            raw=self._raw(answer.usage, answer.finish_reason),
            additional_kwargs=_counts(answer.usage),
        )

    def _raw(self, usage: Usage, reason: str | None) -> dict[str, Any]:
        return {"model": self.model_name, "finish_reason": reason, "usage": _counts(usage)}

    def _logprobs(self, tokens: Sequence[Token]) -> list[list[LogProb]] | None:
        """For each token the probable ones in its place; without them, itself."""
        found = logprobs_of(self._opened.model, tokens)
        return [
            [LogProb(token=x["token"], logprob=x["logprob"], bytes=x["bytes"])
             for x in token["top_logprobs"] or [token]]
            for token in found
        ] or None  # fmt: skip

    # -- texts

    def _prompt(self, prompt: str, *, formatted: bool) -> str:
        return prompt if formatted else self.completion_to_prompt(prompt)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Continue a text."""
        text = self._prompt(prompt, formatted=formatted)
        with self._opened.face.generate(text, **self._options(kwargs)) as stream:
            tokens = list(stream)
            return self._completion(tokens, stream.prompt_tokens)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Continue a text.

        Cancellation: ends the request.
        """
        text = self._prompt(prompt, formatted=formatted)
        async with aclosing(
            self._opened.model.generate(text, **self._options(kwargs))
        ) as stream:  # fmt: skip
            tokens = [token async for token in stream]
            return self._completion(tokens, stream.prompt_tokens)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Continue a text, token by token; each response has the text so far."""
        text = self._prompt(prompt, formatted=formatted)
        stream = self._opened.face.generate(text, **self._options(kwargs))

        def pieces() -> CompletionResponseGen:
            tokens: list[Token] = []
            with stream:
                for token in stream:
                    tokens.append(token)
                    yield self._completion(tokens, stream.prompt_tokens, token)

        return pieces()

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Continue a text, token by token; each response has the text so far.

        Cancellation: ends the request.
        """
        text = self._prompt(prompt, formatted=formatted)
        stream = self._opened.model.generate(text, **self._options(kwargs))

        async def pieces() -> CompletionResponseAsyncGen:
            tokens: list[Token] = []
            async with aclosing(stream):
                async for token in stream:
                    tokens.append(token)
                    yield self._completion(tokens, stream.prompt_tokens, token)

        return pieces()

    def _completion(
        self, tokens: Sequence[Token], prompt_tokens: int, last: Token | None = None
    ) -> CompletionResponse:
        counts = {
            "prompt_tokens": prompt_tokens, "completion_tokens": len(tokens),
            "total_tokens": prompt_tokens + len(tokens),
        }  # fmt: skip
        reason = tokens[-1].finish_reason if tokens else None
        return CompletionResponse(
            text="".join(token.text for token in tokens),
            delta=None if last is None else last.text,
            logprobs=self._logprobs(tokens if last is None else [last]),
            raw={"model": self.model_name, "finish_reason": reason, "usage": counts},
            additional_kwargs=counts,
        )

    # -- tools

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(
                ChatMessage(role=MessageRole.USER, content=user_msg)
                if isinstance(user_msg, str)
                else user_msg
            )
        if not tools:
            return {"messages": messages, **kwargs}
        return {
            "messages": messages,
            "tools": [x.metadata.to_openai_tool(skip_length_check=True) for x in tools],
            "tool_choice": tool_choice or ("required" if tool_required else "auto"),
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **kwargs: Any,
    ) -> list[ToolSelection]:
        """The calls of an answer.

        Raises:
            ValueError: there is none, and ``error_on_no_tool_call``.
        """
        found = [
            ToolSelection(
                tool_id=x.tool_call_id or "",
                tool_name=x.tool_name,
                tool_kwargs=_arguments(x.tool_kwargs),
            )
            for x in response.message.blocks
            if isinstance(x, ToolCallBlock)
        ]
        if not found and error_on_no_tool_call:
            raise InvalidArgument("[AggmlLLM] the answer calls no function, expected at least one")
        return found


class _Growing:
    """An answer that grows piece by piece."""

    def __init__(self, llm: AggmlLLM) -> None:
        self._llm = llm
        self._content = ""
        self._reasoning = ""
        self._calls: dict[int, ToolCallBlock] = {}

    def add(self, delta: ChatDelta, usage: Usage) -> ChatResponse:
        """The answer so far; ``usage`` counts with its last piece."""
        self._content += delta.content
        self._reasoning += delta.reasoning or ""
        for piece in delta.tool_calls:
            known = self._calls.get(piece.index)
            before = "" if known is None else str(known.tool_kwargs)
            self._calls[piece.index] = ToolCallBlock(
                tool_call_id=piece.id if known is None else known.tool_call_id,
                tool_name=piece.name or "" if known is None else known.tool_name,
                tool_kwargs=before + piece.arguments,
            )
        last = delta.finish_reason is not None
        return ChatResponse(
            message=_answer(self._content, self._reasoning or None, [*self._calls.values()]),
            delta=delta.content,
            logprobs=self._llm._logprobs(delta.tokens),
            raw=self._llm._raw(usage, delta.finish_reason) if last else None,
            additional_kwargs=_counts(usage) if last else {},
        )


def _answer(content: str, reasoning: str | None, calls: Sequence[ToolCallBlock]) -> ChatMessage:
    thoughts = [] if reasoning is None else [ThinkingBlock(content=reasoning)]
    return ChatMessage(
        role=MessageRole.ASSISTANT, blocks=[*thoughts, TextBlock(text=content), *calls]
    )  # fmt: skip


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _arguments(given: dict[str, Any] | str) -> dict[str, Any]:
    """The arguments of a call, also of one that is not complete."""
    if not isinstance(given, str):
        return given
    try:
        found = parse_partial_json(given) if given.strip() else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message_of(message: ChatMessage) -> dict[str, Any]:
    """A message as `TextModel.chat` reads it."""
    role = ROLES.get(message.role.value, message.role.value)
    parts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, ImageBlock):
            url = str(block.url) if block.url is not None else None
            parts.append(
                {"type": "image_url", "image_url": {"url": url}}
                if url is not None and block.image is None
                else {"type": "image", "image": block.resolve_image().read()}
            )
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.content or "")
        elif isinstance(block, ToolCallBlock):
            calls.append(call_of(block.tool_call_id, block.tool_name, block.tool_kwargs))
        else:
            raise Unsupported(f"[AggmlLLM] a message has a block {block.block_type!r}")
    found: dict[str, Any] = {"role": role, "content": parts}
    if all(x["type"] == "text" for x in parts):
        found["content"] = "".join(x["text"] for x in parts)
    if any(thoughts):
        found["reasoning"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    for key in ("name", "tool_call_id"):
        if message.additional_kwargs.get(key) is not None:
            found[key] = message.additional_kwargs[key]
    return found


class AggmlEmbedding(BaseEmbedding):
    """A model of aggml as embeddings of LlamaIndex.

    If the model's folder has prompts named "query" and "document" ("passage", "corpus"), these are
    put before queries and texts.

    Attributes:
        model, load_options: as of `AggmlLLM`.
        model_name: "unknown": the name of the file, or of the architecture.
        options: options of `EncoderModel.embed`, such as ``dimensions``.
    """

    model: Any = Field(exclude=True, repr=False)
    model_name: str = "unknown"
    load_options: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    _opened: OpenedModel = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the model; pydantic calls it."""
        super().model_post_init(context)
        name = None if self.model_name == "unknown" else self.model_name
        self._opened = open_given("AggmlEmbedding", self.model, self.load_options, name)
        self.model_name = self._opened.name

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex files it."""
        return "AggmlEmbedding"

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    def _embed(self, texts: list[str], names: Sequence[str]) -> list[list[float]]:
        embed: Any = self._opened.face.embed
        found: list[list[float]] = embed(texts, **self._for(names)).tolist()
        return found

    async def _aembed(self, texts: list[str], names: Sequence[str]) -> list[list[float]]:
        embed: Any = self._opened.model.embed
        found: list[list[float]] = (await embed(texts, **self._for(names))).tolist()
        return found

    def _for(self, names: Sequence[str]) -> dict[str, Any]:
        return {"prompt": prompt_for(self._opened.model, names), **self.options}

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], QUERY)[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._aembed([query], QUERY))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], DOCUMENT)[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aembed([text], DOCUMENT))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, DOCUMENT)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._aembed(texts, DOCUMENT)


class AggmlRerank(BaseNodePostprocessor):
    """A reranker of aggml as a postprocessor of LlamaIndex: nodes by their scores, best first.

    Attributes:
        model, load_options: as of `AggmlLLM`.
        top_n: the most nodes.
        options: options of `EncoderModel.rerank`, such as ``deadline``.
    """

    model: Any = Field(exclude=True, repr=False)
    load_options: dict[str, Any] = Field(default_factory=dict)
    top_n: int = 2
    options: dict[str, Any] = Field(default_factory=dict)
    _opened: OpenedModel = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the model; pydantic calls it."""
        super().model_post_init(context)
        self._opened = open_given("AggmlRerank", self.model, self.load_options, None)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex files it."""
        return "AggmlRerank"

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        scores = self._opened.face.rerank(*_pair(nodes, query_bundle), **self.options)
        return self._best(nodes, scores)

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        scores = await self._opened.model.rerank(*_pair(nodes, query_bundle), **self.options)
        return self._best(nodes, scores)

    def _best(self, nodes: list[NodeWithScore], scores: Any) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=nodes[x.index].node, score=x.score) for x in rank(scores, self.top_n)
        ]


def _pair(nodes: list[NodeWithScore], query: QueryBundle | None) -> tuple[str, list[str]]:
    """The query, and the text of each node."""
    if query is None:
        raise InvalidArgument("[AggmlRerank] query_bundle is None, expected a query to rank by")
    return query.query_str, [x.node.get_content(MetadataMode.EMBED) for x in nodes]
