"""The ASGI application: OpenAI's routes for text, vectors and speech; rerank, health, metrics.

It runs under any server and on any loop. Not here: forms of requests and answers (schema.py,
fields.py, forms.py), the models (service.py), starting a server (running.py).
"""

from __future__ import annotations

import math
import secrets
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from aggml.models import EngineError, FullError, ModelError, TooLongError, caller, ranked
from aggml.models.chat import ANSWER
from aggml.serve.http.bodies import read_json
from aggml.serve.http.choice import Choice
from aggml.serve.http.fields import decoded
from aggml.serve.http.forms import Failure, Form, as_json
from aggml.serve.http.pacing import Door
from aggml.serve.http.resuming import so_far_of
from aggml.serve.http.schema import (
    Chat,
    Completion,
    Embeddings,
    Generation,
    RequestError,
    Rerank,
    Transcription,
    prompt_of,
    prompts,
)
from aggml.serve.http.service import Options, Service
from aggml.serve.http.speech import answered, events, form_of, options_of, sound_of
from aggml.serve.http.streams import (
    EventStream,
    HungUpError,
    first_of,
    hung_up_cancels,
)
from aggml.serve.http.text import begin_text, encode_conversation, encode_input, encode_prompt
from aggml.serve.http.vectors import base64_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from aggml.models import EncoderModel, TextModel
    from aggml.serve.http.resuming import Write
    from aggml.serve.http.schema import ModelRequest

__all__ = ["Routes", "application"]

DAMAGED: Final = "the model's numbers overflow, or its file is damaged"
RETRY: Final = 5  # seconds until a client should try again: another server may be up then

Served = TypeVar("Served")


