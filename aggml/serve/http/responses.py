"""OpenAI's responses: `/v1/responses`, whole and as events, with answers that follow earlier ones.

Items become messages of `TextModel.chat`, and pieces of the answer become items. Not here: fields
(schema.py), answers that are kept for `previous_response_id` (kept.py), the order in which bytes
are sent (sending.py).
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from aggml.models.chat import encode_chat
from aggml.serve.http.choice import ChatChoice, Choice
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import Failure, as_json, event_of
from aggml.serve.http.generating import effort_of, messages_of, sampling_options
from aggml.serve.http.openai import chat_arguments, chat_logprobs, limit_of, progress_for
from aggml.serve.http.schema import (
    Call,
    Chat,
    ContentPart,
    FunctionCall,
    Message,
    RequestError,
    ResponsesRequest,
    Sampling,
)
from aggml.serve.http.sending import Writer, respond
from aggml.serve.http.timings import progress_of, timings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aggml.models import ToolCallDelta
    from aggml.serve.http.choice import AnswerPiece

__all__ = [
    "ENDPOINTS",
    "count_chat",
    "count_input",
    "delete_response",
    "input_items",
    "one_response",
    "responses",
]

LOGPROBS: Final = "message.output_text.logprobs"


# -- the request


def _items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given


class _Reader:
    """Makes messages of items: calls and thoughts of one turn become one message."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.messages: list[Message] = []
        self._thoughts = ""

    def read(self, items: Sequence[dict[str, Any]]) -> list[Message]:
        """The messages.

        Raises:
            RequestError: an item is malformed.
        """
        for i, item in enumerate(items):
            self._add(item, f"input[{i}]")
        return self.messages

    def _add(self, item: dict[str, Any], at: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, at)
            case "function_call":
                call = FunctionCall(_text(item, "name", at), _text(item, "arguments", at))
                calls = self._turn().tool_calls
                assert calls is not None
                calls.append(Call(call, _text(item, "call_id", at)))
            case "function_call_output":
                name = _text(item, "call_id", at)
                content = self._content(item.get("output", ""), f"{at}.output")
                self.messages.append(Message("tool", content, tool_call_id=name))
            case "reasoning":
                parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
                self._thoughts += "".join(str(x.get("text", "")) for x in parts if _is_object(x))
            case kind:
                self._exchange.unknown.append(f"{at}.type={kind}")

    def _message(self, item: dict[str, Any], at: str) -> None:
        role = _text(item, "role", at)
        message = Message(role, self._content(item.get("content"), f"{at}.content"))
        if role == "assistant" and self._thoughts:
            message.reasoning_content, self._thoughts = self._thoughts, ""
        self.messages.append(message)

    def _turn(self) -> Message:
        """The message of the assistant to which a call belongs."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant":
            last = Message("assistant", None)
            self.messages.append(last)
        if self._thoughts:
            last.reasoning_content, self._thoughts = self._thoughts, ""
        if last.tool_calls is None:
            last.tool_calls = []
        return last

    def _content(self, given: Any, at: str) -> str | list[ContentPart]:  # noqa: ANN401 any JSON
        if given is None or isinstance(given, str):
            return given or ""
        try:
            return msgspec.convert(given, list[ContentPart])
        except msgspec.ValidationError as error:
            raise RequestError(400, f"{at}: {error}", field="input") from error


def _is_object(given: object) -> bool:
    return isinstance(given, dict)


def _text(item: dict[str, Any], name: str, at: str) -> str:
    found = item.get(name)
    if not isinstance(found, str):
        raise RequestError(400, f"{at}.{name} must be a text", field="input")
    return found


def _tools(given: ResponsesRequest, exchange: Exchange) -> list[dict[str, Any]]:
    """The functions; other tools are noted as ignored."""
    found = []
    for i, tool in enumerate(given.tools or ()):
        if tool.get("type") != "function":
            exchange.unknown.append(f"tools[{i}].type={tool.get('type')}")
            continue
        names = ("name", "description", "parameters", "strict")
        function = {x: tool[x] for x in names if tool.get(x) is not None}
        found.append({"type": "function", "function": function})
    return found


def _tool_choice(given: Any) -> Any:  # noqa: ANN401 any JSON
    if not isinstance(given, dict):
        return given
    if given.get("type") == "function":
        name = given.get("name") or (given.get("function") or {}).get("name")
        return {"type": "function", "function": {"name": name}}
    if given.get("type") == "allowed_tools" and given.get("mode") in ("auto", "required"):
        tools = given.get("tools")
        if isinstance(tools, list) and tools and all(isinstance(x, dict) for x in tools):
            allowed = {"mode": given["mode"], "tools": tools}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    raise RequestError(
        400, "tool_choice must be none, auto, required, a function, or allowed tools",
        field="tool_choice",
    )  # fmt: skip


def _arguments(given: ResponsesRequest, exchange: Exchange) -> dict[str, Any]:
    """The arguments of `TextModel.chat` that are not those of `generate`."""
    tools = _tools(given, exchange)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": ""}]}
    if tools:
        chat["tools"] = tools
        chat["tool_choice"] = _tool_choice(given.tool_choice)
    chat["parallel_tool_calls"] = given.parallel_tool_calls
    form = given.text.format if given.text is not None else None
    if form is not None and form.type == "json_object":
        chat["response_format"] = {"type": "json_object"}
    elif form is not None and form.type == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.schema}}
    try:
        found = chat_arguments(msgspec.convert(chat, Chat))
    except msgspec.ValidationError as error:
        raise RequestError(400, f"tools: {error}", field="tools") from error
    if given.reasoning is not None and given.reasoning.effort is not None:
        found["think"] = effort_of(given.reasoning.effort)
    return found


# -- the answer


class _Responses(Writer):
    """The answer as items: thoughts, a message, calls."""

    def __init__(
        self,
        choices: Sequence[Choice],
        exchange: Exchange,
        given: ResponsesRequest,
        before: list[dict[str, Any]],
    ) -> None:
        super().__init__(choices)
        self._exchange = exchange
        self._given = given
        self._before = before
        self._name = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []  # items that are complete
        self._item: dict[str, Any] | None = None  # the one that is not
        self._call = -1  # index of its call
        self._logprobs = LOGPROBS in (given.include or ()) or given.top_logprobs is not None

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        given = self._given
        reasoning = None if given.reasoning is None else given.reasoning.effort
        form: dict[str, Any] = {"type": "text"}
        if given.text is not None and given.text.format is not None:
            form = msgspec.to_builtins(given.text.format)
        ended = status in ("completed", "incomplete")
        choice = given.tool_choice
        return {
            "id": self._name, "object": "response", "created_at": self._created, "status": status,
            "background": False, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete"
            else None,
            "instructions": given.instructions, "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {}, "model": self._exchange.model, "output": output,
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": given.previous_response_id,
            "reasoning": {"effort": reasoning, "summary": None},
            "service_tier": "default", "store": given.store is not False,
            "temperature": given.temperature, "text": {"format": form},
            "tool_choice": "auto" if choice is None else choice, "tools": given.tools or [],
            "top_logprobs": given.top_logprobs or 0, "top_p": given.top_p,
            "truncation": "disabled", "usage": self._usage() if ended else None,
            "user": given.user,
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        prompt, made = self.prompt_tokens, self.completion_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": prompt + made,
        }

    def _keep(self, answer: dict[str, Any]) -> None:
        if self._given.store is False:
            return
        items = [*self._before, *answer["output"]]
        service = self._exchange.service
        service.answers.add(self._name, self._exchange.key, items, answer)

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        (choice,) = self.choices
        output: list[dict[str, Any]] = []
        ended = choice.reason != "length"
        if choice.reasoning:
            output.append(_end_item(_thoughts(), choice.reasoning))
        if choice.content or not (choice.calls or choice.reasoning):
            item = _message(complete=ended)
            item["status"] = "completed" if ended else "incomplete"
            item["content"] = [_output(choice.content, self._logprobs_of(choice))]
            output.append(item)
        for call in choice.calls:
            item = _call(call.id, call.name)
            output.append({**item, "arguments": call.arguments, "status": "completed"})
        answer = self._object("completed" if ended else "incomplete", output)
        self._keep(answer)
        return answer | self._timings(choice)

    def _timings(self, choice: Choice) -> dict[str, Any]:
        """The times of the answer, if they are asked for."""
        return {"timings": timings_of(choice)} if self._given.timings_per_token else {}

    def _logprobs_of(self, choice: Choice) -> list[dict[str, Any]]:
        return chat_logprobs(choice.told)["content"] if self._logprobs else []

    # -- events

    def _event(self, kind: str, **more: Any) -> bytes:  # noqa: ANN401 JSON
        name = f"response.{kind}"
        self._number += 1
        return event_of({"type": name, "sequence_number": self._number - 1, **more}, name)

    def begin(self) -> bytes:
        """The answer without its output."""
        answer = self._object("in_progress", [])
        return self._event("created", response=answer) + self._event("in_progress", response=answer)

    def progress(self, choice: Choice, done: int, total: int) -> bytes:
        """An event with the tokens of the prompt that are computed, as llama-server has it."""
        told = progress_of(choice, done, total, timings=self._given.timings_per_token)
        return self._event("in_progress", response=self._object("in_progress", []), **told)

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """Pieces of items."""
        found = b""
        if piece.reasoning:
            if self._kind != "reasoning":
                found += self._begin(_thoughts())
            assert self._item is not None
            self._item["content"][0]["text"] += piece.reasoning
            found += self._delta("reasoning_text.delta", content_index=0, delta=piece.reasoning,
                                 **self._timings(choice))  # fmt: skip
        if piece.content:
            if self._kind != "message":
                found += self._begin(_message(complete=False))
                part = _output("", [])
                found += self._delta("content_part.added", content_index=0, part=part)
                assert self._item is not None
                self._item["content"] = [part]
            assert self._item is not None
            part = self._item["content"][0]
            told = chat_logprobs(piece.told)["content"] if self._logprobs else []
            self._item["content"] = [
                {**part, "text": part["text"] + piece.content, "logprobs": part["logprobs"] + told}
            ]
            found += self._delta(
                "output_text.delta", content_index=0, delta=piece.content, logprobs=told,
                **self._timings(choice),
            )  # fmt: skip
        for call in piece.calls:
            found += self._call_piece(call)
        return found

    def _call_piece(self, call: ToolCallDelta) -> bytes:
        found = b""
        if self._kind != "function_call" or self._call != call.index:
            found += self._begin(_call(call.id or "", call.name or ""))
            self._call = call.index
        if call.arguments:
            assert self._item is not None
            self._item["arguments"] += call.arguments
            found += self._delta("function_call_arguments.delta", delta=call.arguments)
        return found

    @property
    def _kind(self) -> str:
        return "" if self._item is None else self._item["type"]

    def _delta(self, kind: str, **more: Any) -> bytes:  # noqa: ANN401 JSON
        assert self._item is not None
        at = len(self._output)
        return self._event(kind, item_id=self._item["id"], output_index=at, **more)

    def _begin(self, item: dict[str, Any]) -> bytes:
        """Begin an item."""
        found = self._end("completed")
        self._item = item
        told = {**item, "content": []} if item["type"] in ("message", "reasoning") else item
        return found + self._event("output_item.added", output_index=len(self._output), item=told)

    def _end(self, status: str) -> bytes:
        """End the item that has not ended."""
        item = self._item
        if item is None:
            return b""
        found = b""
        match item["type"]:
            case "reasoning":
                text = item["content"][0]["text"]
                found = self._delta("reasoning_text.done", content_index=0, text=text)
            case "message":
                part = item["content"][0]
                found = self._delta("output_text.done", content_index=0, text=part["text"],
                                    logprobs=part["logprobs"])  # fmt: skip
                found += self._delta("content_part.done", content_index=0, part=part)
            case "function_call":
                found = self._delta("function_call_arguments.done", name=item["name"],
                                    arguments=item["arguments"])  # fmt: skip
        item["status"] = status
        found += self._event("output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._item = None
        return found

    def end_choice(self, choice: Choice) -> bytes:
        """The end of the last item, and the whole answer."""
        ended = choice.reason != "length"
        found = b""
        if self._item is None and not self._output:  # an answer without text
            found += self._begin(_message(complete=False))
            part = _output("", [])
            found += self._delta("content_part.added", content_index=0, part=part)
            assert self._item is not None
            self._item["content"] = [part]
        status = "completed" if ended else "incomplete"
        found += self._end(status)
        answer = self._object(status, self._output)
        self._keep(answer)
        return found + self._event(status, response=answer, **self._timings(choice))

    def failure(self, failure: Failure) -> bytes:
        """The answer with the error."""
        answer = self._object("failed", self._output)
        code = failure.code or failure.kind
        answer["error"] = {"code": code, "message": failure.message}
        return self._event("failed", response=answer)


def _thoughts() -> dict[str, Any]:
    return {"id": f"rs_{secrets.token_hex(24)}", "type": "reasoning", "summary": [],
            "content": [{"type": "reasoning_text", "text": ""}], "encrypted_content": None,
            "status": "in_progress"}  # fmt: skip


def _end_item(item: dict[str, Any], text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {**item, "content": content, "status": "completed"}


def _message(*, complete: bool) -> dict[str, Any]:
    status = "completed" if complete else "in_progress"
    return {"id": f"msg_{secrets.token_hex(24)}", "type": "message", "role": "assistant",
            "status": status, "content": []}  # fmt: skip


def _output(text: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": told}


def _call(name: str, function: str) -> dict[str, Any]:
    return {"id": f"fc_{secrets.token_hex(24)}", "type": "function_call", "call_id": name,
            "name": function, "arguments": "", "status": "in_progress"}  # fmt: skip


def _conversation(given: ResponsesRequest, exchange: Exchange) -> list[dict[str, Any]]:
    """The items before the answer.

    Raises:
        RequestError: the answer before is not known.
    """
    before: list[dict[str, Any]] = []
    if given.previous_response_id is not None:
        try:
            kept = exchange.service.answers.find(given.previous_response_id, exchange.key)
        except RequestError as error:
            raise RequestError(
                400, f"previous_response_id: {error}", field="previous_response_id",
                code="previous_response_not_found",
            ) from error  # fmt: skip
        before = kept.items
    return [*before, *_items(given.input)]


def _messages(
    given: ResponsesRequest, items: list[dict[str, Any]], exchange: Exchange
) -> list[dict[str, Any]]:
    found = _Reader(exchange).read(items)
    if given.instructions:
        found.insert(0, Message("system", given.instructions))
    if not found:
        raise RequestError(400, "input: has no message", field="input")
    return messages_of(found)


async def responses(exchange: Exchange) -> Response:
    """Answer a conversation, in the form of OpenAI's responses."""
    given = await exchange.read(ResponsesRequest)
    model = await exchange.text_model(given)
    items = _conversation(given, exchange)
    sampling = Sampling(
        temperature=given.temperature, top_p=given.top_p, seed=given.seed,
        priority=given.priority, timeout=given.timeout,
    )  # fmt: skip
    wants = LOGPROBS in (given.include or ()) or given.top_logprobs is not None
    options = sampling_options(
        sampling, model, exchange, (given.top_logprobs or 0) if wants else None
    )
    limit = limit_of(given.max_output_tokens, model, model.ctx)
    options |= {"max_tokens": limit, **_arguments(given, exchange)}
    choice = ChatChoice(
        model, _messages(given, items, exchange), options, index=0, progress=progress_for(given)
    )
    writer = _Responses([choice], exchange, given, items)
    seconds = exchange.seconds(given)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


