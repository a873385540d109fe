"""Ollama's protocol: chat, generate, embed, and what tells of models; answers are lines of JSON.

Not here: fields (schema.py), the order in which bytes are sent (sending.py).
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from aggml import __version__
from aggml.models import EncoderModel
from aggml.serve.http.choice import ChatChoice, Choice, TextChoice
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import Failure, as_json, line_of, ollama_error
from aggml.serve.http.generating import (
    encode,
    encode_prompt,
    encode_texts,
    sampling_options,
    tools_of,
)
from aggml.serve.http.openai import chat_logprobs, limit_of, vectors_of
from aggml.serve.http.schema import (
    OllamaBase,
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaOptions,
    OllamaShow,
    RequestError,
    Sampling,
)
from aggml.serve.http.sending import Writer, respond
from aggml.serve.http.vectors import numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aggml.models import TextModel, ToolCallDelta
    from aggml.serve.http.choice import AnswerPiece, Told
    from aggml.serve.http.schema import ModelRequest
    from aggml.serve.http.service import ServedEntry

__all__ = [
    "ENDPOINTS",
    "chat",
    "embed",
    "generate",
    "running",
    "show",
    "tags",
    "version_of",
]

LATEST: Final = ":latest"  # Ollama's clients put it behind names
LINES: Final = "application/x-ndjson"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class _Lines(Writer):
    """An answer as lines of JSON.

    Args:
        choices: the answer.
        exchange: of the request.
        chat: whether it is a message; else a text.
    """

    media = LINES

    def __init__(self, choices: Sequence[Choice], exchange: Exchange, *, chat: bool) -> None:
        super().__init__(choices)
        self._model = exchange.model
        self._chat = chat
        self._begin = time.perf_counter_ns()
        self._first = 0
        self._calls: dict[int, list[str]] = {}  # names and arguments that are not complete

    def _line(
        self,
        text: str,
        thoughts: str,
        calls: list[dict[str, Any]],
        **more: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self._model, "created_at": _now()}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thoughts:
                message["thinking"] = thoughts
            if calls:
                message["tool_calls"] = calls
            found["message"] = message
        else:
            found["response"] = text
            if thoughts:
                found["thinking"] = thoughts
        return found | {"done": False} | more

    def _ending(self, choice: Choice) -> dict[str, Any]:
        now = time.perf_counter_ns()
        first = self._first or now
        reason = "length" if choice.reason == "length" else "stop"
        return {
            "done": True, "done_reason": reason, "total_duration": now - self._begin,
            "load_duration": 0, "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": first - self._begin, "eval_count": self.completion_tokens,
            "eval_duration": now - first,
        }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        (choice,) = self.choices
        calls = [_call(x.name, x.arguments) for x in choice.calls]
        told = _probable(choice.told) if choice.tells else {}
        return self._line(choice.content, choice.reasoning, calls, **told, **self._ending(choice))

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """A line with text or thoughts, and lines with calls that are complete."""
        self._first = self._first or time.perf_counter_ns()
        found = b""
        if piece.content or piece.reasoning or piece.told:
            told = _probable(piece.told) if piece.told else {}
            found = line_of(self._line(piece.content, piece.reasoning, [], **told))
        for call in piece.calls:
            found += self._add(call)
        return found

    def _add(self, call: ToolCallDelta) -> bytes:
        found = b"" if call.index in self._calls else self._complete()
        known = self._calls.setdefault(call.index, [call.name or "", ""])
        known[1] += call.arguments
        return found

    def _complete(self) -> bytes:
        """A line with the calls whose arguments are complete."""
        calls = [_call(*x) for x in self._calls.values()]
        self._calls.clear()
        return line_of(self._line("", "", calls)) if calls else b""

    def end_choice(self, choice: Choice) -> bytes:
        """The last line."""
        return self._complete() + line_of(self._line("", "", [], **self._ending(choice)))

    def failure(self, failure: Failure) -> bytes:
        """A line with the error."""
        return line_of(ollama_error(failure))


def _probable(told: Sequence[Told]) -> dict[str, Any]:
    """How probable tokens were, as Ollama tells it."""
    return {"logprobs": chat_logprobs(told)["content"]}


def _call(name: str, arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = {"raw": arguments}
    return {"function": {"name": name, "arguments": found}}


def _plain(given: ModelRequest, exchange: Exchange) -> None:
    """Take ``:latest`` from the name of a model, unless a model is called so."""
    name = given.model
    if name is not None and name.endswith(LATEST) and name not in exchange.service.names:
        given.model = name.removesuffix(LATEST)


def _options(
    given: OllamaBase, model: TextModel, exchange: Exchange, *, chat: bool
) -> dict[str, Any]:
    """The arguments of `TextModel.generate` or `chat`."""
    o = given.options or OllamaOptions()
    sampling = Sampling(
        temperature=o.temperature, top_p=o.top_p, top_k=o.top_k, min_p=o.min_p,
        typical_p=o.typical_p, seed=o.seed, stop=o.stop, presence_penalty=o.presence_penalty,
        frequency_penalty=o.frequency_penalty, repetition_penalty=o.repeat_penalty,
        mirostat=o.mirostat, mirostat_tau=o.mirostat_tau, mirostat_eta=o.mirostat_eta,
        priority=given.priority, timeout=given.timeout,
    )  # fmt: skip
    schema: dict[str, Any] | None = {"type": "object"} if given.format == "json" else None
    if isinstance(given.format, dict):
        schema = given.format
    if schema is not None and not chat:
        sampling.json_schema = schema
    best = (given.top_logprobs or 0) if given.logprobs or given.top_logprobs else None
    found = sampling_options(sampling, model, exchange, best)
    found["max_tokens"] = limit_of(o.num_predict, model)
    if chat:
        found["think"] = given.think
        if schema is not None:
            found["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return found


async def chat(exchange: Exchange) -> Response:
    """Write the next message of a conversation, in Ollama's form."""
    given = await exchange.read(OllamaChat)
    _plain(given, exchange)
    model = await exchange.text_model(given)
    if not given.messages:
        return as_json(_answer_loaded(exchange) | {"message": {"role": "assistant", "content": ""}})
    options = _options(given, model, exchange, chat=True)
    tools = tools_of(given.tools)
    if tools:
        options["tools"] = tools
    last = given.messages[-1]
    options["continue_final"] = last.role == "assistant" and not last.tool_calls
    return await _answer(exchange, given, model, _messages(given), options)


