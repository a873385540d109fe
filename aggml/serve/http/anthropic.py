"""Anthropic's protocol: `/v1/messages`, whole and streamed, and the count of a request's tokens.

The blocks of a request become messages of `TextModel.chat`, and the answer is sent as blocks. Not
here: the fields of requests (schema.py), the order in which bytes are sent (sending.py).
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from aggml.models.chat import encode_chat
from aggml.serve.http.choice import ChatChoice, Choice
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import Failure, anthropic_error, as_json, event_of
from aggml.serve.http.generating import effort_of, sampling_options
from aggml.serve.http.schema import AnthropicCount, AnthropicRequest, RequestError, Sampling
from aggml.serve.http.sending import Writer, respond

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aggml.serve.http.choice import AnswerPiece

__all__ = [
    "ENDPOINTS",
    "PromptArguments",
    "arguments_of",
    "count_tokens",
    "messages",
    "messages_of",
]

#: A block of the system prompt that begins so is left out: it differs in each request, so that no
#: stored prefix would fit.
BILLING: Final = "x-anthropic-billing-header"
PromptArguments = dict[str, Any]


# -- the request


def messages_of(given: AnthropicCount, *, sees: bool = False) -> list[dict[str, Any]]:
    """The conversation of a request, as messages of `TextModel.chat`.

    Args:
        given: the request.
        sees: whether messages may have pictures.

    Raises:
        RequestError: a block is of another type than text, call, result, thought, or picture if
            the model sees pictures.
    """
    found: list[dict[str, Any]] = []
    system = given.system
    if isinstance(system, list):
        texts = [_text(x, f"system[{i}]") for i, x in enumerate(system)]
        system = "\n".join(x for x in texts if not x.startswith(BILLING))
    if system:
        found.append({"role": "system", "content": system})
    for i, message in enumerate(given.messages):
        at = f"messages[{i}].content"
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(_assistant_message(message.content, at))
        else:
            found += _user_messages(message.role, message.content, at, sees=sees)
    return found


def _text(block: dict[str, Any], at: str) -> str:
    """The text of a block, which stands at the place ``at`` of the request."""
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        kind = str(block.get("type"))[:64]
        raise RequestError(
            400, f"{at}.type is {kind!r}, expected 'text': the model reads text alone",
            field="messages",
        )  # fmt: skip
    return text


def _assistant_message(blocks: list[dict[str, Any]], at: str) -> dict[str, Any]:
    """A message of the assistant: its texts joined, its thoughts, its calls."""
    texts, thoughts, calls = [], [], []
    for j, block in enumerate(blocks):
        match block.get("type"):
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(
                    {
                        "id": str(block.get("id", "")),
                        "type": "function",
                        "function": {
                            "name": str(block.get("name", "")),
                            "arguments": block.get("input") or {},
                        },
                    }
                )
            case _:
                texts.append(_text(block, f"{at}[{j}]"))
    found: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        found["reasoning_content"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _user_messages(
    role: str, blocks: list[dict[str, Any]], at: str, *, sees: bool
) -> list[dict[str, Any]]:
    """Messages that are not the assistant's.

    Each result of a call is a message of its own; the texts and pictures beside them are one more.
    """
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    parts: list[dict[str, Any]] = []  # pictures, and the texts before each
    for j, block in enumerate(blocks):
        if sees and block.get("type") == "image":
            parts += [{"type": "text", "text": "\n".join(texts)}] if texts else []
            parts.append({k: x for k, x in block.items() if k in ("type", "source")})
            texts = []
            continue
        if block.get("type") != "tool_result":
            texts.append(_text(block, f"{at}[{j}]"))
            continue
        content = block.get("content") or ""
        if isinstance(content, list):
            inner = enumerate(content)
            content = "\n".join(_text(x, f"{at}[{j}].content[{k}]") for k, x in inner)
        if not isinstance(content, str):
            raise RequestError(
                400, f"{at}[{j}].content must be a text or blocks of text", field="messages"
            )
        found.append(
            {
                "role": "tool",
                "content": content,
                "tool_call_id": str(block.get("tool_use_id", "")),
            }
        )
    if parts:
        parts += [{"type": "text", "text": "\n".join(texts)}] if texts else []
        found.append({"role": role, "content": parts})
    elif texts or not found:
        found.append({"role": role, "content": "\n".join(texts)})
    return found


def arguments_of(given: AnthropicCount, exchange: Exchange) -> PromptArguments:
    """The arguments of `TextModel.chat` on which the prompt depends, but for the messages.

    Raises:
        RequestError: ``tool_choice`` names no tool.
    """
    found: PromptArguments = {"continue_final": given.messages[-1].role == "assistant"}
    tools = []
    for i, tool in enumerate(given.tools or ()):
        if tool.type not in (None, "custom"):
            exchange.unknown.append(f"tools[{i}].type")
            continue
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
        if tool.strict is not None:
            function["strict"] = tool.strict
        tools.append({"type": "function", "function": function})
    if tools:
        found["tools"] = tools
    choice = given.tool_choice
    if choice is not None:
        if choice.type == "tool" and choice.name is None:
            raise RequestError(400, "tool_choice.name is missing", field="tool_choice")
        kinds: dict[str, Any] = {"any": "required", "auto": "auto", "none": "none"}
        found["tool_choice"] = kinds.get(choice.type) or {
            "type": "function",
            "function": {"name": choice.name},
        }
        if choice.disable_parallel_tool_use:
            found["parallel_tool_calls"] = False
    config = given.output_config
    if given.thinking is not None:
        kind, budget = given.thinking.type, given.thinking.budget_tokens
        found["think"] = budget if kind == "enabled" and budget else kind != "disabled"
    if config is not None and config.effort is not None and found.get("think") in (None, True):
        found["think"] = effort_of(config.effort)
    if config is not None and config.format is not None:
        schema = config.format.get("schema")
        if config.format.get("type") != "json_schema" or not isinstance(schema, dict):
            raise RequestError(
                400, "output_config.format must be {'type': 'json_schema', 'schema': ...}",
                field="output_config",
            )  # fmt: skip
        found["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return found


# -- the answer


class _Messages(Writer):
    """The answer as blocks: thoughts, text, calls."""

    def __init__(self, choices: Sequence[Choice], exchange: Exchange, ctx: int) -> None:
        super().__init__(choices)
        self._ctx = ctx
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": exchange.model,
        }
        self._n_blocks = 0  # how many have begun
        self._open_block = ""  # the kind of the block that has begun and not ended; "": none

    def _usage(self) -> dict[str, Any]:
        cached = self.cached_tokens
        return {
            "input_tokens": max(0, self.prompt_tokens - cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.completion_tokens,
        }

    def _ending(self, choice: Choice) -> dict[str, Any]:
        """Why the answer ended, in Anthropic's words."""
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(
            choice.reason or "stop", "end_turn"
        )
        if reason == "max_tokens" and choice.prompt_tokens + choice.made > self._ctx:
            reason = "model_context_window_exceeded"
        stop = choice.stop_text if reason == "end_turn" else None
        return {"stop_reason": "stop_sequence" if stop else reason, "stop_sequence": stop}

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        (choice,) = self.choices
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.content:
            content.append({"type": "text", "text": choice.content})
        content += [
            {"type": "tool_use", "id": x.id, "name": x.name, "input": _parse_arguments(x.arguments)}
            for x in choice.calls
        ]
        return {**self._head, "content": content, **self._ending(choice), "usage": self._usage()}

    def begin(self) -> bytes:
        """The message without its content."""
        message: dict[str, Any] = {
            **self._head, "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {**self._usage(), "output_tokens": 0},
        }  # fmt: skip
        start = {"type": "message_start", "message": message}
        return _event(start) + _event({"type": "ping"})

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """Events for a piece of the answer; they begin and end blocks where its kind changes."""
        found = b""
        if piece.reasoning:
            found += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            found += self._delta({"type": "thinking_delta", "thinking": piece.reasoning})
        if piece.content:
            found += self._begin("text", {"type": "text", "text": ""})
            found += self._delta({"type": "text_delta", "text": piece.content})
        for call in piece.calls:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": {},
            }
            found += self._begin(f"call {call.index}", block)
            if call.arguments:
                found += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return found

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        """Begin a block and end the open one, unless the open one is of this kind."""
        if self._open_block == kind:
            return b""
        found = self._end()
        self._open_block = kind
        self._n_blocks += 1
        start = {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}
        return found + _event(start)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta})

    def _end(self) -> bytes:
        """End the open block, if there is one."""
        if not self._open_block:
            return b""
        found = b""
        if self._open_block == "thinking":
            found = self._delta({"type": "signature_delta", "signature": ""})
        self._open_block = ""
        return found + _event({"type": "content_block_stop", "index": self._n_blocks - 1})

    def end_choice(self, choice: Choice) -> bytes:
        """The end of the last block, and why the answer ended."""
        delta = {"type": "message_delta", "delta": self._ending(choice), "usage": self._usage()}
        return self._end() + _event(delta)

    def end(self) -> bytes:
        """The end of the message."""
        return _event({"type": "message_stop"})

    def failure(self, failure: Failure) -> bytes:
        """An event with the error."""
        return _event(anthropic_error(failure))