async def count_input(exchange: Exchange) -> Response:
    """Count the tokens of a response's input."""
    given = await exchange.read(ResponsesRequest)
    model = await exchange.text_model(given)
    arguments = _arguments(given, exchange)
    kept = {k: v for k, v in arguments.items() if k in ("tools", "tool_choice", "think")}
    messages = _messages(given, _conversation(given, exchange), exchange)
    ids = await encode_chat(model, messages, **kept)
    return as_json({"object": "response.input_tokens", "input_tokens": len(ids)})


async def count_chat(exchange: Exchange) -> Response:
    """Count the tokens of a chat."""
    given = await exchange.read(Chat)
    model = await exchange.text_model(given)
    arguments = chat_arguments(given)
    names = ("tools", "tool_choice", "think", "template_args", "continue_final")
    kept = {k: v for k, v in arguments.items() if k in names}
    ids = await encode_chat(model, messages_of(given.messages), **kept)
    return as_json({"object": "response.input_tokens", "input_tokens": len(ids)})


async def one_response(exchange: Exchange) -> Response:
    """Give an answer that is kept."""
    name = exchange.request.path_params["name"]
    return as_json(exchange.service.answers.find(name, exchange.key).answer)


async def input_items(exchange: Exchange) -> Response:
    """List the items that an answer which is kept was made from, the newest first."""
    name, query = exchange.request.path_params["name"], exchange.request.query_params
    kept = exchange.service.answers.find(name, exchange.key)
    items = kept.items[: len(kept.items) - len(kept.answer["output"])]
    found = [_list_item(x, f"{name.removeprefix('resp_')}{i:04}") for i, x in enumerate(items)]
    if query.get("order", "desc") != "asc":
        found.reverse()
    try:
        most = int(query.get("limit", "20"))
    except ValueError:
        most = 0
    if not 1 <= most <= 100:
        raise RequestError(400, "limit: must be a whole number, 1 to 100", field="limit")
    after = query.get("after")
    first = next((i + 1 for i, x in enumerate(found) if x["id"] == after), 0)
    some = found[first : first + most]
    return as_json({
        "object": "list", "data": some, "has_more": first + most < len(found),
        "first_id": some[0]["id"] if some else None, "last_id": some[-1]["id"] if some else None,
    })  # fmt: skip


