"""OpenAI's protocol: completions, chats, embeddings, transcriptions, models.

Not here: fields (schema.py), arguments of the models (generating.py), responses (responses.py),
ranks and classes (ranking.py), the order in which bytes are sent (sending.py).
"""

from __future__ import annotations

import math
import secrets
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from anyio.lowlevel import checkpoint

from aggml.models import EncoderModel, EngineError, TextModel
from aggml.serve.http.choice import ChatChoice, Choice, PromptProgress, TextChoice, Told
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import DAMAGED, Failure, as_json, event_of
from aggml.serve.http.generating import (
    begin_text,
    check_ending,
    continues,
    decode_prompt,
    effort_of,
    encode,
    encode_prompt,
    encode_texts,
    messages_of,
    sampling_options,
    split_prompts,
    tokens_to_keep,
    tools_of,
)
from aggml.serve.http.resuming import SoFar, so_far_of
from aggml.serve.http.schema import (
    Chat,
    Completion,
    Embeddings,
    Pooling,
    RealtimeEvent,
    RequestError,
    TeiEmbed,
    TeiEmbedSparse,
    Transcription,
)
from aggml.serve.http.sending import Writer, respond
from aggml.serve.http.speech import answer_whole, events, form_of, options_of, sound_of
from aggml.serve.http.streams import HungUpError, first_of, hung_up_cancels
from aggml.serve.http.timings import progress_of, sum_of_timings, timings_of
from aggml.serve.http.vectors import base64_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.responses import Response

    from aggml.models import PromptToken
    from aggml.serve.http.choice import AnswerPiece
    from aggml.serve.http.resuming import Write
    from aggml.serve.http.schema import (
        FunctionChoice,
        Generation,
        LlamaCompletion,
        ModelRequest,
        ResponseFormat,
        ResponsesRequest,
    )

__all__ = [
    "ENDPOINTS",
    "about_model",
    "chat",
    "chat_arguments",
    "chat_logprobs",
    "check_least",
    "complete",
    "completions",
    "embeddings",
    "limit_of",
    "models",
    "one_model",
    "pooling",
    "progress_for",
    "realtime",
    "tei_embed",
    "tei_embed_sparse",
    "text_logprobs",
    "token_vectors",
    "transcriptions",
    "translations",
    "vectors_of",
]


def limit_of(given: int | None, model: TextModel, usual: int | None = None) -> int | None:
    """The most tokens of an answer: below 0, as many as the context has room for."""
    if given is None:
        return usual
    return model.ctx if given < 0 else given


def check_least(given: Generation, limit: int | None) -> None:
    """Check that an answer may have its least number of tokens.

    Raises:
        RequestError: it may not.
    """
    if limit is not None and given.min_tokens > limit:
        raise RequestError(
            400, f"min_tokens: {given.min_tokens} is more than max_tokens, {limit}",
            field="min_tokens",
        )  # fmt: skip


