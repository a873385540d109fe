"""pydantic-ai: a model for its agents, with tools, structured answers, thoughts and streams.

``agent = Agent(AggmlModel(model))``, ``(await agent.run("Hello")).output``

Needs ``aggml[pydantic-ai]``. Not here: what a request does (aggml.models).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import (
    BinaryContent,
    FinishReason,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import (
    Model,
    ModelRequestParameters,
    StreamedResponse,
    check_allow_model_requests,
)
from pydantic_ai.models._tool_choice import resolve_tool_choice
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from aggml import Unsupported
from aggml.integrations.opened import call_of, logprobs_of, open_given
from aggml.models.chat import encode_chat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelResponseStreamEvent, UserContent
    from pydantic_ai.tools import ToolDefinition

    from aggml.integrations.opened import OpenedModel
    from aggml.models import ChatDelta, ChatMessage, ChatStream, Token, Usage

__all__ = ["AggmlModel", "AggmlModelSettings"]

REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_call",
}  # fmt: skip
#: Settings of pydantic-ai that are options of `TextModel.chat`, under their names there.
SETTINGS: Final = {
    "max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "seed": "seed", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "stop_sequences": "stop", "timeout": "deadline",
    "parallel_tool_calls": "parallel_tool_calls", "aggml_logprobs": "logprobs",
}  # fmt: skip
EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}


class AggmlModelSettings(ModelSettings, total=False):  # type: ignore[call-arg, unused-ignore]
    """Settings of a request to an `AggmlModel`.

    Attributes:
        aggml_logprobs: how many probable tokens are told beside each one, in
            ``provider_details["logprobs"]``.
        aggml_options: any further options of `TextModel.chat`.
    """

    aggml_logprobs: int
    aggml_options: dict[str, Any]


class AggmlModel(Model):
    """A model of aggml as a model of pydantic-ai: ``Agent(AggmlModel(model))``.

    Answers of a form (``output_type``) are made by a grammar, so they are valid whatever the model
    is. ``timeout`` is the deadline of a request.
    """

    def __init__(
        self,
        model: object,
        *,
        model_name: str | None = None,
        load_options: Mapping[str, Any] | None = None,
        profile: ModelProfile | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        """Take a model.

        Args:
            model: of `aggml.models.load` or of `aggml.models.blocking.load`, which stays its
                owner's; or the path of a file, which is loaded now, and is freed by `close`.
            model_name: what answers tell; None: the name of the file, or of the architecture.
            load_options: for a path: options of `aggml.models.load`.
            profile: what the model can do, in place of what is known of it.
            settings: of all requests.
        """
        self._opened = open_given("AggmlModel", model, load_options, model_name)
        known = ModelProfile(
            supports_tools=True,
            supports_json_schema_output=True,
            supports_json_object_output=True,
            supports_thinking=True,
            default_structured_output_mode="native",
        )
        super().__init__(settings=settings, profile=ModelProfile(**{**known, **(profile or {})}))

    @property
    def model_name(self) -> str:
        """What answers tell."""
        return self._opened.name

    @property
    def system(self) -> str:
        """The provider, as traces have it."""
        return "aggml"

    @property
    def base_url(self) -> None:
        """None: the model is in this process."""
        return

    def close(self) -> None:
        """Free the model, if this object has loaded it."""
        if self._opened.owned:
            self._opened.face.close()

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer a conversation.

        Cancellation: ends the answer.
        """
        check_allow_model_requests()
        given, options = self._request(messages, model_settings, model_request_parameters)
        answer = await self._opened.model.chat(given, **options)
        return ModelResponse(
            parts=_parts_of(answer),
            usage=_usage(answer.usage),
            model_name=self.model_name,
            provider_name=self.system,
            finish_reason=REASONS.get(answer.finish_reason or ""),
            provider_details=_details(self._opened, answer.finish_reason, answer.tokens),
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Answer a conversation, piece by piece.

        Cancellation: ends the answer.
        """
        check_allow_model_requests()
        given, options = self._request(messages, model_settings, model_request_parameters)
        async with aclosing(self._opened.model.chat_stream(given, **options)) as stream:
            await stream.start()  # what is refused is refused here
            yield _AggmlResponse(model_request_parameters, stream, self._opened)

    async def count_tokens(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> RequestUsage:
        """How many tokens the conversation has."""
        given, options = self._request(messages, model_settings, model_request_parameters)
        asked = {x: options[x] for x in ("tools", "tool_choice", "think") if x in options}
        model: Any = self._opened.model
        return RequestUsage(input_tokens=len(await encode_chat(model, given, **asked)))

    def _request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options of `TextModel.chat`."""
        prepared, parameters = self.prepare_request(model_settings, parameters)
        settings: dict[str, Any] = dict(prepared or {})
        options = {
            name: settings[key] for key, name in SETTINGS.items() if settings.get(key) is not None
        }
        if settings.get("logit_bias"):
            options["logit_bias"] = {int(x): bias for x, bias in settings["logit_bias"].items()}
        if parameters.thinking is not None:
            options["think"] = EFFORTS.get(str(parameters.thinking), parameters.thinking)
        options |= _tools(prepared, parameters)
        form = parameters.output_object
        if parameters.output_mode == "native" and form is not None:
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": form.name or "answer", "schema": form.json_schema},
            }
        elif parameters.output_mode == "prompted" and form is not None:
            options["response_format"] = {"type": "json_object"}
        options |= settings.get("aggml_options") or {}
        found = [y for x in messages for y in _messages_of(x)]
        system = 0
        while system < len(found) and found[system]["role"] == "system":
            system += 1
        found[system:system] = [
            {"role": "system", "content": x.content}
            for x in self._get_instruction_parts(messages, parameters) or ()
        ]
        return found, options


