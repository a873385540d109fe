"""``aggml gguf convert`` and ``quantize``: write a model as a GGUF file, in any element type.

Not here: which tensor gets which type, and the conversion (aggml.models.converting).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import aggml
from aggml.cli.shared import UserPath, bar, run_on_loop, scaled_paths, show, type_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.cli.shared import ScaledPath

__all__ = ["convert", "quantize"]


def _type(_: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """The name of an element type, as aggml spells it.

    Raises:
        BadParameter: there is no such type.
    """
    if name is None:
        return None
    try:
        return aggml.DType.parse(name).type_name
    except aggml.AggmlError as error:
        known = ", ".join(dtype.type_name for dtype in aggml.DType if dtype.is_quantized)
        raise click.BadParameter(
            f"there is no type {name!r}; give f32, f16, bf16, {known}", param=option
        ) from error


def _bytes(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A size, from a text such as "500M" or "2G": millions and thousands of millions of bytes.

    Raises:
        BadParameter: it is no such text.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})([MG])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no size such as 500M or 2G", param=option)
    return int(match[1]) * {"M": 10**6, "G": 10**9}[match[2]]


def _pattern(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check a regular expression.

    Raises:
        BadParameter: the text is no regular expression.
    """
    try:
        re.compile(text or "")
    except re.error as error:
        raise click.BadParameter(
            f"{text!r} is no regular expression: {error}", param=option
        ) from error
    return text


def _writable(_: click.Context, option: click.Parameter, target: Path) -> Path:
    """Check that the folder of a file exists.

    Raises:
        BadParameter: it does not exist.
    """
    if not target.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(target.parent)!r}", param=option)
    return target


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both commands have, beside the type."""
    for option in reversed((
        click.option(
            "--output-type", "ends", metavar="TYPE", shell_complete=type_names, callback=_type,
            help="Element type of the output matrix and the embeddings. [default: as --type]",
        ),
        click.option(
            "--keep", metavar="REGEX", callback=_pattern,
            help="Tensors whose names match keep their element type. [default: none]",
        ),
        click.option(
            "--imatrix", type=UserPath(exists=True, dir_okay=False, path_type=Path),
            help="Importance matrix, which says how much each column matters: a file of "
            "aggml imatrix, or a .dat or .gguf of llama.cpp. [default: all columns matter equally]",
        ),
        click.option(
            "--adapter", "adapters", multiple=True, metavar="PATH[:SCALE]", callback=scaled_paths,
            help="LoRA adapter that becomes part of the matrices: a GGUF file or a folder of PEFT; "
            "may be given several times. [default: none]",
        ),
        click.option(
            "--split-max-size", metavar="SIZE", callback=_bytes,
            help="Write parts TARGET-00001-of-0000N.gguf of at most this size: 500M or 2G. "
            "[default: one file]",
        ),
        click.option(
            "--no-tensor-first-split", is_flag=True,
            help="With --split-max-size: the first part has no tensors.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs."),
    )):  # fmt: skip
        function = option(function)
    return function


TARGET = click.argument("target", type=UserPath(dir_okay=False, path_type=Path), callback=_writable)


@click.command
@click.argument("source", type=UserPath(exists=True, path_type=Path))
@TARGET
@click.option(
    "-t",
    "--type",
    "dtype",
    metavar="TYPE",
    shell_complete=type_names,
    callback=_type,
    help="Element type of the matrices. [default: as in SOURCE]",
)
@_options
@run_on_loop
async def convert(source: Path, target: Path, **options: Any) -> None:  # noqa: ANN401
    """Write SOURCE, a folder of Hugging Face or a GGUF file, to the GGUF file TARGET.

    With --adapter, TARGET is a model of its own that has the adapter in it. Norms, biases, routers
    and positions stay as they are. Matrices whose rows are no whole number of blocks get a type of
    about the same size with smaller ones. TARGET is written aside and renamed when it is whole:
    Ctrl-C leaves no broken file.
    """
    await _convert(source, target, "converting", **options)


@click.command
@click.argument("source", type=UserPath(exists=True, dir_okay=False, path_type=Path))
@TARGET
@click.option(
    "-t", "--type", "dtype", metavar="TYPE", required=True, shell_complete=type_names,
    callback=_type,
    help="Element type of the matrices: q8_0, q4_K, f16, ...",
)  # fmt: skip
@_options
@run_on_loop
async def quantize(source: Path, target: Path, **options: Any) -> None:  # noqa: ANN401
    """Write the GGUF file SOURCE to TARGET with its matrices in another type.

    Norms, biases, routers and positions stay as they are. Matrices whose rows are no whole number
    of blocks get a type of about the same size with smaller ones. TARGET is written aside and
    renamed when it is whole: Ctrl-C leaves no broken file.
    """
    await _convert(source, target, "quantizing", **options)


async def _convert(
    source: Path,
    target: Path,
    what: str,
    *,
    dtype: str | None,
    ends: str | None,
    keep: str | None,
    imatrix: Path | None,
    adapters: tuple[ScaledPath, ...],
    split_max_size: int | None,
    no_tensor_first_split: bool,
    as_json: bool,
) -> None:
    """Convert with a progress bar, then print a summary."""
    from aggml import models

    with bar(what) as progress:
        done = await models.convert(
            source, target, dtype, ends=ends, keep=keep, imatrix=imatrix, adapters=adapters,
            split_max_size=split_max_size, no_tensor_first_split=no_tensor_first_split,
            progress=progress,
        )  # fmt: skip
    if as_json:
        show({
            "source": str(source), "target": str(target), "tensors": done.tensors,
            "changed": done.changed, "bytes_before": done.nbytes_before, "bytes": done.nbytes,
            "bytes_by_type": done.types, "paths": done.paths,
        })  # fmt: skip
        return
    kinds = ", ".join(f"{name} {size:,}" for name, size in done.types.items())
    click.echo(
        f"{done.tensors} tensors, {done.changed} in another type: {kinds}; "
        f"{done.nbytes_before:,} -> {done.nbytes:,} bytes"
        + (f" in {len(done.paths)} parts" if len(done.paths) > 1 else "")
    )
