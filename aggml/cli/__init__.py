"""The program: ``aggml devices``, ``aggml generate``, ... and ``python -m aggml``.

Here: the group of commands. Not here: the commands (a file for each subject), the code that they
share (shared.py).
"""

from __future__ import annotations

import click

import aggml
from aggml.cli.bench import bench
from aggml.cli.chat import chat
from aggml.cli.devices import devices
from aggml.cli.evaluating import evaluate, imatrix
from aggml.cli.fit import fit
from aggml.cli.gguf import gguf
from aggml.cli.ops import ops
from aggml.cli.serve import serve
from aggml.cli.shared import CommandLine
from aggml.cli.speech import listen, transcribe
from aggml.cli.text import embed, generate, rerank
from aggml.cli.trace import trace

__all__ = ["main"]


@click.group(
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(aggml.__version__, message="aggml %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Run and serve models, convert and check their files, list devices.

    Every command has --help. With --json it prints one JSON value for programs; chat, listen and
    serve print a line with a JSON object for each event. Exit status: 0 after success, 1 if the
    command failed, 2 if the arguments are wrong, 130 after Ctrl-C.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    devices, generate, chat, embed, rerank, transcribe, listen, serve, fit, gguf, imatrix, evaluate,
    bench, trace, ops,
):  # fmt: skip
    main.add_command(command)


def __dir__() -> list[str]:
    return __all__