class Routes:
    """Answers the requests of each route with the models of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def health(self, _: Request) -> Response:
        """Tell whether new requests are accepted."""
        service = self.service
        status = "stopping" if service.stopping else "ok"
        content = {"status": status, "models": service.names}
        if service.stopping:
            return as_json(content, 503, {"retry-after": str(RETRY)})
        return as_json(content)

    async def models(self, _: Request) -> Response:
        """List the models that are served."""
        return as_json({"object": "list", "data": [_about(name) for name in self.service.names]})

    async def one_model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["name"]
        if name not in self.service.names:
            raise _unknown(name, self.service.names)
        return as_json(_about(name))

    async def show_metrics(self, _: Request) -> Response:
        """Give the metrics to Prometheus."""
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def embeddings(self, request: Request) -> Response:
        """Embed texts: one vector for each."""
        given = decoded(await read_json(request), Embeddings)
        name, model = _named(given, self.service.embedders, "embeddings")
        width = model.width
        if given.dimensions is not None and given.dimensions > width:
            raise RequestError(
                400, f"dimensions: {given.dimensions} is more than the {width} of this model",
                field="dimensions",
            )  # fmt: skip
        inputs = prompts(given.input, "input")
        found_inputs = [prompt_of(x, i, model.ctx, "input") for i, x in enumerate(inputs)]
        texts = [x for x in found_inputs if isinstance(x, str)]
        if len(texts) < len(inputs):
            raise RequestError(400, "input: this model takes texts, not tokens", field="input")
        ids = [await _tokens(model, i, text) for i, text in enumerate(texts)]
        with anyio.fail_after(given.timeout or self.service.options.deadline):
            async with hung_up_cancels(request.receive):
                found = await model.embed_ids(
                    ids,
                    dimensions=given.dimensions,
                    priority=given.priority,
                    deadline=given.timeout,
                )
        data = []
        for i, vector in enumerate(found):
            if not np.isfinite(vector).all():
                raise EngineError(f"the vector of input {i} is not finite: {DAMAGED}")
            told = base64_of(vector) if given.encoding_format == "base64" else numbers_of(vector)
            data.append({"object": "embedding", "index": i, "embedding": told})
            await checkpoint()
        tokens = sum(map(len, ids))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "data": data, "model": name, "usage": usage})

    async def rerank(self, request: Request) -> Response:
        """Sort documents by how well they answer a query."""
        given = decoded(await read_json(request), Rerank)
        name, model = _named(given, self.service.rankers, "rerank")
        texts = given.texts
        pairs = [await _pair(model, given.query, i, text) for i, text in enumerate(texts)]
        with anyio.fail_after(given.timeout or self.service.options.deadline):
            async with hung_up_cancels(request.receive):
                scores = await model.rerank_ids(
                    pairs, priority=given.priority, deadline=given.timeout
                )
        for i, score in enumerate(scores.tolist()):
            if not math.isfinite(score):
                raise EngineError(f"the score of document {i} is {score}: {DAMAGED}")
        results: list[dict[str, object]] = []
        for found in ranked(scores.tolist(), given.top_n):
            result: dict[str, object] = {"index": found.index, "relevance_score": found.score}
            if given.return_documents:
                result["document"] = {"text": texts[found.index]}
            results.append(result)
        tokens = sum(map(len, pairs))
        return as_json(
            {
                "id": f"rerank-{secrets.token_hex(8)}",
                "object": "list",
                "model": name,
                "results": results,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    async def completions(self, request: Request) -> Response:
        """Continue one or more prompts."""
        given = decoded(await read_json(request), Completion)
        name, model = _named(given, self.service.completers, "completions")
        ids = []
        if bytes(given.prompt) == b"null":
            ids.append(begin_text(model))
        else:
            for i, prompt in enumerate(prompts(given.prompt, "prompt")):
                ids.append(await encode_prompt(model, prompt_of(prompt, i, model.ctx, "prompt")))
                await checkpoint()
        return await self._answer(request, given, name, model, ids, given.max_tokens)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation."""
        given = decoded(await read_json(request), Chat)
        name, model = _named(given, self.service.completers, "completions")
        ids = await encode_conversation(model, [x.as_message() for x in given.messages])
        limit = given.max_completion_tokens or given.max_tokens
        if limit is None:
            limit = max(1, min(ANSWER, model.ctx - len(ids)))
        return await self._answer(request, given, name, model, [ids], limit)

    async def transcriptions(self, request: Request) -> Response:
        """Transcribe a recording."""
        return await self._heard(request, translate=False)

    async def translations(self, request: Request) -> Response:
        """Transcribe a recording, translated into English."""
        return await self._heard(request, translate=True)

    async def _heard(self, request: Request, *, translate: bool) -> Response:
        data, fields = await form_of(request)
        given = decoded(fields, Transcription)
        _, model = _named(given, self.service.transcribers, "transcriptions")
        options = options_of(given, model, translate=translate)
        samples, rate = await anyio.to_thread.run_sync(sound_of, data)
        seconds = given.timeout or self.service.options.deadline
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

            return EventStream(produce, self.service.metrics.hung_up.inc)
        with anyio.fail_after(seconds):
            async with (
                hung_up_cancels(request.receive),
                aclosing(model.transcribe(samples, rate, **options)) as said,
            ):
                found = [segment async for segment in said]
        form = given.response_format
        return answered(form, found, len(samples) / rate, translate=translate)

    async def _answer(
        self,
        request: Request,
        given: Generation,
        name: str,
        model: TextModel,
        prompts: Sequence[list[int]],
        limit: int,
    ) -> Response:
        """Continue each of the prompts ``given.n`` times, by at most ``limit`` tokens."""
        given.check(limit, model.vocabulary_size)
        longest = max(map(len, prompts))
        if longest + limit - 1 > model.ctx:
            raise TooLongError(
                f"{longest} tokens of prompt and {limit} more do not fit a context of {model.ctx}"
            )
        so_far = so_far_of(request.scope)
        options = given.options(model.tokenizer) | {"max_tokens": limit}
        past = so_far.seconds if so_far else 0.0
        if so_far is not None and given.seed is None:
            options["seed"] = so_far.seed
        if so_far is not None:  # it has begun, so its deadline is told by an event
            options["deadline"] = None
        n = given.n
        choices = [
            Choice(
                model, prompt, options, index=i * n + variant, variant=variant,
                sent=so_far.of(i * n + variant) if so_far else None,
            )
            for i, prompt in enumerate(prompts)
            for variant in range(n)
        ]  # fmt: skip
        model.check([x.stream for x in choices if x.stream])  # before the status is sent
        form = Form(choices, chat=isinstance(given, Chat), model=name, so_far=so_far)
        seconds = max(0.0, (given.timeout or self.service.options.deadline) - past)
        if given.stream:
            more = given.stream_options
            usage = more is not None and bool(more.include_usage)

            async def produce(write: Write) -> None:
                await form.events(write, seconds, usage=usage)

            return EventStream(produce, self.service.metrics.hung_up.inc)
        with anyio.fail_after(seconds):
            async with hung_up_cancels(request.receive), anyio.create_task_group() as tasks:
                for choice in choices:
                    tasks.start_soon(choice.run)
        return as_json(form.whole())


