"""``aggml chat``: a conversation in the terminal.

Here: reading lines, showing answers as they come, the history. Ctrl-C ends an answer and not the
program. Not here: choosing tokens, loading (shared.py).
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import click

from aggml.cli.shared import awaited, model_options, opened
from aggml.cli.text import sampling_options

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models import Model

__all__ = ["chat"]

Message = dict[str, str]


@click.command
@model_options
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@sampling_options
@awaited
async def chat(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    system: str | None,
    **sampling: Any,  # noqa: ANN401 as `sampling_options` has them
) -> None:
    """Talk with the model of a GGUF file, MODEL.

    Ctrl-C ends an answer; /clear forgets the conversation; /quit, Ctrl-D, or Ctrl-C at the prompt
    leave.
    """
    begin = [] if system is None else [{"role": "system", "content": system}]
    async with opened(model, device, threads, ctx, cache) as loaded:
        click.echo(f"{loaded.architecture}, {loaded.ctx} positions. /clear, /quit", err=True)
        messages = list(begin)
        while True:
            line = _line()
            if line is None or line.strip() == "/quit":
                return
            if line.strip() == "/clear":
                messages = list(begin)
                continue
            if line.strip():
                messages.append({"role": "user", "content": line})
                answer = await _answer(loaded, messages, sampling)
                messages.append({"role": "assistant", "content": answer})


def _line() -> str | None:
    """What the person types; None at the end of input.

    It blocks the loop, on which nothing runs meanwhile; so Ctrl-C here ends the program at once.
    """
    try:
        return input("> ")
    except EOFError:
        click.echo()
        return None


async def _answer(model: Model, messages: list[Message], sampling: dict[str, Any]) -> str:
    """Show the answer as it comes; what there was of it if Ctrl-C ended it."""
    text = model.template.render(messages)
    pieces: list[str] = []
    ids = model.tokenizer.encode(text, special=not _begins(model, text))
    async with anyio.create_task_group() as tasks:
        await tasks.start(_cancel_when_interrupted, tasks.cancel_scope)
        async with contextlib.aclosing(model.generate(ids, **sampling)) as tokens:
            async for token in tokens:
                pieces.append(token.text)
                click.echo(token.text, nl=False)
        tasks.cancel_scope.cancel()
    click.echo()
    return "".join(pieces)


def _begins(model: Model, text: str) -> bool:
    """Whether the template wrote the token that begins a text by itself."""
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
