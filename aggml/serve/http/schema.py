"""The fields of requests that the service supports, under the names of OpenAI's API.

Not here: all other fields, reading bodies (fields.py), carrying a request out (app.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

if TYPE_CHECKING:
    from aggml.models.tokenizers import Vocabulary

__all__ = [
    "Chat", "Completion", "Document", "Embeddings", "Generation", "Message", "ModelRequest",
    "RequestError", "Rerank", "StreamOptions", "Transcription", "prompt_of", "prompts",
]  # fmt: skip

MOST: Final = 256  # inputs in one request
DOCUMENTS: Final = 1000  # in one request to rerank; Cohere's limit
BEST: Final = 20  # most tokens whose probabilities are told beside each token
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
_TextOrTokens = str | Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
_Stop = Annotated[str, Meta(max_length=256)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Bias = Annotated[dict[_Token, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)]
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        status: the HTTP status.
        message: the reason.
        field: the field of the request that is wrong.
        code: OpenAI's code of the error, if it has one.
    """

    def __init__(
        self, status: int, message: str, *, field: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.code = code


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream contains beside the answer."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = None  # would pad events; changes no answer


class ModelRequest(Struct, kw_only=True):
    """The fields of every request."""

    model: str | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] = 0  # greater ones come first
    user: Any = None  # whose request it is: callers share the model fairly
    timeout: _Seconds | None = None  # by then the answer must be complete


class Generation(ModelRequest, kw_only=True):
    """The fields that completions and chats share, with those that vLLM and llama.cpp add."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.8
    top_p: Annotated[float, Meta(gt=0, le=1)] = 0.95
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = 40  # 0 and -1: all
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    logit_bias: _Bias = {}
    n: Annotated[int, Meta(ge=1, le=16)] = 1
    seed: int | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=16)] = []
    stop_token_ids: Annotated[list[_Token], Meta(max_length=64)] = []
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        return [x for x in given if x]

    def options(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """The fields as arguments of `TextModel.generate`, but for ``max_tokens``.

        Args:
            vocabulary: of the model.
        """
        ends = frozenset[int]() if self.ignore_eos else vocabulary.ends
        return {
            "temperature": self.temperature,
            "top_k": max(0, self.top_k),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stops,
            "stop_ids": sorted(ends | frozenset(self.stop_token_ids)),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "logprobs": self.told,
            "min_tokens": self.min_tokens,
            "priority": self.priority,
            "deadline": self.timeout,
        }

    @property
    def told(self) -> int | None:
        """How many of the best tokens to report beside each one; None: no report."""
        raise NotImplementedError

    def check(self, limit: int, vocabulary: int) -> None:
        """Check that the fields fit together.

        Args:
            limit: the most tokens of the answer.
            vocabulary: how many tokens the model knows.

        Raises:
            RequestError: they do not fit.
        """
        if self.min_tokens > limit:
            raise RequestError(
                400, f"min_tokens: {self.min_tokens} is more than max_tokens, {limit}",
                field="min_tokens",
            )  # fmt: skip
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            wrong = max(ids, default=0)
            if wrong >= vocabulary:
                raise RequestError(
                    400, f"{name}: there is no token {wrong}, the model has 0 to {vocabulary - 1}",
                    field=name,
                )  # fmt: skip


class Completion(Generation, kw_only=True):
    """A text to continue."""

    prompt: Raw  # a text, a list of tokens, or a list of these: see prompts()
    max_tokens: Count = 16
    best_of: Annotated[int, Meta(ge=1, le=16)] | None = None  # must equal n
    logprobs: Annotated[int, Meta(ge=0, le=BEST)] | None = None

    @property
    def told(self) -> int | None:
        """``logprobs``."""
        return self.logprobs

    def check(self, limit: int, vocabulary: int) -> None:
        """As for every generation; also, ``best_of`` may not ask for more answers than ``n``."""
        super().check(limit, vocabulary)
        if self.best_of not in (None, self.n):
            raise RequestError(
                400, f"best_of: {self.best_of} must be equal to n, which is {self.n}: "
                "all answers that are made are returned", field="best_of",
            )  # fmt: skip


class Message(Struct, forbid_unknown_fields=True):
    """A message of a conversation. Null and empty fields are allowed, as answers have them."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None  # for the model's template
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    tool_calls: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: None = None

    def as_message(self) -> dict[str, Any]:
        """The message as `TextModel.chat` takes it."""
        found = {"role": self.role, "content": "" if self.content is None else self.content}
        return found if self.name is None else found | {"name": self.name}


class Chat(Generation, kw_only=True):
    """A conversation to continue."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=BEST)] | None = None

    @property
    def told(self) -> int | None:
        """``top_logprobs``, if ``logprobs`` is true; 0: only the tokens themselves are reported."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self, limit: int, vocabulary: int) -> None:
        """As for every generation; also, ``top_logprobs`` needs ``logprobs``."""
        super().check(limit, vocabulary)
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                400, "top_logprobs: needs logprobs, too; set logprobs to true",
                field="top_logprobs",
            )  # fmt: skip


class Embeddings(ModelRequest, kw_only=True):
    """Texts to embed."""

    input: Raw  # of the same forms as the prompt of a completion
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    encoding_format: Literal["float", "base64"] = "float"


class Document(Struct):
    """A document to rank. Other fields than its text are ignored, as Cohere does."""

    text: str


class Rerank(ModelRequest, kw_only=True):
    """Documents to put in order by how well they answer a query."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=DOCUMENTS)]
    top_n: Count | None = None  # more than the number of documents: all of them
    return_documents: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [x if isinstance(x, str) else x.text for x in self.documents]


class Transcription(ModelRequest, kw_only=True):
    """The fields of ``/v1/audio/transcriptions`` and ``translations`` beside the file."""

    language: str | None = None
    prompt: Annotated[str, Meta(max_length=4096)] = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    timestamp_granularities: list[Literal["segment"]] = []
    stream: bool = False


def prompts(given: Raw, field: str) -> list[Raw]:
    """Split a field into its prompts without decoding them: decoding 1M tokens takes 25 ms.

    Args:
        given: the field's value.
        field: its name.

    Raises:
        RequestError: there are no prompts, or too many.
    """
    text = bytes(given).lstrip()
    if text[:1] != b"[" or text[1:].lstrip()[:1] in b"0123456789-":
        return [given]
    found = msgspec.json.decode(text, type=list[Raw])
    if not 1 <= len(found) <= MOST:
        raise RequestError(
            400, f"{field}: has {len(found)} inputs, a request must have 1 to {MOST}", field=field
        )
    return found


def prompt_of(given: Raw, i: int, most: int, field: str) -> str | list[int]:
    """Decode an input: a text, or a list of tokens.

    Args:
        given: the input, not decoded yet.
        i: its number in the request.
        most: the most tokens; a longer list is refused without decoding it.
        field: the field in which it stands.

    Raises:
        RequestError: the input is neither, or too long.
    """
    text = bytes(given).lstrip()
    tokens = text.count(b",") + 1
    if text[:1] == b"[" and tokens > most:
        raise RequestError(
            400, f"{field}: input {i} has about {tokens} tokens, the most is {most}", field=field
        )
    try:
        found: str | list[int] = msgspec.json.decode(text, type=_TextOrTokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            400, f"{field}: input {i} is neither a text nor a list of tokens", field=field
        ) from error
    return found
