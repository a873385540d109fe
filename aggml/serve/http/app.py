"""The ASGI application: OpenAI's completions and embeddings, health, metrics; any server, any loop.

Not here: forms of requests and answers (schema.py, fields.py, forms.py), batching (engine.py),
starting a server (__main__.py).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

import aggml
from aggml.models import ModelError
from aggml.models.cache.paging import PagedDecoder, budget_of
from aggml.models.loading import load_decoder
from aggml.models.tokenizers import open_vocabulary
from aggml.models.weights import open_model
from aggml.serve.engine import STAGED, Engine
from aggml.serve.http.choice import Choice
from aggml.serve.http.fields import decoded
from aggml.serve.http.forms import Failure, Form, as_json
from aggml.serve.http.metrics import Metrics
from aggml.serve.http.pacing import Door, UnderWay, collect_seldom
from aggml.serve.http.schema import (
    Chat,
    Completion,
    Embeddings,
    Generation,
    RequestError,
    prompt_of,
    prompts,
)
from aggml.serve.http.streams import EventStream, body_of, hung_up_cancels
from aggml.serve.http.text import Text
from aggml.serve.http.vectors import base64_of, numbers_of, shortened
from aggml.serve.jobs import FullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from minilm import Embedder
    from starlette.requests import Request

    from aggml.serve.http.streams import Write

__all__ = ["Options", "Service", "application"]

CHAT_TOKENS: Final = 1024  # of an answer, if the request does not say
TOKENS: Final = 4096  # of an input to embed
WIDTH: Final = 384  # of its vectors
NAME: Final = "all-MiniLM-L6-v2"  # of the package's model for embeddings
RETRY: Final = 5  # seconds after which another server may be up


@dataclass(frozen=True)
class Options:
    """The options of the service.

    Attributes:
        model: a GGUF file for completions; None: there are none.
        embeddings: whether to serve embeddings.
        embed_folder: model.safetensors and tokenizer.json, if not those of the installed package.
        embed_dtype: "f32", "bf16" or "q8_0".
        device: name of an aggml device.
        threads: for the computation; by default as many as there are usable cores.
        slots: sequences that run at a time.
        ctx: the most positions of one; by default what the model was trained for, at most 4096.
        kv_memory: bytes for keys and values of all.
        chunk: tokens in one step, of running sequences and of prompts.
        max_waiting: requests that wait; more are answered with 503.
        deadline: seconds for a request that does not name its own.
        drain: seconds for what is under way when the service stops.
        collect_seldom: once the models are loaded, make the garbage collector search seldom
            (pacing.py). For a process that does nothing else.
    """

    model: Path | None = None
    embeddings: bool = True
    embed_folder: Path | None = None
    embed_dtype: str = "f32"
    device: str = "CPU"
    threads: int | None = None
    slots: int = 16
    ctx: int | None = None
    kv_memory: int = 512 << 20
    chunk: int = 128
    max_waiting: int = 256
    deadline: float = 120.0
    drain: float = 30.0
    collect_seldom: bool = False


class Service:
    """The models, opened once, and the routes to them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics()
        self.embedder: Embedder | None = None
        self.engine: Engine | None = None
        self.text: Text | None = None
        self.embedder_name = ""
        self.model_name = ""
        self.stopping = False
        self.under_way = UnderWay()
        self.metrics.watch_requests(self.under_way)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Service]:
        """Load the models. At the end of the block requests under way have some time to end."""
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            stack.callback(tasks.cancel_scope.cancel)
            if self.options.embeddings:
                await self._open_embedder(stack)
            if self.options.model is not None:
                await self._open_model(self.options.model, stack)
            if self.options.collect_seldom:
                collect_seldom()
            tasks.start_soon(self.metrics.tick)
            try:
                yield self
            finally:
                await self.drain(self.options.drain)

    @property
    def names(self) -> list[str]:
        """The names of the models that are served."""
        return [name for name in (self.embedder_name, self.model_name) if name]

    async def drain(self, seconds: float) -> None:
        """Answer new requests with 503 and wait for those under way; then cut the rest off.

        The server must go on listening: a client that finds nobody cannot tell an end from a
            failure.
        """
        self.stopping = True
        if self.engine is not None:
            self.engine.stop()
        with anyio.move_on_after(seconds):
            await self.under_way.none()
        self.cut_off()

    def cut_off(self) -> None:
        """End the requests under way; they are told that the server has stopped."""
        if self.engine is not None:
            self.engine.cut_off()

    async def _open_embedder(self, stack: AsyncExitStack) -> None:
        from minilm import Embedder

        o = self.options
        embedder = Embedder(
            device=o.device,
            threads=o.threads,
            dtype=o.embed_dtype,
            folder=o.embed_folder,
            max_waiting=o.max_waiting,
        )
        self.embedder = await stack.enter_async_context(embedder)
        self.embedder_name = NAME if o.embed_folder is None else o.embed_folder.name

    async def _open_model(self, path: Path, stack: AsyncExitStack) -> None:
        o = self.options
        file = stack.enter_context(await open_model(path))
        vocabulary = open_vocabulary(file.metadata)
        if vocabulary is None:
            raise ModelError(f"{path} has no vocabulary: it cannot be served")
        self.text = Text(vocabulary, file.metadata)
        backend = aggml.get_device(o.device).backend(n_threads=o.threads)
        await stack.enter_async_context(backend)
        model = await load_decoder(
            backend, file, kind=PagedDecoder, ctx=o.ctx, sequences=o.slots + STAGED
        )
        engine = Engine(
            model,
            slots=o.slots,
            budget=budget_of(o.kv_memory, model),
            chunk=o.chunk,
            max_waiting=o.max_waiting,
        )
        self.metrics.watch(engine)
        self.engine = await stack.enter_async_context(engine)
        self.model_name = str(file.metadata.get("general.name", path.stem))

    # -- routes

    async def health(self, _: Request) -> Response:
        """Whether new requests are accepted."""
        status = "stopping" if self.stopping else "ok"
        content = {"status": status, "models": self.names}
        if self.stopping:
            return as_json(content, 503, {"retry-after": str(RETRY)})
        return as_json(content)

    async def models(self, _: Request) -> Response:
        """The models that are served."""
        return as_json({"object": "list", "data": [_about(name) for name in self.names]})

    async def one_model(self, request: Request) -> Response:
        """One of the models."""
        name = request.path_params["name"]
        if name not in self.names:
            raise _unknown(name, self.names)
        return as_json(_about(name))

    async def show_metrics(self, _: Request) -> Response:
        """The metrics, for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def embeddings(self, request: Request) -> Response:
        """Vectors of texts."""
        if self.embedder is None:
            raise RequestError(404, "no model for embeddings is served here")
        embedder = self.embedder
        given = decoded(await body_of(request), Embeddings)
        model = _named(given.model, self.embedder_name)
        if given.dimensions is not None and given.dimensions > WIDTH:
            raise RequestError(
                400, f"dimensions: {given.dimensions}, of {WIDTH} that the model gives",
                field="dimensions",
            )  # fmt: skip
        inputs = prompts(given.input, "input")
        found_inputs = [prompt_of(x, i, TOKENS, "input") for i, x in enumerate(inputs)]
        texts = [x for x in found_inputs if isinstance(x, str)]
        if len(texts) < len(inputs):
            raise RequestError(400, "input: this model takes texts, not tokens", field="input")
        found: list[Any] = [None] * len(texts)
        tokens = 0

        async def one(i: int) -> None:
            nonlocal tokens
            ids = await embedder.tokens(texts[i])
            tokens += len(ids)
            found[i] = await embedder.embed_tokens(ids)

        with anyio.fail_after(given.timeout or self.options.deadline):
            async with hung_up_cancels(request.receive), anyio.create_task_group() as tasks:
                for i in range(len(texts)):
                    tasks.start_soon(one, i)
        data = []
        for i, whole in enumerate(found):
            vector = shortened(whole, given.dimensions)
            told = base64_of(vector) if given.encoding_format == "base64" else numbers_of(vector)
            data.append({"object": "embedding", "index": i, "embedding": told})
            await checkpoint()
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "data": data, "model": model, "usage": usage})

    async def completions(self, request: Request) -> Response:
        """Texts that continue the prompts."""
        text = self._text()
        given = decoded(await body_of(request), Completion)
        assert self.engine is not None
        most = self.engine.model.ctx - 1
        ids = []
        if bytes(given.prompt) == b"null":
            ids.append(text.begin())
        else:
            for i, prompt in enumerate(prompts(given.prompt, "prompt")):
                ids.append(await text.encode(prompt_of(prompt, i, most, "prompt")))
                await checkpoint()
        return await self._answer(request, given, ids, given.max_tokens, chat=False)

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation."""
        text = self._text()
        given = decoded(await body_of(request), Chat)
        ids = await text.encode_chat([message.for_template() for message in given.messages])
        limit = given.max_completion_tokens or given.max_tokens
        if limit is None:
            assert self.engine is not None
            limit = max(1, min(CHAT_TOKENS, self.engine.model.ctx - 1 - len(ids)))
        return await self._answer(request, given, [ids], limit, chat=True)

    def _text(self) -> Text:
        if self.text is None:
            raise RequestError(404, "no model for completions is served here")
        return self.text

    async def _answer(
        self,
        request: Request,
        given: Generation,
        ids: Sequence[list[int]],
        limit: int,
        *,
        chat: bool,
    ) -> Response:
        engine, text, n = self.engine, self._text(), given.n
        assert engine is not None
        model = _named(given.model, self.model_name)
        given.check(limit, engine.model.vocabulary)
        choices = [
            Choice(engine, text, given, prompt, limit, index=i * n + variant, variant=variant)
            for i, prompt in enumerate(ids)
            for variant in range(n)
        ]
        engine.check([choice.job for choice in choices])  # while a status can still be sent
        form = Form(choices, chat=chat, model=model)
        seconds = given.timeout or self.options.deadline
        if given.stream:
            options = given.stream_options
            usage = options is not None and bool(options.include_usage)

            async def produce(write: Write) -> None:
                await form.events(write, seconds, usage=usage)

            return EventStream(produce, self.metrics.hung_up.inc)
        with anyio.fail_after(seconds):
            async with hung_up_cancels(request.receive), anyio.create_task_group() as tasks:
                for choice in choices:
                    tasks.start_soon(choice.run)
        return as_json(form.whole())