class _OpenAI(Writer):
    """Completions and chats.

    Args:
        choices: of the answer.
        exchange: of the request.
        given: the request.
        so_far: the part that another service has sent already, if any.
    """

    chat = False
    resumes = True

    def __init__(
        self,
        choices: Sequence[Choice],
        exchange: Exchange,
        given: Generation,
        so_far: SoFar | None,
    ) -> None:
        super().__init__(choices)
        self._given = given
        name = so_far.name if so_far else secrets.token_hex(12)
        options = given.stream_options if given.stream else None
        self._usage = options is not None and bool(options.include_usage)
        self._always = self._usage and bool(options and options.continuous_usage_stats)
        self._prompted: set[int] = set()  # choices of which the prompt is told
        self._kind = "chat.completion" if self.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{name}",
            "created": so_far.created if so_far else int(time.time()),
            "model": exchange.model,
            "system_fingerprint": exchange.fingerprint,
        }

    def usage(self) -> dict[str, Any]:
        """The numbers of tokens."""
        prompt, made = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        } | self._thought()

    def _thought(self) -> dict[str, Any]:
        """How many tokens of the answers were thoughts, if any."""
        made = self.reasoning_tokens
        return {"completion_tokens_details": {"reasoning_tokens": made}} if made else {}

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        found = []
        for index, choice in enumerate(self._given_choices()):
            one = {
                "index": index,
                **self._content(choice),
                "finish_reason": choice.reason,
                "logprobs": self._logprobs_of(choice, choice.told),
            }
            if self._given.return_token_ids:
                one["token_ids"] = choice.ids
                if not self.chat:
                    one["prompt_token_ids"] = choice.prompt_ids()
            if self._given.prompt_logprobs is not None and not self.chat:
                one["prompt_logprobs"] = self._prompt_logprobs(choice.group)
            found.append(one)
        answer = {**self._head, "object": self._kind, "choices": found, "usage": self.usage()}
        if self._given.return_token_ids and self.chat:
            answer["prompt_token_ids"] = self.choices[0].prompt_ids()
        if self._given.prompt_logprobs is not None and self.chat:
            answer["prompt_logprobs"] = self._prompt_logprobs(0)
        if self._given.timings_per_token:
            answer["timings"] = sum_of_timings(self.choices)
        return answer | self._verbose()

    def _given_choices(self) -> Sequence[Choice]:
        """The choices of which the client is told."""
        return self.choices

    def _prompt_logprobs(self, group: int) -> list[dict[str, Any] | None] | None:
        """How probable the tokens of a prompt were, as vLLM tells it."""
        first = next(x for x in self.choices if x.group == group)
        told = None if first.tokens is None else first.tokens.prompt_logprobs
        return None if told is None else [_prompt_place(x, first.name) for x in told]

    def _verbose(self) -> dict[str, Any]:
        """What is told beside the answer to those who look for errors."""
        return {}

    def progress(self, choice: Choice, done: int, total: int) -> bytes:
        """An event with the tokens of the prompt that are computed."""
        timings = self._given.timings_per_token
        more = progress_of(choice, done, total, timings=timings)
        return self._event(choice, self._delta({}), more=more)

    def end_choice(self, choice: Choice) -> bytes:
        """An event that says why the choice ended."""
        return self._event(choice, self._delta({}), reason=choice.reason)

    def end(self) -> bytes:
        """The usage, if it is asked for, and the end of the stream."""
        last = b""
        if self._usage:
            told: dict[str, Any] = {**self._chunk([]), "usage": self.usage()}
            if self._given.timings_per_token:
                told["timings"] = sum_of_timings(self.choices)
            last = event_of(told)
        return last + b"data: [DONE]\n\n"

    def failure(self, failure: Failure) -> bytes:
        """An event with the error."""
        return failure.event()

    def _event(
        self,
        choice: Choice,
        content: dict[str, Any],
        *,
        told: Sequence[Told] = (),
        reason: str | None = None,
        ids: Sequence[int] | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        one: dict[str, Any] = {
            "index": choice.index, **content, "finish_reason": reason,
            "logprobs": self._logprobs_of(choice, told) if told else None,
        }  # fmt: skip
        chunk = self._chunk([one]) | (more or {})
        if ids is not None and self._given.return_token_ids:
            one["token_ids"] = ids
            # vLLM tells them once: a chat has one prompt, a completion may have several.
            if self.chat and not self._prompted:
                chunk["prompt_token_ids"] = choice.prompt_ids()
            elif not self.chat and choice.index not in self._prompted:
                one["prompt_token_ids"] = choice.prompt_ids()
            self._prompted.add(choice.index)
        if self._given.timings_per_token and (ids or reason):
            chunk["timings"] = timings_of(choice)
        if self._always:
            chunk["usage"] = self.usage()
        elif self._usage:
            chunk["usage"] = None
        return event_of(chunk)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = self._kind + ".chunk" if self.chat else self._kind
        return {**self._head, "object": kind, "choices": choices}

    def _content(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _logprobs_of(self, choice: Choice, told: Sequence[Told]) -> dict[str, Any] | None:
        raise NotImplementedError


class _Completions(_OpenAI):
    """Completions; ``echoes`` has the prompts that answers begin with, and their reports."""

    echoes: Sequence[tuple[str, list[Told]]] = ()

    def _given_choices(self) -> Sequence[Choice]:
        """Of each prompt the best ones, if more were made than are asked for."""
        n = self._given.n
        groups: dict[int, list[Choice]] = {}
        for choice in self.choices:
            groups.setdefault(choice.group, []).append(choice)
        if all(len(x) == n for x in groups.values()):
            return self.choices
        best = (sorted(x, key=lambda y: -y.mean_logprob)[:n] for x in groups.values())
        return [y for x in best for y in x]

    def begin_choice(self, choice: Choice) -> bytes:
        """The prompt, if it is asked for."""
        if not self.echoes:
            return b""
        text, told = self.echoes[choice.group]
        return self._event(choice, {"text": text}, told=told)

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """An event with text."""
        if not piece.content and not piece.told:
            return b""
        told = self._shift_places(choice, piece.told)
        return self._event(choice, {"text": piece.content}, told=told, ids=piece.ids)

    def _shift_places(self, choice: Choice, told: Sequence[Told]) -> Sequence[Told]:
        """Reports whose places count from the beginning of the prompt, if that is told, too."""
        if not self.echoes:
            return told
        before = len(self.echoes[choice.group][0])
        return [x._replace(begin=x.begin + before) for x in told]

    def _content(self, choice: Choice) -> dict[str, Any]:
        if not self.echoes:
            return {"text": choice.content}
        text, told = self.echoes[choice.group]
        choice.told = [*told, *self._shift_places(choice, choice.told)]
        return {"text": text + choice.content}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"text": ""}

    def _logprobs_of(self, choice: Choice, told: Sequence[Told]) -> dict[str, Any] | None:
        by_id = self._given.return_tokens_as_token_ids
        return text_logprobs(told, by_id=by_id) if choice.tells else None


class _Chats(_OpenAI):
    """Chats."""

    chat = True

    def begin_choice(self, choice: Choice) -> bytes:
        """An event that says whose message it is."""
        return self._event(choice, self._delta({"role": "assistant", "content": None}))

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """Events with text, thoughts or calls."""
        delta: dict[str, Any] = {}
        if piece.content:
            delta["content"] = piece.content
        if piece.reasoning and self._thinks:
            delta["reasoning_content"] = piece.reasoning
        deltas = [delta] if delta else []
        # Of each event many clients look at the first call alone.
        deltas += [{"tool_calls": [_call_delta(x)]} for x in piece.calls]
        if not deltas and not piece.told:
            return b""
        first, *rest = deltas or [delta]
        found = self._event(choice, self._delta(first), told=piece.told, ids=piece.ids)
        return found + b"".join(self._event(choice, self._delta(x)) for x in rest)

    def _verbose(self) -> dict[str, Any]:
        if not isinstance(self._given, Chat) or not self._given.verbose:
            return {}
        (first, *_) = self.choices
        return {"__verbose": {"prompt": first.prompt_text(), "content": first.content}}

    @property
    def _thinks(self) -> bool:
        return isinstance(self._given, Chat) and self._given.include_reasoning

    def _content(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content}
        if choice.reasoning and self._thinks:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.content or None
            message["tool_calls"] = [
                {
                    "id": x.id,
                    "type": "function",
                    "function": {"name": x.name, "arguments": x.arguments},
                }
                for x in choice.calls
            ]
        return {"message": message}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"delta": delta}

    def _logprobs_of(self, choice: Choice, told: Sequence[Told]) -> dict[str, Any] | None:
        by_id = self._given.return_tokens_as_token_ids
        return chat_logprobs(told, by_id=by_id) if choice.tells else None


