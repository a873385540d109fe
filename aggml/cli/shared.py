"""Code that the commands share: options of models, event loops, errors in one line, progress.

Not here: the commands.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

import aggml

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

    from aggml.models import Model

__all__ = [
    "CACHES", "DEVICE_OPTIONS", "CommandLine", "ScaledPath", "UserPath", "adapter_options", "bar",
    "device_names", "device_options", "draft_option", "load_model", "model_options", "named_paths",
    "picture_options", "read_images", "run_on_loop", "scaled_paths", "show", "tell", "type_names",
    "without_group",
]  # fmt: skip

CACHES: Final = ("f16", "bf16", "f32", "q8_0", "q4_0")  # types of keys and values

# Errors of writing to a full disk, past a quota or a file size limit, or to a failing device.
_UNWRITABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class CommandLine(click.Group):
    """A group of commands. A command ends with an exit status, a failure also with one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "aggml",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 as click has it
    ) -> Any:  # noqa: ANN401
        """Run a command line."""
        status = 0
        try:
            ended = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            status = ended if isinstance(ended, int) else 0  # an int is the status of click's Exit
            sys.stdout.flush()
        except click.ClickException as error:
            click.echo(_error_line(error, prog_name), err=True)
            status = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo(err=True)
            status = 130
        except BrokenPipeError:  # `| head`: the reader has gone
            _drop_output()
        except OSError as error:
            if error.errno in _UNWRITABLE:
                _drop_output()
                what = f"cannot write the output: {error.strerror}"
            else:
                what = str(error)
            click.echo(f"{prog_name}: {what}", err=True)
            status = 1
        except aggml.AggmlError as error:
            click.echo(f"{prog_name}: {error}", err=True)
            status = 1
        if standalone_mode:
            sys.exit(status)
        return status


def _error_line(error: click.ClickException, program: str | None) -> str:
    """An error as one line: program or command, reason; for wrong arguments a hint to --help."""
    what = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return f"{program}: {what}"
    command = error.ctx.command_path
    return f"{command}: {what.removesuffix('.')} ({command} --help explains the arguments)"