def _answer_loaded(exchange: Exchange) -> dict[str, Any]:
    """The answer to a request that asks for nothing but the model."""
    return {"model": exchange.model, "created_at": _now(), "done": True, "done_reason": "load"}


def _messages(given: OllamaChat) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # ids and names of calls without a result
    for i, message in enumerate(given.messages):
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            one["tool_calls"] = []
            for j, call in enumerate(message.tool_calls):
                name = call.id or f"call_{i}_{j}"
                waiting.append((name, call.function.name))
                function = {"name": call.function.name, "arguments": call.function.arguments or {}}
                one["tool_calls"].append({"id": name, "type": "function", "function": function})
        if message.role == "tool":
            # Ollama's results name the function, and not the call.
            k = next((k for k, x in enumerate(waiting) if x[1] == message.tool_name), 0)
            name = message.tool_call_id or (waiting.pop(k)[0] if waiting else "call_0_0")
            one["tool_call_id"] = name
            if message.tool_name:
                one["name"] = message.tool_name
        found.append(one)
    return found


async def generate(exchange: Exchange) -> Response:
    """Continue a text or answer a message, in Ollama's form."""
    given = await exchange.read(OllamaGenerate)
    _plain(given, exchange)
    model = await exchange.text_model(given)
    if not given.prompt and not given.suffix:  # it would load the model
        return as_json(_answer_loaded(exchange) | {"response": ""})
    if given.context:
        raise RequestError(400, "context: send the conversation to /api/chat", field="context")
    if not given.raw and not given.suffix:
        messages = [{"role": "user", "content": given.prompt}]
        if given.system:
            messages.insert(0, {"role": "system", "content": given.system})
        options = _options(given, model, exchange, chat=True)
        return await _answer(exchange, given, model, messages, options, chat=False)
    options = _options(given, model, exchange, chat=False)
    words = model.tokenizer
    if given.suffix and not words.fills:
        raise RequestError(400, "suffix: the model has no tokens for filling a gap", field="suffix")
    if given.suffix:
        ids = await encode(lambda x, y: words.encode_gap(x, y), given.prompt, given.suffix)
        ids = await encode_prompt(model, ids, "prompt")
    else:
        ids = await encode_prompt(model, given.prompt, "prompt")
    choice = TextChoice(model, ids, options, variant=0, index=0)
    writer = _Lines([choice], exchange, chat=False)
    seconds = exchange.seconds(given)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


