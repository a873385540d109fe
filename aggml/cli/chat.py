"""``aggml chat``: a conversation in the terminal, or as lines of JSON for a program.

Here: reading lines, showing answers as they come, the history. Ctrl-C ends an answer, not the
program. Not here: choosing tokens (aggml.models), loading (shared.py).
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.abc
import click

from aggml.cli.shared import awaited, model_options, opened, tell, without_group
from aggml.cli.text import sampling_options
from aggml.models import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models import Model

__all__ = ["chat"]

Message = dict[str, str]


@click.command
@model_options
@click.option(
    "--system",
    metavar="TEXT",
    help="System message, sent before the first message. [default: none]",
)
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a line with a JSON object for each event: ready, token, answer, cleared, error.",
)  # fmt: skip
@sampling_options
@awaited
async def chat(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    system: str | None,
    as_json: bool,
    **sampling: Any,  # noqa: ANN401 as `sampling_options` has them
) -> None:
    """Talk with MODEL, a GGUF file or a folder of Hugging Face.

    Each line of standard input is a message. Ctrl-C ends an answer; /clear forgets the
    conversation; /quit, Ctrl-D, or Ctrl-C at the prompt leave. With --json, a line that is a JSON
    string stands for the text in it, so that a message may have several lines. The status is 1 if
    the last message got no answer.
    """
    begin = [] if system is None else [{"role": "system", "content": system}]
    async with opened(model, device, threads, ctx, cache) as loaded:
        shown: _Shown = _Events() if as_json else _Terminal()
        shown.ready(loaded)
        messages, status = list(begin), 0
        while (line := shown.line()) is not None and line.strip() != "/quit":
            if line.strip() == "/clear":
                messages = list(begin)
                shown.cleared()
            elif line.strip():
                asked = [*messages, {"role": "user", "content": line}]
                try:
                    with without_group():
                        answer = await _answer(loaded, asked, sampling, shown)
                except ModelError as error:
                    status = 1
                    shown.failed(f"{error}; /clear forgets the conversation")
                else:
                    status = 0
                    messages = [*asked, {"role": "assistant", "content": answer}]
    raise click.exceptions.Exit(status)


async def _answer(
    model: Model, messages: list[Message], sampling: dict[str, Any], shown: _Shown
) -> str:
    """Show the answer as it comes, and return it; after Ctrl-C the part that had come."""
    text = model.template.render(messages)
    pieces: list[str] = []
    ids = model.tokenizer.encode(text, special=not _begins(model, text))
    first, begin, whole = 0.0, time.perf_counter(), False
    async with anyio.create_task_group() as tasks:
        await tasks.start(_cancel_when_interrupted, tasks.cancel_scope)
        async with contextlib.aclosing(model.generate(ids, **sampling)) as tokens:
            async for token in tokens:
                first = first or time.perf_counter()
                pieces.append(token.text)
                shown.token(token.text)
        whole = True
        tasks.cancel_scope.cancel()
    end = time.perf_counter()
    n, answer = len(pieces), "".join(pieces)
    most = min(sampling["max_tokens"], model.ctx - len(ids) + 1)
    shown.answered(
        {
            "text": answer,
            "finish": "interrupted" if not whole else "length" if n >= most else "stop",
            "prompt_tokens": len(ids),
            "tokens": n,
            "seconds_to_first_token": first - begin if n else None,
            "tokens_per_second": (n - 1) / (end - first) if n > 1 else None,
        }
    )
    return answer


class _Shown(Protocol):
    """The other side of the conversation: a terminal or a program. It gets each event of it."""

    def ready(self, model: Model) -> None:
        """Say that the model is loaded."""

    def line(self) -> str | None:
        """Read the next message or command; None at the end of input.

        Reading blocks the event loop. No other task runs meanwhile, so Ctrl-C ends the program at
        once.
        """

    def token(self, text: str) -> None:
        """Show a piece of the answer."""

    def answered(self, told: dict[str, Any], /) -> None:
        """Show that the answer is complete: its text, why it ended, counts and speeds."""

    def cleared(self) -> None:
        """Show that the conversation starts again without history."""

    def failed(self, why: str) -> None:
        """Show why the last message has no answer; the message is dropped from the history."""


class _Terminal:
    """A person at a terminal."""

    def ready(self, model: Model) -> None:
        """Print the model to standard error; standard output has the answers alone."""
        click.echo(
            f"{model.architecture}, {model.ctx} positions. "
            "/clear forgets what was said, /quit leaves",
            err=True,
        )

    def line(self) -> str | None:
        """Read a line that the person types."""
        try:
            return input("> ")
        except EOFError:
            click.echo()
            return None

    def token(self, text: str) -> None:
        """Print the piece at once."""
        click.echo(text, nl=False)

    def answered(self, _: dict[str, Any], /) -> None:
        """End the line of the answer."""
        click.echo()

    def cleared(self) -> None:
        """Print nothing."""

    def failed(self, why: str) -> None:
        """Print the reason in one line."""
        click.echo(f"aggml chat: {why}", err=True)


class _Events:
    """A program: it reads each event as one line of JSON."""

    def ready(self, model: Model) -> None:
        """Write the event `ready`, which names the model."""
        tell({"event": "ready", "architecture": model.architecture, "ctx": model.ctx})

    def line(self) -> str | None:
        """Read a line of text, or a JSON string."""
        line = sys.stdin.readline()
        if not line:
            return None
        if line.startswith('"'):
            with contextlib.suppress(ValueError):
                return str(json.loads(line))
        return line.rstrip("\r\n")

    def token(self, text: str) -> None:
        """Write the event `token`."""
        tell({"event": "token", "text": text})

    def answered(self, told: dict[str, Any], /) -> None:
        """Write the event `answer`, with its text, counts and speeds."""
        tell({"event": "answer", **told})

    def cleared(self) -> None:
        """Write the event `cleared`, so that the program knows the order of events."""
        tell({"event": "cleared"})

    def failed(self, why: str) -> None:
        """Write the event `error`; the conversation goes on."""
        tell({"event": "error", "message": why})


def _begins(model: Model, text: str) -> bool:
    """Whether the chat template itself has put the begin-of-text token in front."""
    bos = model.tokenizer.bos
    return bos is not None and text.startswith(model.tokenizer.pieces[bos])


async def _cancel_when_interrupted(
    scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Cancel a scope at Ctrl-C, instead of ending the program."""
    with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
        task_status.started()
        async for _ in interrupts:
            scope.cancel()