def _call_delta(call: Any) -> dict[str, Any]:  # noqa: ANN401 a ToolCallDelta
    function = {"arguments": call.arguments}
    if call.id is None:
        return {"index": call.index, "function": function}
    function["name"] = call.name
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _prompt_place(token: PromptToken, name: Callable[[int], str]) -> dict[str, Any] | None:
    """The best tokens at a place of a prompt and the one that is there, by their ids."""
    if token.logprob is None:
        return None

    def one(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": name(token)}

    found = {str(x): one(x, logprob, i) for i, (x, logprob) in enumerate(token.top, 1)}
    found.setdefault(str(token.id), one(token.id, token.logprob, token.rank))
    return found


def chat_logprobs(told: Sequence[Told], *, by_id: bool = False) -> dict[str, Any]:
    """The ``logprobs`` of a chat.

    Args:
        told: the tokens.
        by_id: tokens are called by their ids.
    """

    def one(token: int, spelt: bytes, logprob: float | None) -> dict[str, Any]:
        text = f"token_id:{token}" if by_id else spelt.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelt)}

    content = [
        one(x.id, x.spelt, x.logprob) | {"top_logprobs": [one(*best) for best in x.best]}
        for x in told
    ]
    return {"content": content, "refusal": None}


def text_logprobs(told: Sequence[Told], *, by_id: bool = False) -> dict[str, Any]:
    """The ``logprobs`` of a completion.

    Args:
        told: the tokens.
        by_id: tokens are called by their ids.
    """

    def name(token: int, spelt: bytes) -> str:
        return f"token_id:{token}" if by_id else _spelling(spelt)

    return {
        "tokens": [name(x.id, x.spelt) for x in told],
        "token_logprobs": [x.logprob for x in told],
        "top_logprobs": [None if x.logprob is None else _with_drawn(x, name) for x in told],
        "text_offset": [x.begin for x in told],
    }


