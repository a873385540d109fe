"""Token, TokenStream: the tokens that continue a prompt, as `TextModel.generate` returns them.

Here: token after token, the text, why it ended. Not here: the steps (engine/engine.py), characters
and stop texts that several tokens share (engine/text.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from aggml import InvalidArgument, InvalidState
from aggml.models.engine.text import AnswerText
from aggml.models.errors import TooLongError
from aggml.models.vision.prompt import PicturePrompt, SeenPrompt
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from aggml.models.engine.constraints import Constraint, Thinking
    from aggml.models.engine.interface import TextEngine
    from aggml.models.engine.options import RequestOptions
    from aggml.models.engine.requests import PlacedPicture, TextRequest
    from aggml.models.tokenizers import Vocabulary

__all__ = ["EngineOwner", "FinishReason", "PromptToken", "Token", "TokenStream"]

PLACE: Final = "generate"

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token that was generated.

    Attributes:
        id: in the vocabulary.
        text: the characters that are certain with it. Characters of which bytes are missing, and
            characters that may be the beginning of a stop text, come with a later token.
        finish_reason: of the last token: why the text ends. "length": ``max_tokens`` is reached or
            the context is full. "stop": a stop text has come, or the model chose a token that ends
            the text. The latter is known one step later, so it is None until the generation has
            ended. None for other tokens.
        logprob: natural logarithm of its probability before temperature, penalties and biases, or
            with ``post_sampling_probs`` after them; None unless ``logprobs`` was given.
        top: ids and logarithms of the most probable tokens in its place, the best first; as many as
            ``logprobs`` says.
        begin: how many characters of the answer come before its own.
    """

    id: int
    text: str
    finish_reason: FinishReason | None = field(default=None, compare=False)
    logprob: float | None = field(default=None, compare=False)
    top: list[tuple[int, float]] | None = field(default=None, compare=False)
    begin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of a prompt, and how probable the model found it.

    Attributes:
        id: in the vocabulary; below 0 it stands for a part of a picture.
        logprob: natural logarithm of its probability; None of the first token, and of pictures.
        top: ids and logarithms of the most probable tokens in its place, the best first.
        rank: its place among all tokens, 1 for the most probable one; None like ``logprob``.
    """

    id: int
    logprob: float | None = None
    top: list[tuple[int, float]] = field(default_factory=list)
    rank: int | None = None


class EngineOwner(Protocol):
    """The part of a `TextModel` that a stream of tokens uses."""

    ctx: int
    engine: TextEngine

    async def _prepare_prompt(
        self, prompt: str | Sequence[int] | PicturePrompt | SeenPrompt
    ) -> SeenPrompt:
        """The prompt's token ids and pictures."""
        ...

    async def _constrain(
        self,
        options: RequestOptions,
        thinking: Thinking | None,
        bytes_of: Callable[[int], bytes],
    ) -> Constraint:
        """What restricts an answer."""
        ...

    async def _prompt_logprobs(
        self, seen: SeenPrompt, options: RequestOptions
    ) -> list[PromptToken]:
        """How probable the tokens of a prompt are."""
        ...

    def _bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text."""
        ...

    def _open(self, what: str) -> AbstractContextManager[None]:
        """A block that uses the model."""
        ...


class TokenStream(AsyncGenerator[Token, None]):
    """The tokens of one answer: ``async for token in model.generate("Once upon a time"): ...``.

    The first token submits the request to the model's engine, the last one ends it. So does leaving
    the loop early: a stream that nobody refers to any more ends its request at once, without
    `aclose` and without the event loop. (An asynchronous generator would wait there for a finalizer
    of the loop.)

    Attributes:
        finish_reason: why the answer ended, "stop" or "length"; None before, and if the stream was
            left early. It is there also if there was no token: a model may end its text at once.
        prompt_tokens: tokens of the prompt; 0 before the first token.
        cached_tokens: of these, how many did not have to be computed.
        made: ids of the tokens so far, those that another stream has begun with included.
        before: the certain text of the tokens that another stream has begun with.
        prompt_logprobs: the tokens of the prompt with their probabilities, from the first token of
            the answer on; None unless that was asked for.
    """

    def __init__(
        self,
        model: EngineOwner,
        prompt: str | list[int] | PicturePrompt | SeenPrompt,
        options: RequestOptions,
        before: list[int],
        thinking: Thinking | None = None,
        bytes_of: Callable[[int], bytes] | None = None,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._options = options
        self._thinking = thinking
        self._prepared: TextRequest | None = None  # it is not submitted yet
        self._request: TextRequest | None = None
        self._text_bytes = bytes_of or model._bytes_of
        self._text = AnswerText(
            self._text_bytes, options.stop, options.min_tokens, keeps_stop=options.include_stop
        )
        self._news: list[int] = []  # tokens that have come and were not returned, the next one last
        self._ready: deque[Token] = deque()
        self._held: Token | None = None  # the token after which some text is held back
        self._last: Token | None = None
        self._busy = False
        self._ended = False
        self._before = len(before)
        self.made: list[int] = before
        self.before: str = ""
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens: int = 0
        self.prompt_logprobs: list[PromptToken] | None = None

    @property
    def stop_text(self) -> str | None:
        """The stop text before which the answer ended; None: it has not, or for another reason."""
        return self._text.stop

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that did not have to be computed."""
        return 0 if self._request is None else min(self._request.cached, self.prompt_tokens)

    @property
    def drafted_tokens(self) -> int:
        """Tokens of drafts that were verified for this answer so far."""
        return 0 if self._request is None else self._request.drafted

    @property
    def accepted_tokens(self) -> int:
        """Of these: tokens of the answer that needed no step of their own."""
        return 0 if self._request is None else self._request.accepted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        """The next token.

        Raises:
            StopAsyncIteration: the answer has ended.
            InvalidState: another task waits for a token of this stream; the model is closed.
            FullError, TooLongError, DeadlineError, EngineError: see `TextModel.generate`.

        Cancellation: ends the stream, and aborts the running step if nobody else needs it.
        """
        if self._ended:
            await CHECKPOINT
            raise StopAsyncIteration
        if self._busy:
            raise InvalidState(f"[{PLACE}] another task waits for the next token of this stream")
        self._busy = True
        try:
            with self._model._open(PLACE):
                token = await self._next()
        except BaseException:
            self._end()
            if self._request is not None:
                self._model.engine.tidy()
            raise
        finally:
            self._busy = False
        if token is None:
            self._end()
            raise StopAsyncIteration
        return token

    async def start(self) -> None:
        """Do all that can be refused, up to queueing the request. The first token does it, too.

        Raises:
            InvalidArgument: a schema or a grammar cannot be served.
            FullError, TooLongError, DeadlineError: see `TextModel.generate`.
            InvalidState: another task uses this stream; the model is closed.

        Cancellation: ends the stream.
        """
        if self._ended or self._request is not None or self.finish_reason is not None:
            await CHECKPOINT
            return
        if self._busy:
            raise InvalidState(f"[{PLACE}] another task waits for the next token of this stream")
        self._busy = True
        try:
            with self._model._open(PLACE):
                await self._begin()
        except BaseException:
            self._end()
            raise
        finally:
            self._busy = False

    async def _next(self) -> Token | None:
        if self.finish_reason is not None and self._request is None:
            return None
        if self._request is None and not await self._begin():
            return None
        request = self._request
        assert request is not None
        waited = False
        while not self._ready:
            if not self._news:
                waited = True
                self._news = (await self._model.engine.next(request))[::-1]
            if self._news:
                self._add(request, self._news.pop())
            elif not self._finish(request.reason or "length"):
                return None
        if not waited:
            await CHECKPOINT
        token = self._last = self._ready.popleft()
        if self.finish_reason is not None and not self._ready:
            self._end()
        return token

    def _add(self, request: TextRequest, token: int) -> None:
        """Take a token from the engine; it is ready when nothing of the text is held back."""
        at = len(self.made) - self._before
        self.made.append(token)
        text = self._text.add(token)
        begin = self._text.begins[-1]
        if self._text.stopped:
            self.finish_reason = "stop"
        elif request.reason == "length" and not self._news and request.given == request.made:
            text += self._text.end()
            self.finish_reason = self._reason("length")
        report = request.reports[at] if request.logprobs is not None else None
        made = Token(
            token, text, self.finish_reason,
            None if report is None else report.logprob, None if report is None else report.best,
            begin,
        )  # fmt: skip
        if self._held is not None:
            self._ready.append(self._held)
            self._held = None
        if self.finish_reason is None and self._text.holds:
            self._held = made  # if the text ends here, the token gets the rest
        else:
            self._ready.append(made)
        if self.finish_reason is not None:
            self._news.clear()

    def _reason(self, otherwise: FinishReason) -> FinishReason:
        return "stop" if self._text.stopped else otherwise

    def _finish(self, reason: FinishReason) -> bool:
        """Note why the answer ended, here and in its last token; whether that is yet to come."""
        rest = self._text.end()
        self.finish_reason = self._reason(reason)
        last = self._held or self._last
        if self._held is not None:
            object.__setattr__(self._held, "text", self._held.text + rest)
            self._ready.append(self._held)
            self._held = None
        if last is not None and last.finish_reason is None:
            object.__setattr__(last, "finish_reason", self.finish_reason)
        return bool(self._ready)

    async def _begin(self) -> bool:
        """Submit the request; False if no token is to be made."""
        request = self._prepared
        if request is None or self._options.prompt_logprobs is not None:
            seen = await self._model._prepare_prompt(self._prompt)
            request = self.prepare(seen.ids, seen.pictures)
            if self._options.prompt_logprobs is not None:
                self.prompt_logprobs = await self._model._prompt_logprobs(
                    SeenPrompt(self._cut(seen.ids), seen.pictures), self._options
                )
        if request is None:
            self._finish("stop" if self._text.stopped else "length")
            return False
        options = self._options
        if options.grammar is not None or self._thinking is not None or options.names_tokens:
            request.constraint = await self._model._constrain(
                options, self._thinking, self._text_bytes
            )
        await self._model.engine.fetch(request)
        self._model.engine.submit(request)
        self._request = request
        return True

    def ids(self, tokenizer: Vocabulary) -> list[int] | None:
        """The tokens of the prompt; None: its pictures have to be looked at first."""
        prompt = self._prompt
        if isinstance(prompt, PicturePrompt):
            return None
        if isinstance(prompt, SeenPrompt):
            return prompt.ids
        return self._cut(
            tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        )

    def prepare(
        self, ids: list[int], pictures: tuple[PlacedPicture, ...] = ()
    ) -> TextRequest | None:
        """The request that the first token submits; None if no token is to be made.

        Args:
            ids: the tokens of the prompt.
            pictures: the embeddings where these are below 0.

        Raises:
            TooLongError: the prompt does not fit into the context.
        """
        if self._prepared is not None:
            return self._prepared
        if isinstance(self._prompt, SeenPrompt):
            pictures = self._prompt.pictures
        model, options = self._model, self._options
        ids = self._cut(ids)
        self.prompt_tokens = len(ids)
        for token in self.made[len(self._text.begins) :]:
            self.before += self._text.add(token)
        n = len(ids) + len(self.made)
        if n > model.ctx:
            raise TooLongError(
                f"[{PLACE}] {n} tokens do not fit into a context of {model.ctx}: load with a "
                "larger ctx",
                "prompt", n, model.ctx,
            )  # fmt: skip
        most = min(options.max_tokens - len(self.made), model.ctx - n + 1)
        if most < 1 or self._text.stopped:
            return None
        self._prepared = options.request(ids, self.made, most, model._bytes_of)
        self._prepared.pictures = pictures
        return self._prepared

    def _cut(self, ids: list[int]) -> list[int]:
        """The last tokens of a prompt, as many as are wanted."""
        most = self._options.truncate_prompt
        if most is None or len(ids) <= most:
            return ids
        if any(x < 0 for x in ids):
            raise InvalidArgument(
                f"[{PLACE}] truncate_prompt is {most}, but the prompt has pictures and "
                f"{len(ids)} positions: one with pictures is not cut"
            )
        return ids[len(ids) - most :]

    def _end(self) -> None:
        """End the request; any number of times, in any thread."""
        self._ended = True
        request = self._request
        if request is not None:
            self._model.engine.cancel(request)

    async def aclose(self) -> None:
        """End the request: its slot is free for the next one."""
        if self._busy:
            raise InvalidState(
                f"[{PLACE}] another task waits for the next token of this stream: cancel that task"
            )
        self._end()
        if self._request is not None:
            self._model.engine.tidy()
        await CHECKPOINT

    async def asend(self, _value: None) -> Token:
        """`__anext__`."""
        return await self.__anext__()

    async def athrow(self, *error: Any) -> Token:  # noqa: ANN401 a class and a value, or the value
        """End the stream, and raise."""
        await self.aclose()
        raise error[0]

    def __del__(self) -> None:
        if not self._ended:
            self._end()

    def __repr__(self) -> str:
        state = f"ended, {self.finish_reason}" if self._ended else f"{len(self.made)} tokens so far"
        return f"<TokenStream {state}>"
