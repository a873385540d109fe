"""Exchange: one request on its way to an answer; Endpoint: a route of a protocol.

Here: reading a body into fields, the model that answers, the id of the request. Not here: the
routes of a protocol (openai.py and the others), the application (app.py).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aggml.models import EncoderModel, SpeechModel, TextModel
from aggml.serve.http.bodies import read_json
from aggml.serve.http.fields import decode_body
from aggml.serve.http.forms import Failure, openai_error
from aggml.serve.http.schema import Sampling
from aggml.serve.http.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AsyncExitStack

    from msgspec import Struct
    from starlette.requests import Request
    from starlette.responses import Response

    from aggml.models import Model
    from aggml.serve.http.resuming import Write
    from aggml.serve.http.schema import ModelRequest
    from aggml.serve.http.service import Head, Service

__all__ = ["Endpoint", "Exchange"]

T = TypeVar("T", bound="Struct")
PLAIN: Final = re.compile(r"[\x21-\x7e]{1,128}")  # an id that a client may give its request


class Exchange:
    """A request, and what its answer needs.

    Args:
        service: has the models.
        request: as it came; its body is not read yet.
        stack: ends when the answer is sent.

    Attributes:
        id: of the request: the client's ``X-Request-Id``, or a new one.
        unknown: names of the fields that are ignored because nobody knows them.
        model: the name of the model that answers; None: none yet.
        adapter: the name of the adapter that changes it for this request, or names with their
            scales; None: none.
        key: the name of the key that the client brought; None: none.
        errors: makes the body of an error; None: that of the route does.
    """

    def __init__(self, service: Service, request: Request, stack: AsyncExitStack) -> None:
        self.service = service
        self.request = request
        self.stack = stack
        given = request.headers.get("x-request-id", "")
        self.id: Any | str = given if PLAIN.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        self.unknown: list[str] = []
        self.model: str | None = None
        self.adapter: str | Mapping[str, float] | None = None
        self.key: str | None = None
        self.errors: Callable[[Failure], object] | None = None

    def end(self) -> None:
        """Forget the request; id, key, model and unknown fields stay.

        The request refers to its scope, which has the exchange. If that were a cycle, each request
        would keep its memory until Python's collector searches all objects.
        """
        del self.request, self.stack

    async def body(self) -> bytes:
        """The body as JSON in UTF-8."""
        o = self.service.options
        return await read_json(self.request, o.max_body, o.body_timeout)

    async def read(self, kind: type[T]) -> T:
        """The fields of the request.

        Raises:
            RequestError: a field is missing, wrong, or refused.
        """
        return self.decode(await self.body(), kind)

    def decode(self, body: bytes, kind: type[T]) -> T:
        """The fields of a body; those that nobody knows are noted, or refused by a strict service.

        Raises:
            RequestError: a field is missing, wrong, or refused.
        """
        unknown = None if self.service.ignored.strict else self.unknown
        return decode_body(body, kind, unknown, self.service.defaults)

    async def text_model(self, given: ModelRequest) -> TextModel:
        """The model that continues text for this request."""
        model = await self._lease(given, [TextModel], "completions")
        assert isinstance(model, TextModel)
        return model

    async def vector_model(self, given: ModelRequest) -> EncoderModel | TextModel:
        """The model that embeds texts for this request: encoders come first."""
        model = await self._lease(given, [EncoderModel, TextModel], "embeddings")
        assert isinstance(model, (EncoderModel, TextModel))
        return model

    async def text_or_vector_model(self, given: ModelRequest) -> EncoderModel | TextModel:
        """The model whose tokens a request is about: models that continue text come first."""
        model = await self._lease(given, [TextModel, EncoderModel], "tokens")
        assert isinstance(model, (EncoderModel, TextModel))
        return model

    async def ranker(self, given: ModelRequest) -> EncoderModel | TextModel:
        """The model that ranks documents for this request: encoders come first."""
        model = await self._lease(given, [EncoderModel, TextModel], "rerank", head="ranks")
        assert isinstance(model, (EncoderModel, TextModel))
        return model

    async def scorer(self, given: ModelRequest) -> EncoderModel | TextModel:
        """The model that scores pairs of texts for this request: those that rank come first."""
        if given.model is None and self.service.ranks:
            return await self.ranker(given)
        return await self.vector_model(given)

    async def classifier(self, given: ModelRequest) -> EncoderModel | TextModel:
        """The model that classifies texts for this request: encoders come first."""
        model = await self._lease(given, [EncoderModel, TextModel], "classification", head="ranks")
        assert isinstance(model, (EncoderModel, TextModel))
        return model

    async def term_model(self, given: ModelRequest) -> EncoderModel:
        """The model that gives weights of words for this request."""
        model = await self._lease(given, [EncoderModel], "sparse embeddings", head="terms")
        assert isinstance(model, EncoderModel)
        return model

    async def speech_model(self, given: ModelRequest) -> SpeechModel:
        """The model that transcribes for this request."""
        model = await self._lease(given, [SpeechModel], "transcriptions")
        assert isinstance(model, SpeechModel)
        return model

    async def _lease(
        self, given: ModelRequest, kinds: list[type[Model]], what: str, *, head: Head | None = None
    ) -> Any:  # noqa: ANN401 one of the kinds
        name, model = await self.service.lease(self.stack, given, kinds, what, head=head)
        self.model = name
        lora = given.lora if isinstance(given, Sampling) else None
        self.adapter = self.service.adapter_of(name, given.adapter, lora)
        return model

    @property
    def fingerprint(self) -> str:
        """What answers of one seed depend on."""
        assert self.model is not None
        return self.service.find(self.model).fingerprint

    def seconds(self, given: ModelRequest) -> float:
        """The seconds that the answer may take."""
        return given.timeout or self.service.options.deadline

    def stream(
        self, produce: Callable[[Write], Awaitable[None]], media: str | None = None
    ) -> EventStream:
        """An answer that is sent piece by piece."""
        more = {} if media is None else {"media": media}
        options = self.service.options
        return EventStream(produce, self.service.metrics.hung_up.inc, options.ping, **more)


@dataclass(frozen=True)
class Endpoint:
    """A route.

    Attributes:
        path: of the route.
        answer: answers a request.
        form: of the body; None: it has none.
        method: of HTTP.
        aliases: other paths with the same answer.
        errors: makes the body of an error.
        open: whether it needs no key.
    """

    path: str
    answer: Callable[[Exchange], Awaitable[Response]]
    form: type[Struct] | None = None
    method: str = "POST"
    aliases: tuple[str, ...] = ()
    errors: Callable[[Failure], object] = openai_error
    open: bool = False

    @property
    def about(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().partition("\n")[0]