def _with_drawn(told: Told, name: Callable[[int, bytes], str]) -> dict[str, float | None]:
    """The best tokens in a place; the one that was drawn is always among them, as OpenAI has it."""
    found: dict[str, float | None] = {name(x, spelt): p for x, spelt, p in told.best}
    found.setdefault(name(told.id, told.spelt), told.logprob)
    return found


def _spelling(spelt: bytes) -> str:
    """A token as text, or its bytes spelled out if they are not UTF-8, so that names differ."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


# -- text


def _resume(options: dict[str, Any], so_far: SoFar | None, seed: int | None) -> dict[str, Any]:
    """The options of an answer that another service may have begun."""
    if so_far is None:
        return options
    if seed is None:
        options["seed"] = so_far.seed
    options["deadline"] = None  # it has begun, so its deadline is told by an event
    return options


def _seconds_left(exchange: Exchange, given: ModelRequest, so_far: SoFar | None) -> float:
    """The seconds that an answer may still take."""
    return max(0.0, exchange.seconds(given) - (so_far.seconds if so_far else 0.0))


async def completions(exchange: Exchange) -> Response:
    """Continue one or more texts, or fill gaps in them."""
    return await complete(exchange, await exchange.read(Completion))


async def complete(exchange: Exchange, given: Completion) -> Response:
    """Answer a request for completions."""
    model = await exchange.text_model(given)
    n = given.n
    made = n if given.best_of is None else given.best_of
    if made < n or (made > n and given.stream):
        raise RequestError(
            400, f"best_of: {made} must be at least n, which is {n}, and in a stream equal to it",
            field="best_of",
        )  # fmt: skip
    limit = limit_of(given.max_tokens, model)
    check_least(given, limit)
    _check_stream(given)
    cut = tokens_to_keep(given.truncate_prompt, model.ctx, limit)
    special = given.add_special_tokens
    ids = []
    if bytes(given.prompt) == b"null":
        ids.append(begin_text(model))
    else:
        most = exchange.service.options.max_inputs
        for i, raw in enumerate(split_prompts(given.prompt, "prompt", most)):
            prompt = decode_prompt(raw, i, model.ctx if cut is None else 1 << 31, "prompt")
            if given.suffix:
                prompt = await _gap(model, prompt, given.suffix)
            ids.append(await encode_prompt(model, prompt, "prompt", special=special, cut=cut))
            await checkpoint()
    so_far = so_far_of(exchange.request.scope)
    best = 0 if made > n and given.logprobs is None else given.logprobs
    options = sampling_options(given, model, exchange, best)
    options = _resume(options | {"max_tokens": limit}, so_far, given.seed)
    form = given.response_format
    if form is not None and form.type != "text":
        options |= _restrict(form, options)
    choices = [
        TextChoice(
            model, prompt, _tell_once(options, given, variant), variant=variant,
            index=i * made + variant, group=i, hides=given.logprobs is None,
            sent=so_far.of(i * made + variant) if so_far else None,
            progress=progress_for(given),
        )
        for i, prompt in enumerate(ids)
        for variant in range(made)
    ]  # fmt: skip
    writer = _Completions(choices, exchange, given, so_far)
    if given.echo:
        writer.echoes = [await _echo(model, x, given, exchange) for x in ids]
    seconds = _seconds_left(exchange, given, so_far)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


def progress_for(
    given: Generation | LlamaCompletion | ResponsesRequest,
) -> PromptProgress | None:
    """What gets the progress of a prompt; None: it is not told."""
    return PromptProgress() if given.stream and given.return_progress else None


def _check_stream(given: Generation) -> None:
    """Check that a request has no fields that have an effect with, or without, a stream alone.

    Raises:
        RequestError: it has one.
    """
    if given.stream_options is not None and not given.stream:
        raise RequestError(
            400, "stream_options: only a stream has them; set stream to true, or leave them out",
            field="stream_options",
        )  # fmt: skip
    if given.prompt_logprobs is not None and given.stream:
        raise RequestError(
            400, "prompt_logprobs: a stream does not tell them; leave out stream",
            field="prompt_logprobs",
        )  # fmt: skip


def _tell_once(options: dict[str, Any], given: Generation, variant: int) -> dict[str, Any]:
    """The options of one of the answers: the first one of a prompt tells of it."""
    if given.prompt_logprobs is None or variant:
        return options
    return options | {"prompt_logprobs": given.prompt_logprobs}


def _restrict(form: ResponseFormat, options: dict[str, Any]) -> dict[str, Any]:
    """What the text of a completion must be.

    Raises:
        RequestError: another field says it, too.
    """
    known = [x for x in ("schema", "regex", "choices", "grammar") if x in options]
    if known:
        raise RequestError(
            400, f"response_format: it and {known[0]} both say what the answer must be: give one "
            "of them", field="response_format",
        )  # fmt: skip
    found = _format(form)
    inner = found.get("json_schema", found)
    return {"schema": inner.get("schema", {"type": "object"})}


async def _gap(model: TextModel, before: str | list[int], after: str) -> list[int]:
    """The prompt that fills the gap between two texts."""
    words = model.tokenizer
    if not words.fills:
        raise RequestError(400, "suffix: the model has no tokens for filling a gap", field="suffix")
    text = before if isinstance(before, str) else words.decode(before)
    return await encode(lambda x, y: words.encode_gap(x, y), text, after)


async def _echo(
    model: TextModel, ids: list[int], given: Completion, exchange: Exchange
) -> tuple[str, list[Told]]:
    """The text of a prompt, and how probable its tokens were if that is asked for."""
    words = model.tokenizer
    pieces = list(words.stream(ids))
    text = words.decode(ids)  # without the space that a vocabulary may put before a text
    if given.logprobs is None:
        return text, []
    stream = model.generate(
        ids, max_tokens=0, prompt_logprobs=given.logprobs, adapter=exchange.adapter,
        priority=given.priority, deadline=given.timeout,
    )  # fmt: skip
    async with hung_up_cancels(exchange.request.receive):
        await stream.start()
    told, at = [], len(text) - sum(map(len, pieces))
    for token, piece in zip(stream.prompt_logprobs or (), pieces, strict=False):
        best = [(x, words.bytes_of(x), logprob) for x, logprob in token.top]
        told.append(Told(token.id, words.bytes_of(token.id), token.logprob, best, max(0, at)))
        at += len(piece)
    return text, told


def chat_arguments(given: Chat) -> dict[str, Any]:
    """The arguments of `TextModel.chat` that are not those of `generate`."""
    choice: Any = given.tool_choice
    if choice is not None and not isinstance(choice, str):
        choice = _choice_of(choice)
    form = given.response_format
    found: dict[str, Any] = {
        "tools": tools_of(given.tools),
        "think": effort_of(given.reasoning_effort, given.thinking_budget),
        "template_args": given.chat_template_kwargs,
        "continue_final": continues(
            given.continue_final_message, given.messages, generates=given.add_generation_prompt
        ),
    }
    if choice is not None:
        found["tool_choice"] = choice
    if given.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = given.parallel_tool_calls
    if form is not None and form.type != "text":
        found["response_format"] = _format(form)
    return found


def _choice_of(given: FunctionChoice) -> dict[str, Any]:
    """The function that must be called, or those that may be, as `TextModel.chat` takes them.

    Raises:
        RequestError: neither is there.
    """
    allowed, function = given.allowed_tools, given.function
    if given.type == "allowed_tools" and allowed is not None:
        return {"type": "allowed_tools", "mode": allowed.mode, "tools": allowed.tools}
    if given.type == "function" and function is not None:
        return {"type": "function", "function": {"name": function.name}}
    name = "function" if given.type == "function" else "allowed_tools"
    raise RequestError(400, f"tool_choice.{name} is missing", field="tool_choice")


def _format(form: Any) -> dict[str, Any]:  # noqa: ANN401 a ResponseFormat
    inner = form.json_schema
    schema = form.schema if inner is None else inner.schema
    if form.type == "json_object":
        return {"type": "json_object"} | ({} if form.schema is None else {"schema": form.schema})
    if schema is None:
        raise RequestError(
            400, "response_format.json_schema.schema is missing", field="response_format"
        )
    name = "answer" if inner is None else inner.name
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


async def chat(exchange: Exchange) -> Response:
    """Write the next message of a conversation."""
    given = await exchange.read(Chat)
    model = await exchange.text_model(given)
    if given.top_logprobs and not given.logprobs:
        raise RequestError(
            400, "top_logprobs: needs logprobs, too; set logprobs to true", field="top_logprobs"
        )
    asked = given.max_completion_tokens
    limit = limit_of(given.max_tokens if asked is None else asked, model)
    check_least(given, limit)
    so_far = so_far_of(exchange.request.scope)
    best = (given.top_logprobs or 0) if given.logprobs else None
    options = sampling_options(given, model, exchange, best)
    options = _resume(options | {"max_tokens": limit}, so_far, given.seed)
    check_ending(given.add_generation_prompt, continued=given.continue_final_message is True)
    _check_stream(given)
    options |= chat_arguments(given)
    cut = tokens_to_keep(given.truncate_prompt, model.ctx, limit)
    if cut is not None:
        options["truncate_prompt"] = cut
    messages = messages_of(given.messages, sees=model.sees)
    choices = [
        ChatChoice(
            model,
            messages,
            _tell_once(options, given, i),
            variant=i,
            index=i,
            sent=so_far.of(i) if so_far else None,
            progress=progress_for(given),
        )
        for i in range(given.n)
    ]
    writer = _Chats(choices, exchange, given, so_far)
    seconds = _seconds_left(exchange, given, so_far)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


# -- vectors


async def vectors_of(
    exchange: Exchange,
    model: EncoderModel | TextModel,
    given: ModelRequest,
    ids: list[list[int]],
    *,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> np.ndarray[Any, Any]:
    """A vector for each list of tokens.

    Raises:
        RequestError: there are fewer dimensions than are asked for.
        EngineError: a vector is not finite.
    """
    if dimensions is not None and dimensions > model.width:
        raise RequestError(
            400, f"dimensions: {dimensions} is more than the {model.width} of this model",
            field="dimensions",
        )  # fmt: skip
    options: dict[str, Any] = {"dimensions": dimensions, "priority": given.priority}
    if normalize is not None:
        options["normalize"] = normalize
    if exchange.adapter is not None:
        options["adapter"] = exchange.adapter
    if not isinstance(model, TextModel):
        options["deadline"] = given.timeout
    with anyio.fail_after(exchange.seconds(given)):
        async with hung_up_cancels(exchange.request.receive):
            found = await model.embed_ids(ids, **options)
    for i, vector in enumerate(found):
        if not np.isfinite(vector).all():
            raise EngineError(f"the vector of input {i} is not finite: {DAMAGED}")
    return found


async def embeddings(exchange: Exchange) -> Response:
    """Embed texts: one vector for each."""
    given = await exchange.read(Embeddings)
    if given.pooling is not None:
        raise RequestError(
            400, "pooling: 'none' is for /embeddings and /pooling: this route gives each text one "
            "vector", field="pooling",
        )  # fmt: skip
    model = await exchange.vector_model(given)
    cut = given.truncate_prompt or None
    most = None if cut is None or cut < 0 else cut
    ids = await encode_texts(model, given.input, "input", exchange, cut=cut is not None, most=most)
    found = await vectors_of(exchange, model, given, ids, dimensions=given.dimensions)
    data = []
    for i, vector in enumerate(found):
        told = base64_of(vector) if given.encoding_format == "base64" else numbers_of(vector)
        data.append({"object": "embedding", "index": i, "embedding": told})
        await checkpoint()
    tokens = sum(map(len, ids))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return as_json({"object": "list", "data": data, "model": exchange.model, "usage": usage})


async def pooling(exchange: Exchange) -> Response:
    """Embed texts: a vector for each of their tokens, in vLLM's form."""
    given = await exchange.read(Pooling)
    model = await exchange.vector_model(given)
    ids = await encode_texts(model, given.input, "input", exchange)
    if given.task == "embed":
        found = list(await vectors_of(exchange, model, given, ids, normalize=given.normalize))
    else:
        found = await token_vectors(
            exchange, model, given, given.input, field="input", normalize=given.normalize
        )
    data = []
    for i, vectors in enumerate(found):
        told: Any
        if given.encoding_format == "base64":
            told = base64_of(vectors.reshape(-1))
        else:
            told = numbers_of(vectors) if vectors.ndim == 1 else [numbers_of(x) for x in vectors]
        data.append({"index": i, "object": "pooling", "data": told})
        await checkpoint()
    tokens = sum(map(len, ids))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return as_json({
        "id": f"pool-{secrets.token_hex(12)}", "object": "list", "created": int(time.time()),
        "model": exchange.model, "data": data, "usage": usage,
    })  # fmt: skip