async def _answer(
    exchange: Exchange,
    given: OllamaBase,
    model: TextModel,
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    *,
    chat: bool = True,
) -> Response:
    choice = ChatChoice(model, messages, options, index=0)
    writer = _Lines([choice], exchange, chat=chat)
    seconds = exchange.seconds(given)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


async def embed(exchange: Exchange) -> Response:
    """Embed texts, in Ollama's form."""
    given = await exchange.read(OllamaEmbed)
    _plain(given, exchange)
    begin = time.perf_counter_ns()
    single = given.input is None and given.prompt is not None
    text = given.prompt if single else given.input
    if text is None:
        raise RequestError(400, "the field 'input' is missing", field="input")
    model = await exchange.vector_model(given)
    if not text:
        return as_json({"model": exchange.model, "embeddings": [], "embedding": []})
    raw = msgspec.Raw(msgspec.json.encode(text))
    field = "prompt" if single else "input"
    ids = await encode_texts(model, raw, field, exchange, cut=given.truncate is not False)
    found = await vectors_of(exchange, model, given, ids, dimensions=given.dimensions)
    if single:
        return as_json({"embedding": numbers_of(found[0])})
    return as_json(
        {
            "model": exchange.model, "embeddings": [numbers_of(x) for x in found],
            "total_duration": time.perf_counter_ns() - begin, "load_duration": 0,
            "prompt_eval_count": sum(map(len, ids)),
        }
    )  # fmt: skip


def _about(exchange: Exchange, entry: ServedEntry, name: str) -> dict[str, Any]:
    size = entry.path.stat().st_size if entry.path.is_file() else 0
    created = datetime.fromtimestamp(exchange.service.created, UTC).isoformat()
    return {
        "name": name, "model": name, "modified_at": created, "size": size,
        "digest": entry.fingerprint, "details": _details(entry),
    }  # fmt: skip


def _details(entry: ServedEntry) -> dict[str, Any]:
    family = "" if entry.model is None else entry.model.architecture
    return {"parent_model": "", "format": "gguf", "family": family, "families": [family],
            "parameter_size": "", "quantization_level": ""}  # fmt: skip


async def tags(exchange: Exchange) -> Response:
    """List the models, in Ollama's form."""
    service = exchange.service
    found = [_about(exchange, x, name) for x in service.entries for name in x.names]
    return as_json({"models": found})


async def running(exchange: Exchange) -> Response:
    """List the models that are loaded, in Ollama's form."""
    service = exchange.service
    loaded = [x for x in service.entries if service.state_of(x) == "loaded"]
    return as_json({"models": [_about(exchange, x, x.name) for x in loaded]})


async def show(exchange: Exchange) -> Response:
    """Describe a model, in Ollama's form."""
    given = await exchange.read(OllamaShow)
    given.model = given.model or given.name
    _plain(given, exchange)
    entry = exchange.service.find(given.model or "")
    model = entry.model
    able = ["embedding"] if isinstance(model, EncoderModel) else ["completion", "tools"]
    info = {} if model is None else {
        "general.architecture": model.architecture,
        f"{model.architecture}.context_length": model.ctx,
    }  # fmt: skip
    return as_json({"details": _details(entry), "model_info": info, "capabilities": able,
                    "template": "", "parameters": "", "modelfile": ""})  # fmt: skip


async def version_of(_: Exchange) -> Response:
    """Tell the version, in Ollama's form."""
    return as_json({"version": __version__})


ENDPOINTS: Final = (
    Endpoint("/api/chat", chat, OllamaChat, errors=ollama_error),
    Endpoint("/api/generate", generate, OllamaGenerate, errors=ollama_error),
    Endpoint("/api/embed", embed, OllamaEmbed, aliases=("/api/embeddings",), errors=ollama_error),
    Endpoint("/api/tags", tags, method="GET", errors=ollama_error),
    Endpoint("/api/ps", running, method="GET", errors=ollama_error),
    Endpoint("/api/show", show, OllamaShow, errors=ollama_error),
    Endpoint("/api/version", version_of, method="GET", errors=ollama_error),
)