def _event(content: dict[str, Any]) -> bytes:
    return event_of(content, content["type"])


def _parse_arguments(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object, also if the model has not finished their JSON."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {"raw": arguments}
    return found if isinstance(found, dict) else {"value": found}


async def messages(exchange: Exchange) -> Response:
    """Write the next message of a conversation, in Anthropic's form."""
    given = await exchange.read(AnthropicRequest)
    if given.metadata is not None and given.user is None:
        given.user = given.metadata.get("user_id")
    model = await exchange.text_model(given)
    sampling = Sampling(
        temperature=given.temperature, priority=given.priority, timeout=given.timeout,
        stop=given.stop_sequences,
    )  # fmt: skip
    if given.top_p is not None:
        sampling.top_p = given.top_p
    if given.top_k is not None:
        sampling.top_k = given.top_k
    options = sampling_options(sampling, model, exchange, None)
    options |= {"max_tokens": given.max_tokens, **arguments_of(given, exchange)}
    choice = ChatChoice(model, messages_of(given, sees=model.sees), options, index=0)
    writer = _Messages([choice], exchange, model.ctx)
    seconds = exchange.seconds(given)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


async def count_tokens(exchange: Exchange) -> Response:
    """Count the tokens of a conversation, in Anthropic's form."""
    given = await exchange.read(AnthropicCount)
    model = await exchange.text_model(given)
    arguments = arguments_of(given, exchange)
    kept = {k: v for k, v in arguments.items() if k in ("tools", "tool_choice", "think")}
    ids = await encode_chat(
        model,
        messages_of(given, sees=model.sees),
        continue_final=arguments["continue_final"],
        **kept,
    )
    return as_json({"input_tokens": len(ids)})


ENDPOINTS: Final = (
    Endpoint(
        "/v1/messages", messages, AnthropicRequest, aliases=("/messages",), errors=anthropic_error
    ),
    Endpoint(
        "/v1/messages/count_tokens", count_tokens, AnthropicCount,
        aliases=("/messages/count_tokens",), errors=anthropic_error,
    ),
)  # fmt: skip
