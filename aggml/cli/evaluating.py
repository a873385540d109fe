"""``aggml imatrix`` and ``aggml eval``: measure a model on a text.

Not here: the measuring (aggml.models).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aggml.cli.shared import DEVICE_OPTIONS, UserPath, bar, run_on_loop, show

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["evaluate", "imatrix"]


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both commands have."""
    for option in reversed((
        click.option(
            "--ctx", type=click.IntRange(16), default=512, show_default=True, metavar="N",
            help="Tokens of a chunk; each chunk begins anew.",
        ),
        click.option(
            "--chunks", type=click.IntRange(1), metavar="N",
            help="At most so many chunks. [default: the whole text]",
        ),
        *DEVICE_OPTIONS,
        click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs."),
    )):  # fmt: skip
        function = option(function)
    return function


def _read(path: Path) -> str:
    """The contents of a file of text, or of standard input.

    Raises:
        BadParameter: it is no text in UTF-8.
    """
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{str(path)!r} is no text in UTF-8: {error}") from error


MODEL = click.argument("model", type=UserPath(exists=True, path_type=Path))
FILE = UserPath(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command
@MODEL
@click.argument("text", type=FILE)
@click.argument("target", type=UserPath(dir_okay=False, path_type=Path))
@click.option("--output", is_flag=True, help="Measure the matrix of the logits, too.")
@_options
@run_on_loop
async def imatrix(
    model: Path,
    text: Path,
    target: Path,
    output: bool,
    ctx: int,
    chunks: int | None,
    as_json: bool,
    device: tuple[str, ...],
    threads: int | None,
) -> None:
    """Write TARGET, which says how much each column of MODEL's matrices matters for a text.

    TEXT is a file, or - for standard input. `aggml gguf quantize --imatrix TARGET` and llama.cpp
    read TARGET. It is written when all is measured: Ctrl-C leaves no broken file.
    """
    from aggml import models

    content, name = _read(text), text.name
    async with models.computing(device, threads) as on:
        with bar("measuring") as progress:
            found = await models.measure_imatrix(
                model, content, target, on, ctx=ctx, chunks=chunks, output=output, dataset=name,
                progress=progress,
            )  # fmt: skip
    if as_json:
        show({"model": str(model), "target": str(target), **asdict(found)})
        return
    click.echo(f"{found.matrices} matrices, {found.chunks} chunks, {found.tokens:,} tokens")
    if found.unused:
        click.echo(
            f"{found.unused} experts were never used: a longer text may reach them", err=True
        )


@click.command("eval")
@MODEL
@click.argument("text", type=FILE, required=False)
@click.option(
    "--kl-base", type=UserPath(exists=True, path_type=Path), metavar="PATH",
    help="Compare with this model, or with a file of --save-logits. [default: nothing]",
)  # fmt: skip
@click.option(
    "--save-logits", type=UserPath(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the probabilities of all tokens, as llama.cpp does. [default: nothing]",
)  # fmt: skip
@_options
@run_on_loop
async def evaluate(
    model: Path,
    text: Path | None,
    kl_base: Path | None,
    save_logits: Path | None,
    ctx: int,
    chunks: int | None,
    as_json: bool,
    device: tuple[str, ...],
    threads: int | None,
) -> None:
    """Print how well MODEL predicts a text: its perplexity, and how far it is from another model.

    TEXT is a file, or - for standard input. The second half of each chunk is scored, as by
    llama.cpp. A file of saved logits contains the text: then TEXT may be left out.
    """
    from aggml import models

    content = None if text is None else _read(text)
    async with models.computing(device, threads) as on:
        with bar("evaluating") as progress:
            found = await models.evaluate(
                model, content, on, ctx=ctx, chunks=chunks, kl_base=kl_base,
                save_logits=save_logits, progress=progress,
            )  # fmt: skip
    if as_json:
        told: dict[str, Any] = asdict(found)
        if found.divergence is not None:
            each = found.divergence.kl_percentiles
            told["divergence"]["kl_percentiles"] = {f"{p:g}": x for p, x in each.items()}
        show({"model": str(model), **told})
        return
    click.echo(f"perplexity           {found.ppl:.4f} +- {found.ppl_error:.4f}")
    click.echo(f"tokens               {found.tokens:,} of {found.chunks} chunks")
    apart = found.divergence
    if apart is None:
        return
    click.echo(f"perplexity of base   {apart.base_ppl:.4f} +- {apart.base_ppl_error:.4f}")
    click.echo(f"logarithm of ratio   {apart.ln_ratio:.6f} +- {apart.ln_ratio_error:.6f}")
    click.echo(f"divergence           {apart.kl:.6f} +- {apart.kl_error:.6f}")
    for percent, value in apart.kl_percentiles.items():
        click.echo(f"  {percent:5.1f} %            {value:.6f}")
    click.echo(f"  largest            {apart.kl_max:.6f}")
    click.echo(f"change of p          {100 * apart.dp:.3f} +- {100 * apart.dp_error:.3f} %")
    click.echo(f"  root mean square   {100 * apart.dp_rms:.3f} +- {100 * apart.dp_rms_error:.3f} %")
    click.echo(
        f"same token on top    {100 * apart.same_top:.2f} +- {100 * apart.same_top_error:.2f} %"
    )
