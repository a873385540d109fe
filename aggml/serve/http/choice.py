"""One of the answers to a request: its tokens as text, and how probable they were.

Not here: the answer to the whole request (forms.py), the computation (`TextModel.generate`).
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from aggml.models.engine.text import AnswerText
from aggml.serve.http.resuming import Note, Sent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from aggml.models import TextModel, Token, TokenStream

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
        model: computes the tokens.
        prompt: the tokens of the prompt.
        options: arguments of `TextModel.generate`.
        index: number of this choice in the request.
        variant: number among the choices for one prompt; each has random numbers of its own.
        sent: the part that the client already got from another service; None: nothing.

    Attributes:
        stream: the tokens; None: the client has all of them.
        text, told: the whole answer, after `run`.
        tells: whether probabilities of tokens are asked for.
        begun: whether the client has got the first event.
        ended: whether it has got the last one.
    """

    def __init__(
        self,
        model: TextModel,
        prompt: list[int],
        options: Mapping[str, Any],
        *,
        index: int,
        variant: int,
        sent: Sent | None = None,
    ) -> None:
        before = Sent() if sent is None else sent
        seed = options["seed"]
        given = {**options, "seed": None if seed is None else (seed + variant) % (1 << 64)}
        self.index = index
        self.prompt = prompt
        self.tells = options["logprobs"] is not None
        self.begun = sent is not None
        self.ended = before.ended
        self.text = ""
        self.told: list[Told] = []
        self.stream: TokenStream | None = None
        self._spell = model.tokenizer.bytes_of
        self._ids = list(before.tokens)  # tokens that have come
        self._noted = len(self._ids)  # how many of them are in the notes so far
        self._untold: deque[Token] = deque()  # tokens that have come and are not reported yet
        self._characters = before.characters  # of the text that the client has
        self._given = 0  # characters of the tokens that have come
        if not before.ended:
            if self._ids:
                known = AnswerText(self._spell, given["stop"], given["min_tokens"])
                for token in self._ids:
                    known.add(token)
                self._given = known.given
            self.stream = model.generate(prompt, **given, _continue=before.tokens)

    @property
    def reason(self) -> str | None:
        """Why the answer ended, in OpenAI's words."""
        return None if self.stream is None else self.stream.finish_reason

    @property
    def made(self) -> int:
        """How many tokens the answer has, with those that another service made."""
        return len(self._ids if self.stream is None else self.stream.made)

    @property
    def cached(self) -> int:
        """How many tokens of the prompt did not have to be computed."""
        return 0 if self.stream is None else self.stream.cached_tokens

    def note(self, *, ended: bool = False) -> Note:
        """The note for the last piece of text: the tokens since the note before.

        A token that has not come, or is not reported though asked for, comes in a later note:
        another service would compute it again.
        """
        upto = len(self._ids) if ended else len(self._ids) - len(self._untold)
        tokens = self._ids[self._noted : upto]
        self._noted = upto
        return Note(self.index, tuple(tokens), self._characters, ended)

    async def pieces(self) -> AsyncGenerator[tuple[str, list[Told]], None]:
        """Yield the text as it comes, with reports of the tokens that begin in it, if asked for."""
        stream = self.stream
        if stream is None:
            return
        async with aclosing(stream):
            async for token in stream:
                self._ids.append(token.id)
                if self.tells:
                    self._untold.append(token)
                text = self._add(token.text)
                if text:
                    yield text, self._tell(self._given)
        if stream.stop_text is None:  # tokens of a stop text are not reported
            told = self._tell(None)
            if told:
                yield "", told

    def _add(self, text: str) -> str:
        """The part of the newest text that the client does not have yet."""
        missing = max(0, self._characters - self._given)
        self._given += len(text)
        self._characters = max(self._characters, self._given)
        return text[missing:]

    def _tell(self, before: int | None) -> list[Told]:
        """Reports of the next tokens: of those that begin before that character, or of all."""
        told = []
        while self._untold and (before is None or self._untold[0].begin < before):
            token = self._untold.popleft()
            best = [(self._spell(x), logprob) for x, logprob in token.top or ()]
            told.append(Told(self._spell(token.id), token.logprob or 0.0, best, token.begin))
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
