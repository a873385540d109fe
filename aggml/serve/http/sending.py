"""Carries out a request for text: all its choices, whole or piece by piece, in any protocol's form.

A protocol gives a `Writer`; it says what the bytes are, and this module when they are sent: checks
before the status, deadlines, hang-ups, notes for a front (resuming.py). Not here: the choices
(choice.py), how bytes get to the client (streams.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from aggml.serve.http.forms import Failure, as_json
from aggml.serve.http.resuming import Note
from aggml.serve.http.spans import RequestSpan
from aggml.serve.http.streams import EVENTS, HungUpError, first_of, hung_up_cancels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aggml.models import TextModel
    from aggml.serve.http.choice import AnswerPiece, Choice, PromptProgress
    from aggml.serve.http.exchange import Exchange
    from aggml.serve.http.resuming import Write

__all__ = ["Writer", "respond"]

ENDED: Final = Note(ended=True)


class Writer(ABC):
    """Writes an answer in the form of a protocol.

    Args:
        choices: of the answer, in order.

    Attributes:
        media: the type of an answer that is sent piece by piece.
        resumes: whether another service can go on with the answer (resuming.py).
    """

    media = EVENTS
    resumes = False

    def __init__(self, choices: Sequence[Choice]) -> None:
        self.choices = choices

    @abstractmethod
    def whole(self) -> object:
        """The answer in one piece, when all choices are there."""

    def begin(self) -> bytes:
        """Before all pieces."""
        return b""

    def begin_choice(self, choice: Choice) -> bytes:
        """Before the pieces of a choice."""
        return b""

    @abstractmethod
    def piece(self, choice: Choice, piece: AnswerPiece) -> bytes:
        """A piece."""

    def progress(self, choice: Choice, done: int, total: int) -> bytes:
        """Before the pieces of a choice: so many tokens of its prompt are computed."""
        return b""

    @abstractmethod
    def end_choice(self, choice: Choice) -> bytes:
        """After the pieces of a choice."""

    def end(self) -> bytes:
        """After all pieces."""
        return b""

    @abstractmethod
    def failure(self, failure: Failure) -> bytes:
        """The error after which nothing comes: the status is already sent."""

    # -- what every protocol tells

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt with several answers counts once."""
        return sum({x.group: x.prompt_tokens for x in self.choices}.values())

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts that did not have to be computed."""
        return sum({x.group: x.cached for x in reversed(self.choices)}.values())

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tokens of the prompts, of the answers, and of the prompts that were not computed."""
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of all answers that were thoughts."""
        return sum(x.reasoning_tokens for x in self.choices)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(x.made for x in self.choices)


async def respond(
    exchange: Exchange,
    model: TextModel,
    writer: Writer,
    *,
    seconds: float,
    stream: bool,
) -> Response:
    """The answer to a request.

    Args:
        exchange: the request.
        model: of the choices.
        writer: writes the answer.
        seconds: in which it must be complete.
        stream: whether it is sent piece by piece.

    Raises:
        TooLongError, FullError, DeadlineError, ...: before anything is sent.
    """
    choices = writer.choices
    span = RequestSpan.begin(exchange)
    try:
        for choice in choices:
            await choice.open()
        waiting = [x for x in choices if not x.ended]
        model.check([x.tokens for x in waiting if x.tokens is not None])
        for choice in waiting:
            await choice.start()
        if stream:

            async def produce(write: Write) -> None:
                with span:
                    await _send(writer, write if writer.resumes else _plain(write), seconds, span)

            return exchange.stream(produce, writer.media)
    except BaseException as error:
        span.end(error)
        raise
    with span, anyio.fail_after(seconds):
        async with hung_up_cancels(exchange.request.receive), anyio.create_task_group() as tasks:
            for choice in choices:
                tasks.start_soon(choice.run)
        span.tell(*writer.counts)
    return as_json(writer.whole())


def _plain(write: Write) -> Write:
    """Writes without notes, so that no other service goes on."""

    async def without(data: bytes, note: Note | None = None) -> None:
        await write(data)

    return without


async def _send(writer: Writer, write: Write, seconds: float, span: RequestSpan) -> None:
    """Write the answer piece by piece, the pieces of several choices as they come."""
    try:
        with anyio.fail_after(seconds):
            await _write(write, writer.begin(), None)
            async with anyio.create_task_group() as tasks:
                for choice in writer.choices:
                    if not choice.ended:
                        tasks.start_soon(_send_choice, writer, choice, write, span)
    except Exception as error:
        if isinstance(first_of(error), HungUpError):
            raise
        span.fail(first_of(error))
        await write(writer.failure(Failure(error)), ENDED)
        return
    span.tell(*writer.counts)
    await write(writer.end(), ENDED)


async def _send_choice(writer: Writer, choice: Choice, write: Write, span: RequestSpan) -> None:
    if not choice.begun:
        await _write(write, writer.begin_choice(choice), choice)
    if choice.progress is None:
        await _send_pieces(writer, choice, write, span)
    else:
        async with anyio.create_task_group() as tasks:
            told = anyio.Event()
            tasks.start_soon(_send_progress, writer, choice, choice.progress, write, told)
            await _send_pieces(writer, choice, write, span, told)
    await write(writer.end_choice(choice), choice.note(ended=True))


async def _send_pieces(
    writer: Writer, choice: Choice, write: Write, span: RequestSpan, told: anyio.Event | None = None
) -> None:
    """Write the pieces; ``told`` is set when all progress before them is written."""
    async with aclosing(choice.pieces()) as pieces:
        async for piece in pieces:
            span.first()
            await _end_progress(choice, told)
            await _write(write, writer.piece(choice, piece), choice)
    await _end_progress(choice, told)


async def _end_progress(choice: Choice, told: anyio.Event | None) -> None:
    if choice.progress is not None and told is not None and not told.is_set():
        choice.progress.end()
        await told.wait()


async def _send_progress(
    writer: Writer, choice: Choice, progress: PromptProgress, write: Write, told: anyio.Event
) -> None:
    async with aclosing(progress.news()) as news:
        async for done, total in news:
            await _write(write, writer.progress(choice, done, total), choice)
    told.set()


async def _write(write: Write, data: bytes, choice: Choice | None) -> None:
    """Write bytes if there are any, with the note of a choice."""
    if data:
        await write(data, None if choice is None else choice.note())
