"""One of the answers to a request: its pieces as they come, its tokens, how probable they were.

A choice reads a `TokenStream` or a `ChatStream`, and can go on with an answer that another service
has begun (resuming.py). Not here: the answer to the whole request (sending.py, openai.py and the
others), the computation (aggml.models).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from aggml.models import TooLongError
from aggml.models.engine.text import AnswerText
from aggml.serve.http.resuming import Note, Sent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from aggml.models import TextModel, Token, TokenStream, ToolCallDelta
    from aggml.models.tokenizers import Vocabulary

__all__ = [
    "AnswerClock", "AnswerPiece", "AnsweredCall", "ChatChoice", "Choice", "PromptProgress",
    "TextChoice", "Told", "seed_variant", "spell_out",
]  # fmt: skip


class Told(NamedTuple):
    """A token of an answer, with its probability and those of the best tokens in its place.

    Attributes:
        id: of the token.
        spelt: its bytes.
        logprob: natural logarithm of its probability; None: there is none.
        best: ids, bytes and logarithms of probability of the best tokens, the best first.
        begin: how many characters of the answer came before it.
    """

    id: int
    spelt: bytes
    logprob: float | None
    best: list[tuple[int, bytes, float]]
    begin: int


class AnswerPiece(NamedTuple):
    """A piece of an answer.

    Attributes:
        content: text.
        reasoning: text of the model's thoughts.
        calls: pieces of calls.
        told: reports of the tokens that begin in it, if they are asked for.
        ids: tokens that have come since the piece before.
    """

    content: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCallDelta] = ()
    told: Sequence[Told] = ()
    ids: Sequence[int] = ()


class AnsweredCall(NamedTuple):
    """A call of a function, as the answer has it.

    Attributes:
        id: of the call.
        name: of the function.
        arguments: as JSON.
    """

    id: str
    name: str
    arguments: str


class PromptProgress:
    """How much of a prompt is computed: news of it, until the first token comes."""

    def __init__(self) -> None:
        self._news: deque[tuple[int, int]] = deque()
        self._over = False
        self._changed = anyio.Event()

    def tell(self, done: int, total: int) -> None:
        """Note that so many of all tokens are computed."""
        self._news.append((done, total))
        self._changed.set()

    def end(self) -> None:
        """Note that there will be no more news."""
        self._over = True
        self._changed.set()

    async def news(self) -> AsyncGenerator[tuple[int, int], None]:
        """Yield how many tokens are computed, and how many there are."""
        while True:
            while self._news:
                yield self._news.popleft()
            if self._over:
                return
            self._changed = anyio.Event()
            await self._changed.wait()


class AnswerClock:
    """When the tokens of an answer came."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._first: float | None = None
        self._last = 0.0

    def tick(self) -> None:
        """Note that a token has come."""
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last

    @property
    def prompt(self) -> float:
        """Seconds from the beginning to the first token, or to now if none has come."""
        return (time.perf_counter() if self._first is None else self._first) - self._begin

    @property
    def answer(self) -> float:
        """Seconds from the first token to the last one so far."""
        return 0.0 if self._first is None else self._last - self._first


