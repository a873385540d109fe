"""One of the answers to a request: its tokens as text, and how probable they were.

Not here: the answer around it (forms.py), the computation (engine.py).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from aggml.models.decoding.adjusting import Adjuster
from aggml.models.decoding.sampling import Sampler
from aggml.serve.http.resuming import Note, Sent
from aggml.serve.http.text import Answer
from aggml.serve.jobs import Job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aggml.serve.engine import Engine
    from aggml.serve.http.schema import Generation
    from aggml.serve.http.text import Text

__all__ = ["Choice", "Told", "chat_logprobs", "text_logprobs"]


class Told(NamedTuple):
    """A token of an answer, with the probabilities of it and of others.

    Attributes:
        spelt: its bytes.
        logprob: natural logarithm of its probability.
        best: bytes and logarithms of the best tokens, the best first.
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
        variant: number among the choices for one prompt; each draws on its own.
        sent: what the client has of it already, from another service; None: nothing.
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
        ends |= frozenset(given.stop_token_ids)
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
        self._characters = before.characters  # that the client has
        self._next = n  # token that is told of next
        self._noted = n  # tokens that were in a note
        self.ended = before.ended
        #: Whether there is a token to compute.
        self.computes = not (before.ended or self._answer.stopped or limit <= n)

    @property
    def reason(self) -> str | None:
        """Why it ended."""
        if self._answer.stopped:
            return "stop"
        return self.job.reason if self.computes else "length"

    @property
    def made(self) -> int:
        """How many tokens there are, with those of another service."""
        return self._before + len(self.job.made)

    @property
    def cached(self) -> int:
        """How many tokens of the prompt were stored."""
        return min(self.job.cached, len(self.prompt))

    def note(self, *, ended: bool = False) -> Note:
        """What the client has with the piece that came last; the next note goes on from there.

        A token of which no text was given yet is not in it: another service computes it again.
        """
        upto = self._next if self.tells else len(self._answer.begins)
        upto = self.made if ended else upto
        tokens = self.job.made[self._noted - self._before : upto - self._before]
        self._noted = upto
        return Note(self.index, tuple(tokens), self._characters, ended)

    async def pieces(self) -> AsyncGenerator[tuple[str, list[Told]], None]:
        """The text as it comes, with the tokens that begin in it, if the request wants them."""
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
        """What the client has not yet of a text that the answer has just given."""
        missing = max(0, self._answer.given - self._characters)
        self._characters += missing
        return text[len(text) - missing :] if missing < len(text) else text

    def _tell(self, before: int | None) -> list[Told]:
        """Tokens that were not reported yet and begin before that character; None: all of these."""
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
        """Make the whole answer, into ``text`` and ``told``."""
        parts = []
        async with aclosing(self.pieces()) as pieces:
            async for text, told in pieces:
                parts.append(text)
                self.told += told
        self.text = "".join(parts)


# -- in OpenAI's words


def chat_logprobs(told: Sequence[Told]) -> dict[str, Any]:
    """Probabilities in the form of chats."""

    def one(spelt: bytes, logprob: float) -> dict[str, Any]:
        text = spelt.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelt)}

    content = [
        one(x.spelt, x.logprob) | {"top_logprobs": [one(*best) for best in x.best]} for x in told
    ]
    return {"content": content, "refusal": None}


def text_logprobs(told: Sequence[Told]) -> dict[str, Any]:
    """Probabilities in the form of completions."""
    return {
        "tokens": [_spelling(x.spelt) for x in told],
        "token_logprobs": [x.logprob for x in told],
        "top_logprobs": [{_spelling(token): p for token, p in x.best} for x in told],
        "text_offset": [x.begin for x in told],
    }


def _spelling(spelt: bytes) -> str:
    """A token as text; if its bytes are no text, the bytes, so that each token has its own name."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