def _drop_output() -> None:
    """Send unwritten output to the null device: else Python would try again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_on_loop(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a command of a coroutine function; it runs on the event loop that --loop names."""

    @click.option(
        "--loop", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True,
        help="The event loop.",
    )  # fmt: skip
    @functools.wraps(function)
    def run(loop: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 as click gives them
        with without_group():
            anyio.run(functools.partial(function, *args, **kwargs), backend=loop)

    return run


@contextmanager
def without_group() -> Generator[None]:
    """Let an exception out as it was raised, without the exception groups of task groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def device_names(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    """Complete the name of a device, for the shell."""
    return [device.name for device in aggml.list_devices() if device.name.startswith(begun)]


def type_names(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    """Complete the name of an element type, for the shell."""
    names = (dtype.type_name for dtype in aggml.DType)
    return [name for name in names if name.lower().startswith(begun.lower())]


#: Which devices compute, and with how many threads.
DEVICE_OPTIONS: Final = (
    click.option(
        "--device", metavar="NAME", multiple=True, shell_complete=device_names,
        help="Device of `aggml devices`; several share the model. [default: the best]",
    ),
    click.option(
        "--threads", type=click.IntRange(1), metavar="N",
        help="Number of threads that compute. [default: all usable cores]",
    ),
)  # fmt: skip


def device_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where and how a model is computed."""
    for option in reversed((
        *DEVICE_OPTIONS,
        click.option(
            "--ctx", type=click.IntRange(1), metavar="N",
            help="Most tokens of a sequence, rounded up to a multiple of 256. "
            "[default: as the model was trained, at most 4096]",
        ),
        click.option(
            "--cache", default="f16", show_default=True,
            type=click.Choice(CACHES),
            help="Element type of the cached keys and values.",
        ),
    )):  # fmt: skip
        function = option(function)
    return function


def model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument MODEL and the options of `device_options`."""
    path = UserPath(exists=True, path_type=Path)
    return click.argument("model", type=path)(device_options(function))


class UserPath(click.Path):
    """A path; ``~`` at its beginning is the home directory, also where the shell leaves it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 as click has it
        """The path, checked as `click.Path` checks it."""
        return super().convert(os.path.expanduser(value), param, ctx)


ScaledPath = tuple[Path, float]


def scaled_paths(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> tuple[ScaledPath, ...]:
    """Paths with their scales, from texts PATH or PATH:SCALE.

    Raises:
        BadParameter: there is no such file or folder.
    """
    return tuple(_scaled_path(text, option) for text in given)


def named_paths(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, ScaledPath]:
    """Paths with their scales by name, from texts NAME=PATH or NAME=PATH:SCALE.

    Raises:
        BadParameter: a text has no name; a name is given twice; there is no such file or folder.
    """
    found: dict[str, ScaledPath] = {}
    for text in given:
        name, sign, path = text.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{text!r} is not of the form NAME=PATH", param=option)
        if name in found:
            raise click.BadParameter(f"the name {name!r} is given twice", param=option)
        found[name] = _scaled_path(path, option)
    return found


def _scaled_path(text: str, option: click.Parameter) -> ScaledPath:
    path, scale = Path(os.path.expanduser(text)), 1.0
    if not path.exists():
        before, _, after = text.rpartition(":")
        try:
            path, scale = Path(os.path.expanduser(before)), float(after)
        except ValueError:
            before = ""
        if not before or not path.exists():
            raise click.BadParameter(f"there is no file or folder {text!r}", param=option)
    return path, scale


def adapter_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what changes a model."""
    for option in reversed((
        click.option(
            "--adapter", "adapters", multiple=True, metavar="PATH[:SCALE]", callback=scaled_paths,
            help="LoRA adapter that changes MODEL: a GGUF file or a folder of PEFT; may be given "
            "several times. [default: none]",
        ),
        click.option(
            "--control-vector", "control_vectors", multiple=True, metavar="PATH[:SCALE]",
            callback=scaled_paths,
            help="GGUF file of directions that are added after layers; may be given several times. "
            "[default: none]",
        ),
    )):  # fmt: skip
        function = option(function)
    return function


def draft_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option that says what guesses the next tokens."""
    return click.option(
        "--draft",
        metavar="lookup|ngram[:FILE]|mtp|PATH",
        help="Guess the next tokens, so that a step can make several; answers stay the same. "
        "lookup: from the text itself; ngram: from that and all other texts so far, which FILE "
        "keeps for the next time; mtp: by the file's own layer that predicts further tokens; PATH: "
        "by a smaller model with the same vocabulary. [default: none]",
    )(function)


def picture_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for pictures."""
    file = UserPath(exists=True, dir_okay=False, path_type=Path)
    for option in reversed((
        click.option(
            "--mmproj", type=file, metavar="FILE",
            help="File that makes embeddings of pictures for MODEL. [default: none]",
        ),
        click.option(
            "--image", "images", type=file, multiple=True, metavar="FILE",
            help="Picture that stands before the text; needs --mmproj; may be given several times. "
            "[default: none]",
        ),
    )):  # fmt: skip
        function = option(function)
    return function


async def read_images(mmproj: Path | None, images: Sequence[Path]) -> list[bytes]:
    """The bytes of the files of pictures.

    Raises:
        UsageError: there are pictures, and nothing that makes embeddings of them.
    """
    if images and mmproj is None:
        raise click.UsageError("--image needs --mmproj, the file that belongs to MODEL")
    return [await anyio.Path(path).read_bytes() for path in images]


@asynccontextmanager
async def load_model(
    model: Path,
    device: Sequence[str],
    threads: int | None,
    ctx: int | None,
    cache: str,
    *,
    adapters: Sequence[ScaledPath] = (),
    control_vectors: Sequence[ScaledPath] = (),
    draft: str | None = None,
    mmproj: Path | None = None,
    slots: int | None = None,
) -> AsyncGenerator[Model]:
    """Load a model, with a bar if standard error is a terminal, and close it at the end."""
    from aggml import models
    from aggml.models.kv.rows import round_up

    async with models.computing(device, threads) as on:
        with bar("loading") as progress:
            loaded = await models.load(
                model, on, ctx=None if ctx is None else round_up(ctx), cache=cache, slots=slots,
                adapters=adapters, control_vectors=control_vectors, draft=draft, mmproj=mmproj,
                progress=progress,
            )  # fmt: skip
        async with loaded:
            yield loaded


class bar:
    """``with bar("loading") as progress``: a progress bar, if standard error is a terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def __enter__(self) -> Callable[[int, int], None] | None:
        return self._step if sys.stderr.isatty() else None

    def _step(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = click.progressbar(length=total, label=self._label, file=sys.stderr)
            self._bar.__enter__()
        self._bar.update(done - self._bar.pos)
        if done >= total:
            self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def show(value: Any, *, err: bool = False) -> None:  # noqa: ANN401 whatever JSON has
    """Print one JSON value to standard output, or to standard error."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False), err=err)


def tell(value: dict[str, Any]) -> None:
    """Print an event of a running command at once, as one JSON object on a line of its own."""
    click.echo(json.dumps(value))  # ASCII: no character in it ends a line for some readers