def _tools(
    settings: ModelSettings | None, parameters: ModelRequestParameters
) -> dict[str, Any]:  # fmt: skip
    """The tools that a model is told of, and whether it must call one."""
    tools = dict(parameters.declared_tool_defs)
    choice: Any = resolve_tool_choice(settings, parameters)
    if isinstance(choice, tuple):
        choice, names = choice
        tools = {name: x for name, x in tools.items() if name in names}
    if not tools:
        return {}
    return {"tools": [_tool_of(x) for x in tools.values()], "tool_choice": choice}


def _tool_of(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name, "description": tool.description or "",
        "parameters": tool.parameters_json_schema, "strict": bool(tool.strict),
    }  # fmt: skip
    return {"type": "function", "function": function}


def _messages_of(message: ModelMessage) -> list[dict[str, Any]]:
    """A request or an answer, as `TextModel.chat` reads it."""
    if isinstance(message, ModelRequest):
        return [x for part in message.parts for x in _request_part(part)]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.content)
        elif isinstance(part, ThinkingPart):
            thoughts.append(part.content)
        elif isinstance(part, ToolCallPart):
            calls.append(call_of(part.tool_call_id, part.tool_name, part.args_as_json_str()))
        # Files, and calls that a service has made for another model, are left out.
    if not (texts or thoughts or calls):
        return []
    found: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        found["reasoning"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return [found]


def _request_part(part: object) -> list[dict[str, Any]]:
    if isinstance(part, SystemPromptPart):
        return [{"role": "system", "content": part.content}]
    if isinstance(part, UserPromptPart):
        return [{"role": "user", "content": _content_of(part.content)}]
    if isinstance(part, ToolReturnPart):
        text, files = part.model_response_str_and_user_content()
        found: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name,
             "content": text}
        ]  # fmt: skip
        return [*found, {"role": "user", "content": _content_of(files)}] if files else found
    if isinstance(part, RetryPromptPart):
        if part.tool_name is None:
            return [{"role": "user", "content": part.model_response()}]
        return [
            {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name,
             "content": part.model_response()}
        ]  # fmt: skip
    raise Unsupported(f"[AggmlModel] a request has a part {type(part).__name__}")


def _content_of(content: str | Sequence[UserContent]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    found: list[dict[str, Any]] = []
    for item in content:
        if isinstance(item, str):
            found.append({"type": "text", "text": item})
        elif isinstance(item, TextContent):
            found.append({"type": "text", "text": item.content})
        elif isinstance(item, ImageUrl):
            found.append({"type": "image_url", "image_url": {"url": item.url}})
        elif isinstance(item, BinaryContent) and item.is_image:
            found.append({"type": "image", "image": item.data})
        else:
            raise Unsupported(
                f"[AggmlModel] a message has {type(item).__name__}, expected a text or a picture"
            )
    return found


def _parts_of(answer: ChatMessage) -> list[ModelResponsePart]:
    found: list[ModelResponsePart] = []
    if answer.reasoning is not None:
        found.append(ThinkingPart(content=answer.reasoning, provider_name="aggml"))
    if answer.content:
        found.append(TextPart(content=answer.content))
    return found + [
        ToolCallPart(tool_name=x.name, args=x.text, tool_call_id=x.id) for x in answer.tool_calls
    ]


def _usage(usage: Usage) -> RequestUsage:
    thoughts = usage.reasoning_tokens
    return RequestUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.cached_tokens,
        details={"reasoning_tokens": thoughts} if thoughts else {},
    )


def _details(opened: OpenedModel, reason: str | None, tokens: Sequence[Token]) -> dict[str, Any]:
    told = logprobs_of(opened.model, tokens)
    return {"finish_reason": reason, **({"logprobs": told} if told else {})}


@dataclass
class _AggmlResponse(StreamedResponse):
    """An answer, piece by piece."""

    _stream: ChatStream
    _opened: OpenedModel
    _began: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def close_stream(self) -> None:
        """End the answer."""
        await self._stream.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        tokens: list[Token] = []
        async for delta in self._stream:
            tokens += delta.tokens
            for event in self._events(delta):
                yield event
            self._usage = _usage(self._stream.usage)
            if delta.finish_reason is not None:
                self.finish_reason = REASONS.get(delta.finish_reason)
                self.provider_details = _details(self._opened, delta.finish_reason, tokens)

    def _events(self, delta: ChatDelta) -> list[ModelResponseStreamEvent]:
        parts = self._parts_manager
        found: list[ModelResponseStreamEvent] = []
        if delta.reasoning:
            found += parts.handle_thinking_delta(
                vendor_part_id="reasoning", content=delta.reasoning, provider_name="aggml"
            )
        if delta.content:
            found += parts.handle_text_delta(vendor_part_id="content", content=delta.content)
        for x in delta.tool_calls:
            event = parts.handle_tool_call_delta(
                vendor_part_id=x.index, tool_name=x.name, args=x.arguments, tool_call_id=x.id
            )
            if event is not None:
                found.append(event)
        return found

    @property
    def model_name(self) -> str:
        """What answers tell."""
        return self._opened.name

    @property
    def provider_name(self) -> str:
        """The provider, as traces have it."""
        return "aggml"

    @property
    def provider_url(self) -> None:
        """None: the model is in this process."""
        return

    @property
    def timestamp(self) -> datetime:
        """When the answer began."""
        return self._began