def _about(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "aggml"}


def _named(given: ModelRequest, known: Mapping[str, Served], what: str) -> tuple[str, Served]:
    """The model that answers: the one that the request names, else the first one; and its name.

    From here on the task computes for the request's user.
    """
    if not known:
        raise RequestError(404, f"this server has no model for {what}")
    name = next(iter(known)) if given.model is None else given.model
    if name not in known:
        raise _unknown(name, list(known))
    caller.set(given.user if isinstance(given.user, (str, int)) else None)
    return name, known[name]


async def _tokens(model: EncoderModel, i: int, text: str) -> list[int]:
    """Token ids of a text to embed.

    Raises:
        RequestError: there are too many, or none.
    """
    try:
        prompt = "" if model.prompt is None else model.prompts[model.prompt]
        ids = await encode_input(model, model.tokenizer.encode_prompt, prompt + text)
    except ModelError as error:
        raise RequestError(400, f"input: input {i} has {error}", field="input") from error
    await checkpoint()
    return ids


async def _pair(model: EncoderModel, query: str, i: int, text: str) -> list[int]:
    """Token ids of the query and a document.

    Raises:
        RequestError: there are too many.
    """
    try:
        ids = await encode_input(model, model.tokenizer.encode_pair, query, text)
    except ModelError as error:
        raise RequestError(
            400, f"documents: document {i} and the query have {error}", field="documents"
        ) from error
    await checkpoint()
    return ids


def _unknown(name: str, known: Sequence[str]) -> RequestError:
    message = f"the model {name[:64]!r} is not served here; there are {', '.join(map(repr, known))}"
    return RequestError(404, message, field="model", code="model_not_found")


def _check_key(request: Request, key: str | None) -> None:
    """Refuse a request that does not bring the server's key.

    Raises:
        RequestError: the key is missing or wrong.
    """
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = secrets.compare_digest(given.strip().encode(), key.encode())
    if scheme.lower() != "bearer" or not right:
        raise RequestError(
            401, "the key of this server is missing or wrong: send it as the header "
            "'Authorization: Bearer KEY'",
            code="invalid_api_key",
        )  # fmt: skip


def application(options: Options) -> Starlette:
    """The ASGI application; models are loaded when the server starts it."""
    service = Service(options)
    routes = Routes(service)
    door = Door()

    def route(
        path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "POST"
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            await door.enter()
            try:
                if service.stopping and method == "POST":
                    raise FullError("the server is stopping", RETRY)
                if path.startswith("/v1/"):
                    _check_key(request, options.api_key)
                response = await answer(request)
            except Exception as error:
                response = Failure(error).response()
                if response.status_code == 499:
                    service.metrics.hung_up.inc()
            service.metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, endpoint, methods=[method])

    async def refused(request: Request, error: Exception) -> Response:
        """Answer a request for no route in the form of all other errors."""
        assert isinstance(error, HTTPException)
        reason = f"{error.detail}: {request.method} {request.url.path}"
        failure = Failure(RequestError(error.status_code, reason))
        return as_json(failure.content, error.status_code, error.headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service.is_open:
            yield
            return
        async with service.opened():
            yield

    paths = [
        route("/v1/embeddings", routes.embeddings),
        route("/v1/rerank", routes.rerank),
        route("/v1/completions", routes.completions),
        route("/v1/chat/completions", routes.chat),
        route("/v1/audio/transcriptions", routes.transcriptions),
        route("/v1/audio/translations", routes.translations),
        route("/v1/models", routes.models, "GET"),
        route("/v1/models/{name:path}", routes.one_model, "GET"),
        route("/health", routes.health, "GET"),
        route("/metrics", routes.show_metrics, "GET"),
    ]
    app = Starlette(
        routes=paths,
        lifespan=lifespan,
        exception_handlers={HTTPException: refused},
        middleware=[Middleware(service.under_way.counted)],
    )
    app.state.service = service
    return app
