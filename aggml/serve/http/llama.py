"""The routes of llama-server's own protocol: completions, gaps, tokens, properties, vectors.

Not here: its routes in OpenAI's and Anthropic's form (openai.py, anthropic.py), the fields of
requests (schema.py).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from aggml import __version__
from aggml.models import TextModel
from aggml.models.chat import encode_chat, render_chat
from aggml.serve.http.choice import AnswerPiece, Choice, TextChoice, Told, spell_out
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import Failure, as_json, event_of, llama_error, openai_error
from aggml.serve.http.generating import (
    check_ending,
    check_tokens,
    continues,
    effort_of,
    encode,
    encode_prompt,
    encode_texts,
    messages_of,
    sampling_options,
    tools_of,
)
from aggml.serve.http.openai import complete as openai_complete
from aggml.serve.http.openai import limit_of, progress_for, token_vectors, vectors_of
from aggml.serve.http.schema import (
    Completion,
    Detokenize,
    Infill,
    LlamaCompletion,
    LlamaEmbedding,
    RequestError,
    Template,
    Tokenize,
)
from aggml.serve.http.sending import Writer, respond
from aggml.serve.http.timings import progress_of, timings_of
from aggml.serve.http.vectors import numbers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from msgspec import Raw
    from starlette.responses import Response

__all__ = [
    "ENDPOINTS",
    "adapters",
    "apply_template",
    "completion",
    "completions",
    "detokenize",
    "embedding",
    "infill",
    "properties",
    "slots",
    "tokenize",
    "tokenizer_info",
]

NEVER: Final = -1e9  # the bias of a token that is never drawn


# -- completion and infill


class _Completions(Writer):
    """Completions in llama-server's form: one, or a list of them."""

    def __init__(
        self,
        choices: Sequence[Choice],
        exchange: Exchange,
        given: LlamaCompletion,
        model: TextModel,
        prompts: Sequence[list[int]],
        bias: Mapping[int, float],
    ) -> None:
        super().__init__(choices)
        self._bias = bias
        self._exchange = exchange
        self._given = given
        self._model = model
        self._prompts = prompts
        self._several = len(choices) > 1

    def whole(self) -> object:
        """The answers in one piece."""
        found = [
            self._select_fields(self._final(x, x.content, x.ids, x.told)) for x in self.choices
        ]
        return found if self._several else found[0]

    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """An event with text; with `n_probs` one for each token, the text in the last of them."""
        if self._given.n_predict == 0:
            return b""
        if not self._given.n_probs or len(piece.told) < 2:
            return self._piece(choice, piece)
        *before, last = piece.told
        n = min(len(before), len(piece.ids))
        events = [
            self._piece(choice, AnswerPiece(told=(one,), ids=piece.ids[i : i + 1] if i < n else ()))
            for i, one in enumerate(before)
        ]
        rest = piece._replace(told=(last,), ids=piece.ids[n:])
        return b"".join(events) + self._piece(choice, rest)

    def _piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        event: dict[str, Any] = {
            "index": choice.index, "content": piece.content, "tokens": piece.ids, "stop": False,
            "id_slot": -1, "tokens_predicted": choice.made,
            "tokens_evaluated": choice.prompt_tokens,
        }  # fmt: skip
        if self._given.n_probs:
            event["completion_probabilities"] = _probabilities(
                piece.told, drawn=self._given.post_sampling_probs
            )
        if self._given.timings_per_token:
            event["timings"] = timings_of(choice)
        return event_of(self._select_fields(event))

    def progress(self, choice: Choice, done: int, total: int) -> bytes:
        """An event that says how many tokens of the prompt are computed."""
        event: dict[str, Any] = {
            "index": choice.index, "content": "", "tokens": [], "stop": False, "id_slot": -1,
            "tokens_predicted": 0, "tokens_evaluated": choice.prompt_tokens,
        }  # fmt: skip
        timings = self._given.timings_per_token
        return event_of(event | progress_of(choice, done, total, timings=timings))

    def end_choice(self, choice: Choice) -> bytes:
        """The last event: everything about the answer but its text."""
        return event_of(self._select_fields(self._final(choice, "", [], [])))

    def failure(self, failure: Failure) -> bytes:
        """An event with the error."""
        return event_of(llama_error(failure))

    def _final(
        self, choice: Choice, text: str, ids: Sequence[int], told: Sequence[Told]
    ) -> dict[str, Any]:
        """An answer that has ended, with its counts and settings.

        Args:
            choice: the answer.
            text: that is not sent yet.
            ids: the tokens of that text.
            told: how probable these tokens are.
        """
        given = self._given
        shown = given.n_predict != 0
        stop = choice.stop_text
        kind = "word" if stop else "limit" if choice.reason == "length" else "eos"
        made = choice.made if shown else 0
        found: dict[str, Any] = {
            "index": choice.index, "content": text if shown else "",
            "tokens": list(ids) if given.return_tokens and shown else [], "id_slot": -1,
            "stop": True, "model": self._exchange.model, "tokens_predicted": made,
            "tokens_evaluated": choice.prompt_tokens,
            "generation_settings": _settings(
                given, self._model, self._exchange.model or "", self._bias
            ),
            "prompt": spell_out(self._model.tokenizer, self._prompts[choice.group]),
            "has_new_line": "\n" in text,
            "truncated": choice.reason == "length"
            and choice.prompt_tokens + choice.made > self._model.ctx,
            "stop_type": kind, "stopping_word": stop or "",
            "tokens_cached": choice.prompt_tokens + made, "timings": timings_of(choice),
        }  # fmt: skip
        if given.n_probs and shown:
            found["completion_probabilities"] = _probabilities(
                told, drawn=given.post_sampling_probs
            )
        return found

    def _select_fields(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The fields that the request names in ``response_fields``; all if it names none."""
        names = self._given.response_fields
        if not names:
            return answer
        found: dict[str, Any] = {}
        for name in names:
            at: Any = answer
            for part in name.split("/"):
                at = at.get(part) if isinstance(at, dict) else None
            if at is not None:
                found[name] = at
        return found


def _probabilities(told: Sequence[Told], *, drawn: bool) -> list[dict[str, Any]]:
    """How probable tokens were.

    Args:
        told: the tokens, each with its probability and the most probable other ones.
        drawn: whether these are the probabilities with which tokens were drawn, after all samplers;
            else logarithms of the probabilities that the model gives.
    """

    def one(token: int, spelt: bytes, logprob: float | None) -> dict[str, Any]:
        text = spelt.decode("utf-8", "replace")
        found: dict[str, Any] = {"id": token, "token": text, "bytes": list(spelt)}
        if drawn:
            return found | {"prob": None if logprob is None else math.exp(logprob)}
        return found | {"logprob": logprob}

    name = "top_probs" if drawn else "top_logprobs"
    return [{**one(x.id, x.spelt, x.logprob), name: [one(*best) for best in x.best]} for x in told]


def _settings(
    given: LlamaCompletion, model: TextModel, name: str, bias: Mapping[int, float] | None = None
) -> dict[str, Any]:
    """The fields of a request with their values, by llama-server's names.

    Args:
        given: the request.
        model: answers it.
        name: of the model.
        bias: of tokens; of one that is never drawn it is null, which stands for -inf.
    """
    names = (
        "n_predict", "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p",
        "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p",
        "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
        "dry_allowed_length", "mirostat", "mirostat_tau", "mirostat_eta", "ignore_eos", "stream",
        "n_probs", "samplers",
    )  # fmt: skip
    found = {x: getattr(given, x) for x in names}
    stop = [given.stop] if isinstance(given.stop, str) else given.stop
    return found | {
        "seed": -1 if given.seed is None else given.seed,
        "repeat_penalty": given.repetition_penalty,
        "max_tokens": given.n_predict, "stop": stop, "grammar": given.grammar or "",
        "dry_penalty_last_n": given.dry_range, "n_ctx": model.ctx, "model": name,
        "logit_bias": [
            {"token": token, "bias": None if value == NEVER else value}
            for token, value in (bias or {}).items()
        ],
        "adaptive_target": -1.0, "adaptive_decay": 0.9,  # off: aggml has no such sampler
    }  # fmt: skip


async def completion(exchange: Exchange) -> Response:
    """Continue one or more texts, in llama-server's form."""
    return await _completion(exchange, await exchange.read(LlamaCompletion))


async def _completion(exchange: Exchange, given: LlamaCompletion) -> Response:
    model = await exchange.text_model(given)
    prompts = [await _prompt_tokens(model, x) for x in _split_prompts(given.prompt, exchange)]
    return await _complete(exchange, given, model, prompts)


async def completions(exchange: Exchange) -> Response:
    """Continue texts: in OpenAI's form with `model` or `max_tokens`, else in llama-server's."""
    body = await exchange.body()
    names = _field_names(body)
    if "model" in names or "max_tokens" in names:
        exchange.errors = openai_error
        return await openai_complete(exchange, exchange.decode(body, Completion))
    return await _completion(exchange, exchange.decode(body, LlamaCompletion))


def _field_names(body: bytes) -> frozenset[str]:
    """The names of a body's fields that are not null; no names if it is no JSON object."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return frozenset(name for name, raw in fields.items() if bytes(raw) != b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()


async def infill(exchange: Exchange) -> Response:
    """Fill a gap between two texts, in llama-server's form."""
    given = await exchange.read(Infill)
    model = await exchange.text_model(given)
    tokenizer = model.tokenizer
    if not tokenizer.fills:
        raise RequestError(501, "this model has no tokens for filling a gap")
    begun = msgspec.json.decode(given.prompt)
    if begun is not None and not isinstance(begun, str):
        raise RequestError(400, "prompt: must be a text", field="prompt")
    files = [(x.filename or "tmp", x.text) for x in given.input_extra or ()]

    def encode_gap(*_: str) -> list[int]:
        return tokenizer.encode_gap(
            given.input_prefix, given.input_suffix, begun=begun or "", files=files
        )

    ids = await encode(encode_gap, given.input_prefix, given.input_suffix, *(x[1] for x in files))
    return await _complete(exchange, given, model, [await encode_prompt(model, ids, "prompt")])


async def _complete(
    exchange: Exchange, given: LlamaCompletion, model: TextModel, prompts: list[list[int]]
) -> Response:
    given.logit_bias, bias = {}, _token_biases(given.logit_bias, model)
    # llama-server never draws a token that ends the answer; vLLM draws it and goes on.
    if given.ignore_eos:
        bias |= dict.fromkeys(sorted(model.tokenizer.ends), NEVER)
    options = sampling_options(given, model, exchange, given.n_probs or None)
    limit = limit_of(given.n_predict, model) or 1  # for 0 one token is made, and not sent
    options |= {"max_tokens": limit, "logit_bias": bias}
    if given.post_sampling_probs:
        options["post_sampling_probs"] = True
    most_seconds = given.t_max_predict_ms / 1000 if given.t_max_predict_ms else None
    n = given.n_cmpl
    choices = [
        TextChoice(
            model,
            ids,
            options,
            variant=variant,
            index=i * n + variant,
            group=i,
            after_first=most_seconds,
            progress=progress_for(given),
        )
        for i, ids in enumerate(prompts)
        for variant in range(n)
    ]
    writer = _Completions(choices, exchange, given, model, prompts, bias)
    seconds = exchange.seconds(given)
    return await respond(exchange, model, writer, seconds=seconds, stream=given.stream)


def _split_prompts(given: Raw, exchange: Exchange) -> list[Any]:
    """The prompts of a request, each a text, a list of tokens, or a list of tokens and texts."""
    found = msgspec.json.decode(given)
    if isinstance(found, list) and not any(type(x) is int for x in found):
        most = exchange.service.options.max_inputs
        if not 1 <= len(found) <= most:
            raise RequestError(
                400, f"prompt: has {len(found)} inputs, a request must have 1 to {most}",
                field="prompt",
            )  # fmt: skip
        return found
    return [found]


async def _prompt_tokens(model: TextModel, given: Any) -> list[int]:  # noqa: ANN401 any JSON
    """The tokens of one prompt.

    Args:
        model: answers it.
        given: a text, or a list of tokens and texts, or an object with one as ``prompt_string``.

    Raises:
        RequestError: it is none of these, or has a picture or a sound.
    """
    tokenizer = model.tokenizer
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            raise RequestError(400, "prompt: the model reads text alone", field="prompt")
        given = given.get("prompt_string")
    if isinstance(given, str):
        return await encode_prompt(model, given, "prompt")
    if not isinstance(given, list) or not all(type(x) in (int, str) for x in given):
        raise RequestError(
            400, "prompt: is neither a text nor a list of tokens and texts", field="prompt"
        )
    ids: list[int] = []
    for i, part in enumerate(given):
        if isinstance(part, str):
            begins = i == 0  # a text further on gets no token that begins a prompt
            ids += (
                tokenizer.encode_prompt(part) if begins else tokenizer.encode(part, special=False)
            )
        else:
            ids.append(part)
    return await encode_prompt(model, ids, "prompt")


def _token_biases(given: Any, model: TextModel) -> dict[int, float]:  # noqa: ANN401 any JSON
    """Biases by token; that of a text counts for each of its tokens.

    Args:
        given: an object or a list of pairs, from a token or text to a number or false (never).
        model: has the tokens.

    Raises:
        RequestError: a key is neither a token nor a text, or a value is no number and not false.
    """
    if not given:
        return {}
    pairs = given.items() if isinstance(given, dict) else given
    found: dict[int, float] = {}
    try:
        for key, value in pairs:
            bias = NEVER if value is False else float(value)
            if value is True or not math.isfinite(bias):
                raise ValueError
            if isinstance(key, str) and not key.isdecimal():
                ids = model.tokenizer.encode(key, special=False)
            else:
                ids = [int(key)]
            found |= dict.fromkeys(ids, bias)
    except (TypeError, ValueError) as error:
        raise RequestError(
            400, "logit_bias: must be pairs of a token or a text with a number or false",
            field="logit_bias",
        ) from error  # fmt: skip
    check_tokens(list(found), model.vocabulary_size, "logit_bias")
    return found


# -- tokens and templates


async def tokenize(exchange: Exchange) -> Response:
    """Give the tokens of a text, in llama-server's or in vLLM's form."""
    given = await exchange.read(Tokenize)
    model = await exchange.text_or_vector_model(given)
    tokenizer = model.tokenizer
    vllm = given.content is None and (given.prompt is not None or given.messages is not None)
    if given.messages is not None:
        if not isinstance(model, TextModel):
            raise RequestError(400, "messages: the model has no chats", field="messages")
        ids = await encode_chat(
            model, messages_of(given.messages, sees=model.sees), tools=tools_of(given.tools),
            template_args=given.chat_template_kwargs, **_prompt_ending(given),
        )  # fmt: skip
    else:
        text = (given.prompt if vllm else given.content) or ""
        special = given.add_special_tokens if vllm else given.add_special
        literal = not given.parse_special

        def encode_text(text: str) -> list[int]:
            return tokenizer.encode(text, special=special, literal=literal)

        ids = await encode(encode_text, text)
    if vllm:
        found = {"tokens": ids, "count": len(ids), "max_model_len": model.ctx}
        names = (
            [tokenizer.pieces[x] if x >= 0 else "" for x in ids]
            if given.return_token_strs
            else None
        )
        return as_json(found | {"token_strs": names if given.return_token_strs else None})
    if not given.with_pieces:
        return as_json({"tokens": ids})
    return as_json({"tokens": [{"id": x, "piece": _piece(tokenizer.bytes_of(x))} for x in ids]})


async def tokenizer_info(exchange: Exchange) -> Response:
    """Describe the vocabulary of a model (`?model=`), as vLLM does."""
    given = Tokenize(model=exchange.request.query_params.get("model"))
    model = await exchange.text_or_vector_model(given)
    tokenizer = model.tokenizer

    def name(token: int | None) -> str | None:
        return None if token is None else tokenizer.pieces[token]

    found: dict[str, Any] = {
        "tokenizer_class": type(tokenizer).__name__, "vocab_size": len(tokenizer.pieces),
        "model_max_length": model.ctx, "bos_token": name(tokenizer.bos),
        "eos_token": name(tokenizer.eos),
        "end_tokens": sorted(tokenizer.pieces[x] for x in tokenizer.ends),
        "additional_special_tokens": sorted(tokenizer.control_names()),
    }  # fmt: skip
    if isinstance(model, TextModel):
        found["chat_template"] = model.template.source
    return as_json(found)


def _prompt_ending(given: Template | Tokenize) -> dict[str, Any]:
    """The arguments of `encode_chat` that say where a prompt ends.

    It ends where a new message of the assistant begins, behind the last message, or within it.

    Raises:
        RequestError: the request asks for a new message and for the last one to go on.
    """
    check_ending(given.add_generation_prompt, continued=given.continue_final_message is True)
    return {
        "continue_final": continues(
            given.continue_final_message,
            given.messages or (),
            generates=given.add_generation_prompt,
        ),
        "add_generation_prompt": given.add_generation_prompt is not False,
    }


def _piece(spelt: bytes) -> str | list[int]:
    """The text of a token's bytes; the bytes themselves if they are no whole characters."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)


async def detokenize(exchange: Exchange) -> Response:
    """Give the text of tokens."""
    given = await exchange.read(Detokenize)
    model = await exchange.text_or_vector_model(given)
    check_tokens(given.tokens, model.vocabulary_size, "tokens")
    text = await anyio.to_thread.run_sync(model.tokenizer.decode, given.tokens)
    return as_json({"content": text, "prompt": text})


async def apply_template(exchange: Exchange) -> Response:
    """Give the prompt of a conversation, as the model's template makes it."""
    given = await exchange.read(Template)
    model = await exchange.text_model(given)
    messages = messages_of(given.messages, sees=model.sees)
    arguments: dict[str, Any] = {
        "template_args": given.chat_template_kwargs,
        "think": effort_of(given.reasoning_effort),
        **_prompt_ending(given),
    }
    tools = tools_of(given.tools)
    if tools:
        arguments["tools"] = tools
    return as_json({"prompt": await render_chat(model, messages, **arguments)})


# -- the server


def _default_request(exchange: Exchange) -> LlamaCompletion:
    """A request in which every field has the default of the service."""
    fields: dict[str, Any] = dict(exchange.service.defaults.of(LlamaCompletion))
    fields["prompt"] = msgspec.Raw(b"null")
    return LlamaCompletion(**fields)


async def properties(exchange: Exchange) -> Response:
    """Describe the model and the settings that a request has by default."""
    given = _default_request(exchange)
    answer = _known_properties(exchange)
    if answer is not None:
        return answer
    model = await exchange.text_or_vector_model(given)
    entry = exchange.service.find(exchange.model or "")
    found: dict[str, Any] = {
        "total_slots": getattr(model, "slots", 1), "model_alias": entry.name,
        "model_path": entry.path.name,
        "modalities": {"vision": getattr(model, "sees", False), "audio": False},
        "build_info": f"aggml {__version__}", "is_sleeping": False,
    }  # fmt: skip
    settings: dict[str, Any] = {"id": 0, "n_ctx": model.ctx, "is_processing": False}
    if isinstance(model, TextModel):
        settings["params"] = _settings(given, model, entry.name)
        tokenizer = model.tokenizer
        found["chat_template"] = model.template.source
        found["bos_token"] = "" if tokenizer.bos is None else tokenizer.pieces[tokenizer.bos]
        found["eos_token"] = "" if tokenizer.eos is None else tokenizer.pieces[tokenizer.eos]
    entry.properties = {"default_generation_settings": settings, **found}
    return as_json(entry.properties)


def _known_properties(exchange: Exchange) -> Response | None:
    """The properties of a host's model as far as they are known without using the model.

    A program that only looks must not have an unloaded model loaded. None: the model has to be
    asked, because it is loaded or about to be.
    """
    service = exchange.service
    entry = service.entries[0]
    if service.host is None:
        return None
    state = service.state_of(entry)
    if state == "loaded" and entry.properties is not None:
        return as_json(entry.properties)
    if state != "unloaded":
        return None
    return as_json({
        "default_generation_settings": {"is_processing": False},
        "total_slots": service.options.limits.slots or 1, "model_alias": entry.name,
        "model_path": entry.path.name, "build_info": f"aggml {__version__}", "is_sleeping": True,
    })  # fmt: skip


async def slots(exchange: Exchange) -> Response:
    """Describe the slots: the first ones are in use, as many as there are running requests."""
    given = _default_request(exchange)
    model = await exchange.text_model(given)
    active, every = model.engine.active, model.slots
    if active >= every and exchange.request.query_params.get("fail_on_no_slot"):
        raise RequestError(503, "no slot is free", retry=1)
    return as_json(
        [
            {"id": i, "n_ctx": model.ctx, "is_processing": i < active,
             "speculative": model.engine.counters.drafts > 0}
            for i in range(every)
        ]
    )  # fmt: skip


async def adapters(exchange: Exchange) -> Response:
    """List the adapters of the first model (`?model=` for one of several) with their numbers.

    Their scale is 0, as llama-server's after ``--lora-init-without-apply``, because an adapter is
    used only by the requests that name it.
    """
    service = exchange.service
    name = exchange.request.query_params.get("model")
    entry = service.entries[0] if name is None else service.find(name)
    return as_json(
        [
            {"id": i, "name": x, "path": _file_of(given), "scale": 0.0, "task_name": "",
             "prompt_prefix": ""}
            for i, (x, given) in enumerate(entry.adapters.items())
        ]
    )  # fmt: skip


def _file_of(given: Any) -> str:  # noqa: ANN401 a path, or a path and a scale
    """The name of an adapter's file, without its folder."""
    return Path(given[0] if isinstance(given, (tuple, list)) else given).name


async def embedding(exchange: Exchange) -> Response:
    """Embed texts, in llama-server's form."""
    given = await exchange.read(LlamaEmbedding)
    name = "input" if bytes(given.content) == b"null" else "content"
    raw = given.input if name == "input" else given.content
    if bytes(raw) == b"null":
        raise RequestError(400, "the field 'content' is missing", field="content")
    model = await exchange.vector_model(given)
    ids = await encode_texts(model, raw, name, exchange)
    if given.pooling == "none":
        rows = await token_vectors(exchange, model, given, raw, field=name, normalize=False)
        return as_json(
            [{"index": i, "embedding": [*map(numbers_of, x)]} for i, x in enumerate(rows)]
        )
    found = await vectors_of(
        exchange, model, given, ids, normalize=None if given.embd_normalize == 2 else False
    )
    return as_json([{"index": i, "embedding": [numbers_of(x)]} for i, x in enumerate(found)])


ENDPOINTS: Final = (
    Endpoint("/completion", completion, LlamaCompletion, errors=llama_error),
    Endpoint("/completions", completions, LlamaCompletion, errors=llama_error),
    Endpoint("/infill", infill, Infill, errors=llama_error),
    Endpoint("/tokenize", tokenize, Tokenize, errors=llama_error),
    Endpoint("/detokenize", detokenize, Detokenize, errors=llama_error),
    Endpoint("/tokenizer_info", tokenizer_info, method="GET"),
    Endpoint("/apply-template", apply_template, Template, errors=llama_error),
    Endpoint("/props", properties, method="GET", errors=llama_error),
    Endpoint("/slots", slots, method="GET", errors=llama_error),
    Endpoint("/lora-adapters", adapters, method="GET", errors=llama_error),
    Endpoint(
        "/embedding", embedding, LlamaEmbedding, aliases=("/embeddings",), errors=llama_error
    ),
)  # fmt: skip