async def token_vectors(
    exchange: Exchange,
    model: EncoderModel | TextModel,
    given: ModelRequest,
    raw: bytes | msgspec.Raw,
    *,
    field: str,
    normalize: bool | None = None,
) -> list[np.ndarray[Any, Any]]:
    """The vectors of all tokens of each text.

    Args:
        exchange: the request.
        model: embeds them.
        given: the fields of the request.
        raw: the texts, not decoded yet.
        field: the field in which they stand.
        normalize: whether vectors have length 1; None: as the model does by itself.

    Raises:
        RequestError: an input is no text.
        EngineError: a vector is not finite.
    """
    one = msgspec.json.decode(raw)
    texts = [one] if isinstance(one, str) else one
    if not isinstance(texts, list) or not all(isinstance(x, str) for x in texts):
        raise RequestError(
            400, f"{field}: must be texts; lists of tokens are embedded whole alone", field=field
        )
    options: dict[str, Any] = {"priority": given.priority, "deadline": given.timeout}
    if normalize is not None:
        options["normalize"] = normalize
    if isinstance(model, TextModel):
        options["adapter"] = exchange.adapter
    with anyio.fail_after(exchange.seconds(given)):
        async with hung_up_cancels(exchange.request.receive):
            found = list(await model.embed_multi(texts, **options))
    for i, vectors in enumerate(found):
        if not np.isfinite(vectors).all():
            raise EngineError(f"the vectors of input {i} are not finite: {DAMAGED}")
    return found