def _list_item(item: dict[str, Any], number: str) -> dict[str, Any]:
    """An item with an id, and the content of a message as parts."""
    kind = item.get("type", "message")
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(kind, "item")
    found = {"type": kind, "status": "completed", "id": f"{prefix}_{number}", **item}
    content = found.get("content")
    if kind == "message" and isinstance(content, str):
        said = item.get("role") == "assistant"
        found["content"] = [_output(content, []) if said else
                            {"type": "input_text", "text": content}]  # fmt: skip
    return found


async def delete_response(exchange: Exchange) -> Response:
    """Forget an answer that is kept."""
    name = exchange.request.path_params["name"]
    exchange.service.answers.delete(name, exchange.key)
    return as_json({"id": name, "object": "response", "deleted": True})


ENDPOINTS: Final = (
    Endpoint("/v1/responses", responses, ResponsesRequest, aliases=("/responses",)),
    Endpoint(
        "/v1/responses/input_tokens",
        count_input,
        ResponsesRequest,
        aliases=("/responses/input_tokens",),
    ),
    Endpoint(
        "/v1/chat/completions/input_tokens",
        count_chat,
        Chat,
        aliases=("/chat/completions/input_tokens",),
    ),
    Endpoint("/v1/responses/{name}", one_response, method="GET"),
    Endpoint("/v1/responses/{name}", delete_response, method="DELETE"),
    Endpoint("/v1/responses/{name}/input_items", input_items, method="GET"),
)
