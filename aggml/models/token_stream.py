"""Token, TokenStream: the tokens that continue a prompt, as `TextModel.generate` returns them.

Here: taking a slot, token after token, the text, why it ended, giving the slot back. Not here: the
steps (decoder/generating.py), who has which slot (text_model.py).
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from aggml import InvalidState
from aggml.models.decoder.generating import Continuation
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from aggml.models.decoder.interface import Decoding
    from aggml.models.decoder.sampling import Sampler

__all__ = ["FinishReason", "SlotOwner", "Token", "TokenStream"]

PLACE: Final = "generate"

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token that was generated.

    Attributes:
        id: in the vocabulary.
        text: the characters that it completes; empty while a character is incomplete.
        finish_reason: of the last token: why the text ends. "length": ``max_tokens`` is reached or
            the context is full. "stop": the model chose a token that ends the text; this is known
            one step later, so it is None until the generation has ended. None for other tokens.
    """

    id: int
    text: str
    finish_reason: FinishReason | None = field(default=None, compare=False)


class SlotOwner(Protocol):
    """The part of a `TextModel` that a stream of tokens uses."""

    ctx: int
    _decoder: Decoding

    async def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt's token ids."""
        ...

    async def _take(self, prompt: Sequence[int] | None = None) -> tuple[int, int]:
        """A slot, and how many first tokens of the prompt it holds already."""
        ...

    def _keep(self, slot: int) -> None:
        """Note that the present task uses the slot."""
        ...

    def _give(self, slot: int, fed: Sequence[int] = ()) -> None:
        """Give a slot back, with the tokens that its caches hold."""
        ...

    def _bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text."""
        ...

    def _open(self, what: str) -> AbstractContextManager[None]:
        """A block that uses the model."""
        ...


class TokenStream(AsyncGenerator[Token, None]):
    """The tokens of one answer: ``async for token in model.generate("Once upon a time"): ...``.

    The first token takes a slot of the model, the last one gives it back. So does leaving the loop
    early: a stream that nobody refers to any more aborts its step and gives its slot back at once,
    without `aclose` and without the event loop. (An asynchronous generator would wait there for a
    finalizer of the loop.)

    Attributes:
        finish_reason: why the answer ended, "stop" or "length"; None before, and if the stream was
            left early. It is there also if there was no token: a model may end its text at once.
    """

    def __init__(
        self,
        model: SlotOwner,
        prompt: str | list[int],
        sampler: Sampler,
        *,
        max_tokens: int,
        ends: frozenset[int],
        reuse: bool,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._sampler = sampler
        self._most = max_tokens
        self._stop_ids = ends
        self._reuse = reuse
        self._slot: list[int] = []  # one or none; who pops it gives it back
        self._steps: Continuation | None = None
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._last: Token | None = None
        self._made = 0
        self._busy = False
        self._ended = False
        self.finish_reason: FinishReason | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        """The next token.

        Raises:
            StopAsyncIteration: the answer has ended.
            InvalidState: another task waits for a token of this stream; the model is closed.

        Cancellation: aborts the running step, and ends the stream.
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
            raise
        finally:
            self._busy = False
        if token is None:
            self._end()
            raise StopAsyncIteration
        return token

    async def _next(self) -> Token | None:
        steps = self._steps or await self._begin()
        chosen = await steps.next()
        if chosen is None or chosen[0] is None:
            self.finish_reason = "stop" if steps.stopped else "length"
            if self._last is not None and self._last.finish_reason is None:
                object.__setattr__(self._last, "finish_reason", self.finish_reason)
            return None
        token = chosen[0]
        self._made += 1
        last = self._made == self._most
        if last:
            self.finish_reason = "length"
        text = self._text.decode(self._model._bytes_of(token), final=last)
        self._last = Token(token, text, self.finish_reason)
        self._model._keep(self._slot[0])
        return self._last

    async def _begin(self) -> Continuation:
        model = self._model
        ids = await model._ids(self._prompt)
        slot, start = await model._take(ids if self._reuse else None)
        self._slot.append(slot)
        self._most = min(self._most, model.ctx - len(ids) + 1)
        self._steps = Continuation(
            model._decoder, ids, [self._sampler], n_predict=self._most, ends=self._stop_ids,
            slot=slot, start=start,
        )  # fmt: skip
        return self._steps

    def _end(self) -> None:
        """Abort the running step and give the slot back; any number of times, in any thread."""
        self._ended = True
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        try:
            slot = self._slot.pop()
        except IndexError:
            return
        self._model._give(slot, steps.fed if self._reuse and steps is not None else ())

    async def aclose(self) -> None:
        """Abort the running step and give the slot back."""
        if self._busy:
            raise InvalidState(
                f"[{PLACE}] another task waits for the next token of this stream: cancel that task"
            )
        self._end()
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
        state = f"ended, {self.finish_reason}" if self._ended else f"{self._made} tokens so far"
        return f"<TokenStream {state}>"
