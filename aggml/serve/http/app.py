"""The ASGI application: OpenAI's routes for text, vectors and speech; rerank, health, metrics.

It runs under any server and on any loop. Not here: forms of requests and answers (schema.py,
fields.py, forms.py), batching (engine.py), the models (service.py), starting a server (running.py).
"""

from __future__ import annotations

import math
import secrets
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from aggml.models import ModelError
from aggml.models.engine.jobs import EngineError, FullError
from aggml.models.ranking import ranked
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
from aggml.serve.http.service import Completions, Options, Service
from aggml.serve.http.speech import answered, events, form_of, options_of, sound_of
from aggml.serve.http.streams import (
    EventStream,
    HungUpError,
    first_of,
    hung_up_cancels,
)
from aggml.serve.http.vectors import base64_of, numbers_of, shortened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from aggml.serve.embedder import Embedder
    from aggml.serve.http.resuming import Write

__all__ = ["Routes", "application"]

CHAT_TOKENS: Final = 1024  # at most in an answer, if the request sets no limit
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
        embedder = _named(given.model, self.service.embedders, "embeddings")
        width = embedder.model.width
        if given.dimensions is not None and given.dimensions > width:
            raise RequestError(
                400, f"dimensions: {given.dimensions} is more than the {width} of this model",
                field="dimensions",
            )  # fmt: skip
        inputs = prompts(given.input, "input")
        most = embedder.model.ctx
        found_inputs = [prompt_of(x, i, most, "input") for i, x in enumerate(inputs)]
        texts = [x for x in found_inputs if isinstance(x, str)]
        if len(texts) < len(inputs):
            raise RequestError(400, "input: this model takes texts, not tokens", field="input")
        ids = [await _tokens(embedder, i, text) for i, text in enumerate(texts)]
        with anyio.fail_after(given.timeout or self.service.options.deadline):
            async with hung_up_cancels(request.receive):
                found = await embedder.model.embed_ids(ids)
        data = []
        for i, whole in enumerate(found):
            if not np.isfinite(whole).all():
                raise EngineError(f"the vector of input {i} is not finite: {DAMAGED}")
            vector = shortened(whole, given.dimensions)
            told = base64_of(vector) if given.encoding_format == "base64" else numbers_of(vector)
            data.append({"object": "embedding", "index": i, "embedding": told})
            await checkpoint()
        tokens = sum(map(len, ids))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        name = embedder.name
        return as_json({"object": "list", "data": data, "model": name, "usage": usage})

    async def rerank(self, request: Request) -> Response:
        """Sort documents by how well they answer a query."""
        given = decoded(await read_json(request), Rerank)
        embedder = _named(given.model, self.service.rankers, "rerank")
        texts = given.texts
        pairs = [await _pair(embedder, given.query, i, text) for i, text in enumerate(texts)]
        with anyio.fail_after(given.timeout or self.service.options.deadline):
            async with hung_up_cancels(request.receive):
                scores = (await embedder.model.rerank_ids(pairs)).tolist()
        for i, score in enumerate(scores):
            if not math.isfinite(score):
                raise EngineError(f"the score of document {i} is {score}: {DAMAGED}")
        results: list[dict[str, object]] = []
        for found in ranked(scores, given.top_n):
            result: dict[str, object] = {"index": found.index, "relevance_score": found.score}
            if given.return_documents:
                result["document"] = {"text": texts[found.index]}
            results.append(result)
        tokens = sum(map(len, pairs))
        return as_json(
            {
                "id": f"rerank-{secrets.token_hex(8)}",
                "object": "list",
                "model": embedder.name,
                "results": results,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    async def completions(self, request: Request) -> Response:
        """Continue one or more prompts."""
        given = decoded(await read_json(request), Completion)
        model = self._completions(given)
        text, most = model.text, model.model.engine.model.ctx - 1
        ids = []
        if bytes(given.prompt) == b"null":
            ids.append(text.begin())
        else:
            for i, prompt in enumerate(prompts(given.prompt, "prompt")):
                ids.append(await text.encode(prompt_of(prompt, i, most, "prompt")))
                await checkpoint()
        return await self._answer(request, given, (model, ids, given.max_tokens), chat=False)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation."""
        given = decoded(await read_json(request), Chat)
        model = self._completions(given)
        ids = await model.text.encode_chat([message.for_template() for message in given.messages])
        limit = given.max_completion_tokens or given.max_tokens
        if limit is None:
            limit = max(1, min(CHAT_TOKENS, model.model.engine.model.ctx - 1 - len(ids)))
        return await self._answer(request, given, (model, [ids], limit), chat=True)

    async def transcriptions(self, request: Request) -> Response:
        """Transcribe a recording."""
        return await self._heard(request, translate=False)

    async def translations(self, request: Request) -> Response:
        """Transcribe a recording, translated into English."""
        return await self._heard(request, translate=True)

    async def _heard(self, request: Request, *, translate: bool) -> Response:
        data, fields = await form_of(request)
        given = decoded(fields, Transcription)
        model = _named(given.model, self.service.transcribers, "transcriptions")
        options = options_of(given, model, translate=translate)
        samples, rate = await anyio.to_thread.run_sync(sound_of, data)
        seconds = given.timeout or self.service.options.deadline
        if given.stream:

            async def produce(write: Write) -> None:
                try:
                    with anyio.fail_after(seconds):
                        async with aclosing(
                            model.model.transcribe(samples, rate, **options)
                        ) as said:
                            await events(write, said)
                except Exception as error:
                    if isinstance(first_of(error), HungUpError):
                        raise
                    await write(Failure(error).event())

            return EventStream(produce, self.service.metrics.hung_up.inc)
        with anyio.fail_after(seconds):
            async with (
                hung_up_cancels(request.receive),
                aclosing(model.model.transcribe(samples, rate, **options)) as said,
            ):
                found = [segment async for segment in said]
        form = given.response_format
        return answered(form, found, len(samples) / rate, translate=translate)

    def _completions(self, given: Generation) -> Completions:
        return _named(given.model, self.service.completers, "completions")

    async def _answer(
        self,
        request: Request,
        given: Generation,
        asked: tuple[Completions, Sequence[list[int]], int],
        *,
        chat: bool,
    ) -> Response:
        """Continue prompts; ``asked``: the model, its prompts, the most tokens of an answer."""
        completions, ids, limit = asked
        engine, text, n = completions.model.engine, completions.text, given.n
        given.check(limit, engine.model.vocabulary)
        so_far = so_far_of(request.scope)
        if so_far is not None and given.seed is None:
            given = msgspec.structs.replace(given, seed=so_far.seed)
        choices = [
            Choice(
                engine, text, given, prompt, limit, index=i * n + variant, variant=variant,
                sent=so_far.of(i * n + variant) if so_far else None,
            )
            for i, prompt in enumerate(ids)
            for variant in range(n)
        ]  # fmt: skip
        engine.check([x.job for x in choices if x.computes])  # before the status is sent
        form = Form(choices, chat=chat, model=completions.model.name, so_far=so_far)
        seconds = given.timeout or self.service.options.deadline
        seconds = max(0.0, seconds - so_far.seconds) if so_far else seconds
        if given.stream:
            options = given.stream_options
            usage = options is not None and bool(options.include_usage)

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


def _named(given: str | None, known: Mapping[str, Served], what: str) -> Served:
    """The model that answers: the one that the request names, else the first one."""
    if not known:
        raise RequestError(404, f"this server has no model for {what}")
    if given is not None and given not in known:
        raise _unknown(given, list(known))
    return next(iter(known.values())) if given is None else known[given]


async def _tokens(embedder: Embedder, i: int, text: str) -> list[int]:
    """Token ids of a text to embed.

    Raises:
        RequestError: there are too many, or none.
    """
    try:
        ids = await embedder.tokens(text)
    except ModelError as error:
        raise RequestError(400, f"input: input {i} has {error}", field="input") from error
    await checkpoint()
    return ids


async def _pair(embedder: Embedder, query: str, i: int, text: str) -> list[int]:
    """Token ids of the query and a document.

    Raises:
        RequestError: there are too many.
    """
    try:
        ids = await embedder.pair(query, text)
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