class Choice(ABC):
    """One of the answers to a request.

    Args:
        model: computes the tokens.
        tells: whether probabilities of tokens are asked for.
        index: number of this choice in the request.
        group: number of its prompt: a prompt with several answers counts once.
        sent: the part that the client already got from another service; None: nothing.
        progress: gets how much of the prompt is computed; None: nobody asks for that.

    Attributes:
        content, reasoning, calls, told: the whole answer, after `run`.
        ids: tokens that have come.
        clock: when they came.
        spell: the bytes of a token.
        begun: whether the client has got the first event.
        ended: whether it has got the last one.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        tells: bool,
        index: int,
        group: int = 0,
        sent: Sent | None = None,
        progress: PromptProgress | None = None,
    ) -> None:
        before = Sent() if sent is None else sent
        self.index = index
        self.group = group
        self.tells = tells
        self.begun: bool = sent is not None
        self.ended: bool = before.ended
        self.content: str = ""
        self.reasoning: str = ""
        self.calls: list[AnsweredCall] = []
        self.told: list[Told] = []
        self.ids: list[int] = list(before.tokens)
        self.clock: AnswerClock = AnswerClock()
        self.progress: PromptProgress | None = progress
        self._model = model
        self.spell: Callable[[int], bytes] = model.tokenizer.bytes_of
        self._noted = len(self.ids)  # how many of them are in the notes so far
        self._logprob = 0.0  # of all tokens together, if it is known
        self._untold: deque[Token] = deque()  # tokens that have come and are not reported yet
        self._characters = before.characters  # that the client has
        self._raw = 0  # characters of the text of the tokens that have come

    @property
    @abstractmethod
    def tokens(self) -> TokenStream | None:
        """The tokens; None: the client has all of them, or none was asked for yet."""

    @property
    @abstractmethod
    def reason(self) -> str | None:
        """Why the answer ended: "stop", "length" or "tool_calls"."""

    @abstractmethod
    def pieces(self) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the answer as it comes."""

    async def open(self) -> None:  # noqa: B027 a text has its prompt already
        """Make the prompt, so that its errors come before the status is sent."""

    @abstractmethod
    async def start(self) -> None:
        """Queue the request, so that its errors come before the status is sent."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return 0 if self.tokens is None else self.tokens.prompt_tokens

    def prompt_text(self) -> str:
        """The text of the prompt, with the names of control tokens; pictures are left out."""
        return spell_out(self._model.tokenizer, self.prompt_ids())

    def name(self, token: int) -> str:
        """The text of a token, or the name of a control token."""
        return spell_out(self._model.tokenizer, [token])

    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt; pictures are left out."""
        ids = None if self.tokens is None else self.tokens.ids(self._model.tokenizer)
        return [x for x in ids or () if x >= 0]

    @property
    def mean_logprob(self) -> float:
        """The logarithm of the probability of its tokens, on average; 0 if it is not known."""
        return self._logprob / max(1, len(self.ids))

    @property
    def made(self) -> int:
        """How many tokens the answer has, with those that another service made."""
        return len(self.ids if self.tokens is None else self.tokens.made)

    @property
    def cached(self) -> int:
        """How many tokens of the prompt did not have to be computed."""
        return 0 if self.tokens is None else self.tokens.cached_tokens

    @property
    def reasoning_tokens(self) -> int:
        """How many of its tokens were thoughts."""
        return 0

    @property
    def stop_text(self) -> str | None:
        """The stop text before which the answer ended; None: none."""
        return None if self.tokens is None else self.tokens.stop_text

    def note(self, *, ended: bool = False) -> Note:
        """The note for the last piece: the tokens since the note before.

        A token that has not come, or is not reported though asked for, comes in a later note:
        another service would compute it again.
        """
        upto = len(self.ids) if ended else len(self.ids) - len(self._untold)
        tokens = self.ids[self._noted : upto]
        self._noted = upto
        return Note(self.index, tuple(tokens), self._characters, ended)

    def _take(self, token: Token) -> None:
        """Note a token that has come."""
        self.clock.tick()
        self.ids.append(token.id)
        self._logprob += token.logprob or 0.0
        self._raw += len(token.text)
        if self.tells:
            self._untold.append(token)

    def _tell(self, *, every: bool = False) -> list[Told]:
        """Reports of the next tokens: of those that begin in the text so far, or of all."""
        told = []
        while self._untold and (every or self._untold[0].begin < self._raw):
            token = self._untold.popleft()
            best = [(x, self.spell(x), logprob) for x, logprob in token.top or ()]
            spelt = self.spell(token.id)
            told.append(Told(token.id, spelt, token.logprob or 0.0, best, token.begin))
        return told

    async def run(self) -> None:
        """Compute the whole answer; sets ``content``, ``reasoning``, ``calls`` and ``told``."""
        content, reasoning = [], []
        calls: dict[int, list[str]] = {}
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                content.append(piece.content)
                reasoning.append(piece.reasoning)
                self.told += piece.told
                for call in piece.calls:
                    known = calls.setdefault(call.index, [call.id or "", call.name or "", ""])
                    known[2] += call.arguments
        self.content = "".join(content)
        self.reasoning = "".join(reasoning)
        self.calls = [AnsweredCall(*x) for x in calls.values()]


def spell_out(words: Vocabulary, ids: Sequence[int]) -> str:
    """The text of tokens, with the names of control tokens."""
    spelt = (words.bytes_of(x) or words.pieces[x].encode() for x in ids)
    return b"".join(spelt).decode("utf-8", "replace")


def seed_variant(options: Mapping[str, Any], variant: int) -> dict[str, Any]:
    """The options of one of several answers: each has random numbers of its own."""
    seed = options["seed"]
    return {**options, "seed": None if seed is None else (seed + variant) % (1 << 64)}