def _about(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "aggml"}


def _named(given: str | None, name: str) -> str:
    """The model that answers: the one that the request names, else the only one."""
    if given not in (None, name):
        raise _unknown(str(given), [name])
    return name


def _unknown(name: str, known: Sequence[str]) -> RequestError:
    message = f"the model {name[:64]!r} is not served here, but {', '.join(map(repr, known))}"
    return RequestError(404, message, field="model", code="model_not_found")


def application(options: Options) -> Starlette:
    """The ASGI application; models are loaded when the server starts it."""
    service = Service(options)
    door = Door()

    def route(
        path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "POST"
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            await door.enter()
            try:
                if service.stopping and method == "POST":
                    raise FullError("the server is stopping", RETRY)
                response = await answer(request)
            except Exception as error:
                response = Failure(error).response()
                if response.status_code == 499:
                    service.metrics.hung_up.inc()
            service.metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, endpoint, methods=[method])

    async def refused(request: Request, error: Exception) -> Response:
        """Errors of routes that do not exist, in the form of all other errors."""
        assert isinstance(error, HTTPException)
        reason = f"{error.detail}: {request.method} {request.url.path}"
        failure = Failure(RequestError(error.status_code, reason))
        return as_json(failure.content, error.status_code, error.headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.opened():
            yield

    routes = [
        route("/v1/embeddings", service.embeddings),
        route("/v1/completions", service.completions),
        route("/v1/chat/completions", service.chat),
        route("/v1/models", service.models, "GET"),
        route("/v1/models/{name:path}", service.one_model, "GET"),
        route("/health", service.health, "GET"),
        route("/metrics", service.show_metrics, "GET"),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: refused},
        middleware=[Middleware(service.under_way.counted)],
    )
    app.state.service = service
    return app
