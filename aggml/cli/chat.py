"""``aggml chat``: a conversation in the terminal, or as lines of JSON for a program.

Here: reading lines, showing answers as they come, the history. Ctrl-C ends an answer, not the
program. The model keeps what it has computed of the conversation, so each answer computes the new
tokens only. Not here: choosing tokens (aggml.models), loading (shared.py).
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import click

from aggml.cli.lines import Lines
from aggml.cli.shared import (
    adapter_options,
    draft_option,
    load_model,
    model_options,
    picture_options,
    read_images,
    run_on_loop,
    tell,
)
from aggml.cli.text import sampling_options
from aggml.models import ModelError
from aggml.stream.parker import post_here

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from aggml.cli.shared import ScaledPath
    from aggml.models import Model

__all__ = ["chat"]

Message = dict[str, Any]

HELP = """\
/clear  forget the conversation
/help   print these lines
/quit   leave; so does Ctrl-D
Ctrl-C  end an answer; twice at the prompt: leave"""


@click.command
@model_options
@adapter_options
@draft_option
@picture_options
@click.option(
    "--system",
    metavar="TEXT",
    help="System message, sent before the first message. [default: none]",
)
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a line with a JSON object for each event: ready, token, answer, cleared, error.",
)  # fmt: skip
@sampling_options(max_tokens=128, temperature=0.8)
@run_on_loop
async def chat(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    adapters: tuple[ScaledPath, ...],
    control_vectors: tuple[ScaledPath, ...],
    draft: str | None,
    mmproj: Path | None,
    images: tuple[Path, ...],
    system: str | None,
    as_json: bool,
    **sampling: Any,  # noqa: ANN401 as `sampling_options` has them
) -> None:
    """Talk with MODEL, a GGUF file or a folder of Hugging Face.

    Each line of standard input is a message. Ctrl-C ends an answer; /clear forgets the
    conversation; /help prints the commands; /quit, Ctrl-D, or Ctrl-C twice at the prompt leave.
    With --json, a line that is a JSON
    string stands for the text in it, so that a message may have several lines. The status is 1 if
    the last message got no answer.
    """
    pictures = [{"type": "image", "image": x} for x in await read_images(mmproj, images)]
    begin: list[dict[str, Any]] = []
    begin += [] if system is None else [{"role": "system", "content": system}]
    async with load_model(
        model, device, threads, ctx, cache, adapters=adapters, control_vectors=control_vectors,
        draft=draft, mmproj=mmproj,
    ) as loaded:  # fmt: skip
        partner: _Partner = _Events() if as_json else _Terminal()
        partner.show_ready(loaded, ctx)
        messages, status = list(begin), 0
        interrupts = _Interrupts(partner)
        with interrupts:
            while (line := interrupts.read_line()) is not None and line.strip() != "/quit":
                if line.strip() == "/clear":
                    messages = list(begin)
                    partner.confirm_clear()
                    continue
                if line.strip() == "/help":
                    partner.show_help()
                    continue
                if not line.strip():
                    continue
                content: Any = line
                if pictures and len(messages) == len(begin):  # the first message has them
                    content = [*pictures, {"type": "text", "text": line}]
                asked = [*messages, {"role": "user", "content": content}]
                try:
                    answer = await _answer(loaded, asked, sampling, partner, interrupts)
                except ModelError as error:
                    status = 1
                    partner.show_error(f"{error}; /clear forgets the conversation")
                else:
                    status = 0
                    messages = [*asked, {"role": "assistant", "content": answer}]
    raise click.exceptions.Exit(status)


async def _answer(
    model: Model,
    messages: list[Message],
    sampling: dict[str, Any],
    partner: _Partner,
    interrupts: _Interrupts,
) -> str:
    """Show the answer as it comes, and return it; after Ctrl-C the part that had come."""
    pieces: list[str] = []
    first, begin = 0.0, time.perf_counter()
    stream = model.chat_stream(messages, **sampling)
    with anyio.CancelScope() as scope, interrupts.cancel_on_interrupt(scope):
        async with contextlib.aclosing(stream):
            async for delta in stream:
                first = first or time.perf_counter()
                if delta.content:
                    pieces.append(delta.content)
                    partner.show_token(delta.content)
    end = time.perf_counter()
    answer, usage = "".join(pieces), stream.usage
    n = usage.completion_tokens
    partner.end_answer(
        {
            "text": answer,
            "finish": stream.finish_reason or "interrupted",
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "tokens": n,
            "seconds_to_first_token": first - begin if n else None,
            "tokens_per_second": (n - 1) / (end - first) if n > 1 else None,
        }
    )
    return answer


class _Partner(Protocol):
    """The other side of the conversation: a terminal or a program. It gets each event of it."""

    def show_ready(self, model: Model, ctx: int | None) -> None:
        """Say that the model is loaded; ``ctx`` is what was asked for."""

    def read_line(self) -> str | None:
        """Read the next message or command; None at the end of input.

        Reading blocks the event loop. No other task runs meanwhile.
        """

    def show_token(self, text: str) -> None:
        """Show a piece of the answer."""

    def end_answer(self, told: dict[str, Any], /) -> None:
        """Show that the answer is complete: its text, why it ended, counts and speeds."""

    def confirm_clear(self) -> None:
        """Show that the conversation starts again without history."""

    def show_help(self) -> None:
        """Show the commands."""

    def explain_interrupt(self) -> None:
        """Show that Ctrl-C at the prompt did nothing, and that a second one leaves."""

    def show_error(self, why: str) -> None:
        """Show why the last message has no answer; the message is dropped from the history."""


class _Terminal:
    """A person at a terminal."""

    def __init__(self) -> None:
        self._lines = Lines()

    def show_ready(self, model: Model, ctx: int | None) -> None:
        """Print the model to standard error; standard output has the answers alone."""
        rounded = "" if ctx in (None, model.ctx) else f" ({ctx} rounded up)"
        click.echo(
            f"{model.architecture}, {model.ctx} positions{rounded}. "
            "/clear forgets what was said, /help explains, /quit leaves",
            err=True,
        )

    def read_line(self) -> str | None:
        """Read a line that the person types."""
        found = self._lines.line("> ")
        if found is None:
            click.echo()
        return found

    def show_token(self, text: str) -> None:
        """Print the piece at once."""
        click.echo(text, nl=False)

    def end_answer(self, told: dict[str, Any], /) -> None:
        """End the line of the answer; say on standard error if it was cut."""
        click.echo()
        if told["finish"] == "length":
            click.echo(
                f"(cut off after {told['tokens']} tokens, by --max-tokens or a full context)",
                err=True,
            )

    def confirm_clear(self) -> None:
        """Print nothing."""

    def show_help(self) -> None:
        """Print the commands to standard error."""
        click.echo(HELP, err=True)

    def explain_interrupt(self) -> None:
        """Print a hint to standard error."""
        click.echo("\n(Ctrl-C again leaves; so does /quit)", err=True)

    def show_error(self, why: str) -> None:
        """Print the reason in one line."""
        click.echo(f"aggml chat: {why}", err=True)


class _Events:
    """A program: it reads each event as one line of JSON."""

    def __init__(self) -> None:
        self._lines = Lines()

    def show_ready(self, model: Model, ctx: int | None) -> None:
        """Write the event `ready`, which names the model."""
        tell({"event": "ready", "architecture": model.architecture, "ctx": model.ctx})

    def read_line(self) -> str | None:
        """Read a line of text, or a JSON string."""
        line = self._lines.line()
        if line is None:
            return None
        if line.startswith('"'):
            with contextlib.suppress(ValueError):
                return str(json.loads(line))
        return line

    def show_token(self, text: str) -> None:
        """Write the event `token`."""
        tell({"event": "token", "text": text})

    def end_answer(self, told: dict[str, Any], /) -> None:
        """Write the event `answer`, with its text, counts and speeds."""
        tell({"event": "answer", **told})

    def confirm_clear(self) -> None:
        """Write the event `cleared`, so that the program knows the order of events."""
        tell({"event": "cleared"})

    def show_help(self) -> None:
        """Write the event `help`, with the commands."""
        tell({"event": "help", "text": HELP})

    def explain_interrupt(self) -> None:
        """Write nothing: no answer was being written."""

    def show_error(self, why: str) -> None:
        """Write the event `error`; the conversation goes on."""
        tell({"event": "error", "message": why})


class _Interrupts:
    """``with``: Ctrl-C ends an answer. At the prompt only a second one in a row leaves.

    Somebody who wants to end an answer may press Ctrl-C when the answer has just ended by itself.
    """

    def __init__(self, partner: _Partner) -> None:
        self._partner = partner
        self._cancel: Callable[[], object] | None = None
        self._reading = False
        self._at_prompt = 0  # how often Ctrl-C was pressed since the last line or answer

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, *_: object) -> None:
        if self._cancel is not None:
            self._cancel()
        elif self._reading:
            self._at_prompt += 1
            if self._at_prompt > 1 or sys.stdin.isatty():  # drops what was typed in the line
                raise KeyboardInterrupt
            self._partner.explain_interrupt()

    def read_line(self) -> str | None:
        """Read the next line. Reading blocks the event loop, where no other task runs."""
        self._at_prompt = 0
        while True:
            self._reading = True
            try:
                return self._partner.read_line()
            except KeyboardInterrupt:
                if self._at_prompt > 1:
                    raise
            finally:
                self._reading = False
            self._partner.explain_interrupt()

    @contextlib.contextmanager
    def cancel_on_interrupt(self, scope: anyio.CancelScope) -> Generator[None]:
        """A block during which Ctrl-C cancels a scope of this task."""
        post = post_here()
        self._cancel = lambda: post(scope.cancel)
        try:
            yield
        finally:
            self._cancel = None