async def tei_embed(exchange: Exchange) -> Response:
    """Embed texts, in the form of text-embeddings-inference."""
    given = await exchange.read(TeiEmbed)
    model = await exchange.vector_model(given)
    ids = await encode_texts(model, given.inputs, "inputs", exchange, cut=given.truncate)
    found = await vectors_of(exchange, model, given, ids, normalize=given.normalize)
    return as_json([numbers_of(x) for x in found])


async def tei_embed_sparse(exchange: Exchange) -> Response:
    """Weights of words of each text, in the form of text-embeddings-inference."""
    given = await exchange.read(TeiEmbedSparse)
    model = await exchange.term_model(given)
    ids = await encode_texts(model, given.inputs, "inputs", exchange, cut=given.truncate)
    with anyio.fail_after(exchange.seconds(given)):
        async with hung_up_cancels(exchange.request.receive):
            found = await model.embed_sparse_ids(
                ids, priority=given.priority, deadline=given.timeout
            )
    data = []
    for i, terms in enumerate(found):
        if not all(map(math.isfinite, terms.values())):
            raise EngineError(f"a weight of input {i} is not finite: {DAMAGED}")
        data.append([{"index": token, "value": weight} for token, weight in terms.items()])
        await checkpoint()
    return as_json(data)


# -- speech


