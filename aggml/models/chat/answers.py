"""ChatStream: the answer to a conversation, piece by piece; `answer_messages`: the whole of it.

Here: from messages to a prompt, from tokens to pieces and to a message. Not here: checks of
messages (messages.py), the tokens of a prompt (prompt.py), generating (aggml.models.TextModel).
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from aggml import InvalidState, Unsupported
from aggml.models.arguments import flag, integer
from aggml.models.chat.asking import read_format, read_think, read_tools
from aggml.models.chat.messages import ChatDelta, ChatMessage, Usage, read_messages
from aggml.models.chat.prompt import Conversing, encode_messages, read_template_args
from aggml.models.engine.text import AnswerText
from aggml.models.token_stream import Token
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.chat.messages import ChatFinish
    from aggml.models.token_stream import TokenStream

__all__ = [
    "ANSWER",
    "Answering",
    "ChatStream",
    "answer_messages",
    "encode_chat",
    "stream_answer",
]

ANSWER: Final = 1024  # tokens of an answer, at most, if nothing is said


class Answering(Conversing, Protocol):
    """The part of a `TextModel` that answers a conversation.

    Attributes:
        ctx: positions of a sequence.
    """

    ctx: int

    @property
    def generate(self) -> Callable[..., TokenStream]:
        """Continues a prompt."""
        ...


class ChatStream:
    """The pieces of one answer: ``async for delta in model.chat_stream(messages): ...``.

    Leaving the loop early ends the answer, as it does for a `TokenStream`.

    Attributes:
        finish_reason: why the answer ended, "stop", "length" or "tool_calls"; None before.
        usage: how many tokens there were so far; 0 before the first piece.
        tokens: the tokens of the answer; None before the prompt is made.
    """

    def __init__(
        self,
        model: Answering,
        messages: list[dict[str, str]],
        template_args: Mapping[str, Any],
        max_tokens: int | None,
        options: Mapping[str, Any],
        before: Sequence[int] = (),
    ) -> None:
        self._model = model
        self._messages = messages
        self._template_args = template_args
        self._max_tokens = max_tokens
        self._options = dict(options)
        self._began = time.monotonic()
        self._before = list(before)  # tokens that were made elsewhere
        self.tokens: TokenStream | None = None
        self._busy = False
        self._ended = False
        self.finish_reason: ChatFinish | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatDelta:
        """The next piece.

        Raises:
            StopAsyncIteration: the answer has ended.
            ModelError: the template refuses the conversation; as `TokenStream`.
            InvalidState: another task waits for a piece of this answer; the model is closed.

        Cancellation: ends the answer.
        """
        if self._ended:
            await CHECKPOINT
            raise StopAsyncIteration
        if self._busy:
            raise InvalidState("[chat_stream] another task waits for the next piece of this answer")
        self._busy = True
        try:
            return await self._next()
        except BaseException:
            self._ended = True
            raise
        finally:
            self._busy = False

    async def open(self) -> None:
        """Make the prompt now; the first piece does it otherwise.

        So a conversation that the template refuses, or that is too long, is known before a piece is
        waited for.

        Raises:
            ModelError: the template refuses the conversation.
            TooLongError: the prompt does not fit into the context.
        """
        if self.tokens is None:
            self.tokens = await self._begin()

    async def _next(self) -> ChatDelta:
        if self.tokens is None:
            self.tokens = await self._begin()
        if self._before:
            # Their text comes again, for those who know what was sent of it.
            before, self._before = self._before, []
            text = AnswerText(self._model.tokenizer.bytes_of, *self._stops())
            said = "".join([text.add(token) for token in before])
            if said:
                return ChatDelta(said, tokens=[Token(x, "") for x in before])
        taken: list[Token] = []
        async for token in self.tokens:
            taken.append(token)
            if token.text:
                return ChatDelta(token.text, tokens=taken)
        self._ended = True
        self.finish_reason = self.tokens.finish_reason
        return ChatDelta(finish_reason=self.finish_reason, tokens=taken)

    def _stops(self) -> tuple[list[str], int]:
        stop = self._options.get("stop", [])
        stops = [stop] if isinstance(stop, str) else list(stop)
        return stops, self._options.get("min_tokens", 0)

    async def _begin(self) -> TokenStream:
        model = self._model
        ids = await encode_messages(model, self._messages, self._template_args)
        most = self._max_tokens
        if most is None:
            most = max(1, min(ANSWER, model.ctx - len(ids)))
        options = self._options
        if options.get("deadline") is not None:  # it counts from the call
            passed = time.monotonic() - self._began
            options = {**options, "deadline": max(0.0, options["deadline"] - passed)}
        tokens = model.generate(ids, max_tokens=most, **options, _continue=self._before)
        tokens.prepare(ids)  # raises if the prompt is too long
        return tokens

    @property
    def usage(self) -> Usage:
        """How many tokens there were so far; 0 before the first piece."""
        tokens = self.tokens
        if tokens is None:
            return Usage()
        return Usage(tokens.prompt_tokens, len(tokens.made), tokens.cached_tokens)

    async def aclose(self) -> None:
        """End the answer, and free what it uses."""
        if self._busy:
            raise InvalidState(
                "[chat_stream] another task waits for the next piece of this answer: cancel that "
                "task"
            )
        self._ended = True
        if self.tokens is None:
            await CHECKPOINT
        else:
            await self.tokens.aclose()


async def encode_chat(
    model: Conversing,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    *,
    tools: Any = None,  # noqa: ANN401 each argument is whatever was given until it is checked
    tool_choice: Any = "auto",  # noqa: ANN401
    think: Any = None,  # noqa: ANN401
    template_args: Mapping[str, Any] | None = None,
    continue_final: bool = False,
) -> list[int]:
    """Token ids of a conversation, up to where the model's answer begins.

    Args:
        model: would answer.
        messages: of the conversation.
        tools: as of `TextModel.chat`.
        tool_choice: as of `TextModel.chat`.
        think: as of `TextModel.chat`.
        template_args: further names for the template.
        continue_final: as of `TextModel.chat`.

    Raises:
        InvalidArgument: something is no message, as ``messages[3].content``.
        ModelError: the template refuses the conversation.
    """
    place = "encode_chat"
    known = read_messages(place, messages)
    given = read_template_args(place, template_args)
    for name, value in (
        ("tools", read_tools(place, tools, tool_choice)), ("think", read_think(place, think)),
        ("continue_final", flag(place, "continue_final", continue_final) or None),
    ):  # fmt: skip
        if value is not None:
            raise Unsupported(f"[{place}] {name} is not built yet")
    return await encode_messages(model, known, given)


def stream_answer(
    model: Answering,
    place: str,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    *,
    tools: Any,  # noqa: ANN401 each argument is whatever was given until it is checked
    tool_choice: Any,  # noqa: ANN401
    response_format: Any,  # noqa: ANN401
    think: Any,  # noqa: ANN401
    template_args: Any,  # noqa: ANN401
    max_tokens: int | None,
    continue_final: bool,
    parallel_tool_calls: bool,
    _continue: Sequence[int] = (),
    **options: Any,  # noqa: ANN401 those of `TextModel.generate`
) -> ChatStream:
    """The answer to a conversation, after all arguments were checked.

    Args:
        model: answers.
        place: the call, for errors.
        messages: of the conversation.
        tools: as of `TextModel.chat`.
        tool_choice: as of `TextModel.chat`.
        response_format: as of `TextModel.chat`.
        think: as of `TextModel.chat`.
        continue_final: as of `TextModel.chat`.
        parallel_tool_calls: as of `TextModel.chat`.
        template_args: further names for the template.
        max_tokens: the most tokens; None: `ANSWER`, or as many as the context has room for.
        options: of `TextModel.generate`.

    Raises:
        InvalidArgument: an argument of another type or out of its range.
    """
    known = read_messages(place, messages)
    given = read_template_args(place, template_args)
    wanted = read_format(place, response_format)
    thinking = read_think(place, think)
    offered = read_tools(place, tools, tool_choice)
    flag(place, "parallel_tool_calls", parallel_tool_calls)
    for name, value in (
        ("tools", offered), ("response_format", wanted), ("think", thinking),
        ("continue_final", flag(place, "continue_final", continue_final) or None),
    ):  # fmt: skip
        if value is not None:
            raise Unsupported(f"[{place}] {name} is not built yet")
    most = None if max_tokens is None else integer(place, "max_tokens", max_tokens, 0)
    model.generate([0], **options)  # refuses wrong options now, before the template runs
    return ChatStream(model, known, given, most, options, _continue)


async def answer_messages(stream: ChatStream) -> ChatMessage:
    """The whole answer as a message.

    Cancellation: ends the answer.
    """
    async with aclosing(stream):
        text = "".join([delta.content async for delta in stream])
    return ChatMessage(text, finish_reason=stream.finish_reason, usage=stream.usage)
