"""One of the answers to a request: its tokens as text, and how probable they were.

Not here: the answer to the whole request (forms.py), the computation (engine.py).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from aggml.models.decoder.adjusting import Adjuster
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.jobs import Job
from aggml.serve.http.resuming import Note, Sent
from aggml.serve.http.text import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aggml.models.engine.engine import Engine
    from aggml.serve.http.schema import Generation
    from aggml.serve.http.text import Text

__all__ = ["Choice", "Told", "chat_logprobs", "text_logprobs"]


class Told(NamedTuple):
    """A token of an answer, with its probability and those of the best tokens in its place.

    Attributes:
        spelt: the bytes of the token.
        logprob: natural logarithm of its probability.
        best: bytes and logarithms of probability of the best tokens, the best first.
        begin: how many characters of the answer came before it.
    """

    spelt: bytes
    logprob: float
    best: list[tuple[bytes, float]]
    begin: int


class Choice:
    """One of the answers to a request.

    Args:
        engine: computes the tokens.
        text: turns tokens into text.
        given: the request.
        prompt: the tokens of the prompt.
        limit: the most tokens to make.
        index: number of this choice in the request.
        variant: number among the choices for one prompt; each has random numbers of its own.
        sent: the part that the client already got from another service; None: nothing.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        given: Generation,
        prompt: list[int],
        limit: int,
        *,
        index: int,
        variant: int,
        sent: Sent | None = None,
    ) -> None:
        before = Sent() if sent is None else sent
        seed = None if given.seed is None else (given.seed + variant) % (1 << 64)
        k = max(0, given.top_k)
        sampler = Sampler(given.temperature, k, given.top_p, seed, given.min_p)
        ends = frozenset[int]() if given.ignore_eos else text.vocabulary.ends
        # A control token adds no text, in which a stop text could be found.
        named = (text.vocabulary.special_token(stop) for stop in given.stops)
        ends |= frozenset(given.stop_token_ids) | frozenset(x for x in named if x is not None)
        rules = given.rules
        adjuster = Adjuster(rules, prompt, ends) if rules else None
        if adjuster is not None:
            for token in before.tokens:
                adjuster.take(token)
        sampler.skip(len(before.tokens))
        self.index = index
        self.tells = given.told is not None
        self.begun = sent is not None
        self.prompt = prompt
        n = self._before = len(before.tokens)
        self.job = Job(
            [*prompt, *before.tokens] if n else prompt, limit - n, sampler, ends,
            adjuster=adjuster, told=given.told,
        )  # fmt: skip
        self.text = ""
        self.told: list[Told] = []
        self._engine = engine
        self._vocabulary = text.vocabulary
        self._answer = Answer(text.vocabulary, given.stops, given.min_tokens)
        self._answer.add(before.tokens)
        self._characters = before.characters  # of the text that the client has
        self._next = n  # index of the next token to report
        self._noted = n  # how many tokens are in the notes so far
        self.ended = before.ended
        #: Whether any token must be computed here.
        self.computes = not (before.ended or self._answer.stopped or limit <= n)

    @property
    def reason(self) -> str | None:
        """Why the answer ended, in OpenAI's words."""
        if self._answer.stopped:
            return "stop"
        return self.job.reason if self.computes else "length"

    @property
    def made(self) -> int:
        """How many tokens the answer has, with those that another service made."""
        return self._before + len(self.job.made)

    @property
    def cached(self) -> int:
        """How many tokens of the prompt had stored keys and values."""
        return min(self.job.cached, len(self.prompt))

    def note(self, *, ended: bool = False) -> Note:
        """The note for the last piece of text: the tokens since the note before.

        A token that was not added, or not reported though asked for, comes in a later note: another
        service would compute it again.
        """
        upto = self._next if self.tells else len(self._answer.begins)
        upto = self.made if ended else upto
        tokens = self.job.made[self._noted - self._before : upto - self._before]
        self._noted = upto
        return Note(self.index, tuple(tokens), self._characters, ended)

    async def pieces(self) -> AsyncGenerator[tuple[str, list[Told]], None]:
        """Yield the text as it comes, with reports of the tokens that begin in it, if asked for."""
        answer = self._answer
        if self.computes:
            async with aclosing(self._engine.stream(self.job)) as stream:
                async for tokens in stream:
                    text = self._new(answer.add(tokens))
                    if text:
                        yield text, self._tell(answer.given)
                    if answer.stopped:
                        return
        if not answer.stopped:
            text = self._new(answer.end())
            told = self._tell(None)
            if text or told:
                yield text, told

    def _new(self, text: str) -> str:
        """The part of ``text``, the answer's newest text, that the client does not have yet."""
        missing = max(0, self._answer.given - self._characters)
        self._characters += missing
        return text[len(text) - missing :] if missing < len(text) else text

    def _tell(self, before: int | None) -> list[Told]:
        """Reports of the next tokens: of those that begin before that character, or of all."""
        told = []
        reports, begins, skipped = self.job.reports, self._answer.begins, self._before
        while self._next < min(skipped + len(reports), len(begins)):
            begin, report = begins[self._next], reports[self._next - skipped]
            if before is not None and begin >= before:
                break
            spelt = self._vocabulary.bytes_of
            best = [(spelt(token), logprob) for token, logprob in report.best]
            token = self.job.made[self._next - skipped]
            told.append(Told(spelt(token), report.logprob, best, begin))
            self._next += 1
        return told

    async def run(self) -> None:
        """Compute the whole answer; sets ``text`` and ``told``."""
        parts = []
        async with aclosing(self.pieces()) as pieces:
            async for text, told in pieces:
                parts.append(text)
                self.told += told
        self.text = "".join(parts)


# -- in OpenAI's words


def chat_logprobs(told: Sequence[Told]) -> dict[str, Any]:
    """The ``logprobs`` of a chat."""

    def one(spelt: bytes, logprob: float) -> dict[str, Any]:
        text = spelt.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelt)}

    content = [
        one(x.spelt, x.logprob) | {"top_logprobs": [one(*best) for best in x.best]} for x in told
    ]
    return {"content": content, "refusal": None}


def text_logprobs(told: Sequence[Told]) -> dict[str, Any]:
    """The ``logprobs`` of a completion."""
    return {
        "tokens": [_spelling(x.spelt) for x in told],
        "token_logprobs": [x.logprob for x in told],
        "top_logprobs": [{_spelling(token): p for token, p in x.best} for x in told],
        "text_offset": [x.begin for x in told],
    }


def _spelling(spelt: bytes) -> str:
    """A token as text, or its bytes spelled out if they are not UTF-8, so that names differ."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