async def transcriptions(exchange: Exchange) -> Response:
    """Transcribe a recording."""
    return await _transcribe(exchange, translate=False)


async def translations(exchange: Exchange) -> Response:
    """Transcribe a recording, translated into English."""
    return await _transcribe(exchange, translate=True)


async def _transcribe(exchange: Exchange, *, translate: bool) -> Response:
    data, fields = await form_of(exchange.request, exchange.service.options.body_timeout)
    given = exchange.decode(fields, Transcription)
    model = await exchange.speech_model(given)
    options = options_of(given, model, translate=translate)
    samples, rate = await anyio.to_thread.run_sync(sound_of, data)
    seconds = exchange.seconds(given)
    if given.stream:

        async def produce(write: Write) -> None:
            try:
                with anyio.fail_after(seconds):
                    async with aclosing(model.transcribe(samples, rate, **options)) as said:
                        await events(write, said)
            except Exception as error:
                if isinstance(first_of(error), HungUpError):
                    raise
                await write(Failure(error).event())

        return exchange.stream(produce)
    with anyio.fail_after(seconds):
        async with (
            hung_up_cancels(exchange.request.receive),
            aclosing(model.transcribe(samples, rate, **options)) as said,
        ):
            found = [segment async for segment in said]
    return answer_whole(given, found, len(samples) / rate, translate=translate)