class TextChoice(Choice):
    """An answer that continues a text.

    Args:
        model: computes the tokens.
        prompt: the tokens of the prompt.
        options: arguments of `TextModel.generate`.
        variant: number among the choices for one prompt.
        after_first: seconds after the first token, then the answer ends at the end of a line.
        hides: whether probabilities of tokens are computed, but not told.
        more: arguments of `Choice`.
    """

    def __init__(
        self,
        model: TextModel,
        prompt: list[int],
        options: Mapping[str, Any],
        *,
        variant: int,
        after_first: float | None = None,
        hides: bool = False,
        **more: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(model, tells=options["logprobs"] is not None and not hides, **more)
        given = seed_variant(options, variant)
        self.prompt = prompt
        self._after_first = after_first
        self._cut = False
        self._stream: TokenStream | None = None
        if self.ended:
            return
        if self.ids:
            known = AnswerText(
                self.spell, given["stop"], given["min_tokens"],
                keeps_stop=given.get("include_stop", False),
            )  # fmt: skip
            for token in self.ids:
                known.add(token)
            self._raw = known.given
        if self.progress is not None:
            given["progress"] = self.progress.tell
        self._stream = model.generate(prompt, **given, _continue=self.ids)

    @property
    def tokens(self) -> TokenStream | None:
        """The tokens; None: the client has all of them."""
        return self._stream

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def reason(self) -> str | None:
        """Why the answer ended."""
        if self._cut:
            return "length"
        return None if self._stream is None else self._stream.finish_reason

    async def start(self) -> None:
        """Queue the request, so that its errors come before the status is sent."""
        if self._stream is not None:
            await self._stream.start()

    async def pieces(self) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the text as it comes, with reports of the tokens that begin in it."""
        stream = self._stream
        if stream is None:
            return
        late: Callable[[str], bool] = (
            _never if self._after_first is None else _Late(self._after_first)
        )
        ids: list[int] = []
        async with aclosing(stream):
            async for token in stream:
                missing = max(0, self._characters - self._raw)
                self._take(token)
                ids.append(token.id)
                self._characters = max(self._characters, self._raw)
                text = token.text[missing:]
                if text:
                    yield AnswerPiece(text, told=self._tell(), ids=ids)
                    ids = []
                if late(token.text):
                    self._cut = True
                    break
        if stream.stop_text is None:  # tokens of a stop text are not reported
            told = self._tell(every=True)
            if told or ids:
                yield AnswerPiece(told=told, ids=ids)


def _never(_: str) -> bool:
    return False


class _Late:
    """Whether an answer takes too long, and is at the end of a line.

    Args:
        seconds: after the first token.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin: float | None = None
        self._line = False

    def __call__(self, text: str) -> bool:
        now = time.monotonic()
        if self._begin is None:
            self._begin = now
        self._line = self._line or "\n" in text
        return self._line and now - self._begin > self._seconds


class ChatChoice(Choice):
    """An answer to a conversation.

    Args:
        model: computes the tokens.
        messages: of the conversation.
        options: arguments of `TextModel.chat_stream`.
        variant: number among the choices for one conversation.
        more: arguments of `Choice`.
    """

    def __init__(
        self,
        model: TextModel,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        *,
        variant: int = 0,
        **more: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(model, tells=options["logprobs"] is not None, **more)
        given = seed_variant(options, variant)
        self._count = 0  # characters of the pieces so far
        before, self.ids = self.ids, []
        if self.progress is not None:
            given["progress"] = self.progress.tell
        self._stream = model.chat_stream(messages, **given, _continue=before)

    @property
    def tokens(self) -> TokenStream | None:
        """The tokens; None: the prompt is not made yet."""
        return self._stream.tokens

    @property
    def reason(self) -> str | None:
        """Why the answer ended."""
        return self._stream.finish_reason

    @property
    def reasoning_tokens(self) -> int:
        """How many of its tokens were thoughts."""
        return self._stream.usage.reasoning_tokens

    async def open(self) -> None:
        """Make the prompt, so that its errors come before the status is sent."""
        try:
            await self._stream.open()
        except TooLongError as error:  # of a prompt, which is made of messages here
            raise TooLongError(str(error), "messages", error.tokens, error.most) from error

    async def start(self) -> None:
        """Queue the request, so that its errors come before the status is sent."""
        await self._stream.start()

    async def pieces(self) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the answer as it comes."""
        stream = self._stream
        ids: list[int] = []
        async with aclosing(stream):
            async for delta in stream:
                for token in delta.tokens:
                    self._take(token)
                    ids.append(token.id)
                ended = delta.finish_reason is not None
                told = self._tell(every=ended and self.stop_text is None)
                reasoning = delta.reasoning or ""
                made = AnswerPiece(delta.content, reasoning, delta.tool_calls, told, ids)
                piece = self._cut_to_missing(made)
                if piece.content or piece.reasoning or piece.calls or piece.told:
                    yield piece
                    ids = []

    def _cut_to_missing(self, piece: AnswerPiece) -> AnswerPiece:
        """The part of a piece that the client does not have yet."""
        size = len(piece.content) + len(piece.reasoning)
        size += sum(len(x.arguments) + 1 for x in piece.calls)
        before, self._count = self._count, self._count + size
        known, self._characters = self._characters, max(self._characters, self._count)
        if before >= known:
            return piece
        if self._count <= known:
            return AnswerPiece(ids=piece.ids)
        # A piece has one kind of text, but for calls, which come whole or as arguments alone.
        n = known - before
        return piece._replace(
            content=piece.content[n:], reasoning=piece.reasoning[n:], told=piece.told
        )