async def realtime(_: Exchange) -> Response:
    """Transcribe a sound that goes on, in a session over a WebSocket, by events."""
    failure = Failure(RequestError(426, "this route speaks over a WebSocket alone"))
    failure.headers |= {"upgrade": "websocket", "connection": "upgrade"}
    return failure.response()


# -- models


def about_model(exchange: Exchange, name: str) -> dict[str, Any]:
    """A model as OpenAI tells it, with its state and what llama-server and vLLM tell."""
    entry = exchange.service.find(name)
    model = entry.model
    found: dict[str, Any] = {
        "id": name, "object": "model", "created": exchange.service.created, "owned_by": "aggml",
        "status": {"value": exchange.service.state_of(entry)}, "aliases": entry.listed,
        "tags": list(entry.tags),
    }  # fmt: skip
    if entry.names[0] != name:
        found["root"] = entry.names[0]
    if name in entry.adapters:
        found["parent"] = entry.names[0]
    if model is not None:
        found["max_model_len"] = model.ctx
        found["meta"] = {
            "n_ctx": model.ctx, "n_vocab": model.vocabulary_size,
            "architecture": model.architecture, "title": entry.title,
        }  # fmt: skip
    return found


async def models(exchange: Exchange) -> Response:
    """List the models that are served."""
    entries = exchange.service.entries
    names = [name for x in entries for name in (*x.listed, *x.adapters)]
    data = [about_model(exchange, name) for name in names]
    told = [{"name": x, "model": x, "capabilities": _capabilities(exchange, x)} for x in names]
    return as_json({"object": "list", "data": data, "models": told})


def _capabilities(exchange: Exchange, name: str) -> list[str]:
    """What a model can do, by llama-server's words; nothing while it is not loaded."""
    model = exchange.service.find(name).model
    if isinstance(model, TextModel):
        return ["completion", "multimodal"] if model.sees else ["completion"]
    return ["embedding"] if isinstance(model, EncoderModel) else []


async def one_model(exchange: Exchange) -> Response:
    """Describe one model."""
    return as_json(about_model(exchange, exchange.request.path_params["name"]))


ENDPOINTS: Final = (
    Endpoint("/v1/completions", completions, Completion),
    Endpoint("/v1/chat/completions", chat, Chat, aliases=("/chat/completions",)),
    Endpoint("/v1/embeddings", embeddings, Embeddings),
    Endpoint("/pooling", pooling, Pooling, aliases=("/v1/pooling",)),
    Endpoint("/embed", tei_embed, TeiEmbed),
    Endpoint("/embed_sparse", tei_embed_sparse, TeiEmbedSparse),
    Endpoint(
        "/v1/audio/transcriptions", transcriptions, Transcription,
        aliases=("/audio/transcriptions",),
    ),
    Endpoint(
        "/v1/audio/translations", translations, Transcription, aliases=("/audio/translations",)
    ),
    Endpoint(
        "/v1/realtime", realtime, RealtimeEvent, method="GET", aliases=("/realtime",), open=True
    ),
    Endpoint("/v1/models", models, method="GET", aliases=("/models",)),
    Endpoint("/v1/models/{name:path}", one_model, method="GET", aliases=("/models/{name:path}",)),
)  # fmt: skip
