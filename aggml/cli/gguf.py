"""``aggml gguf``: what is in a model file, whether it is whole, the same in other types.

Not here: the format (aggml.gguf), which tensors a model needs (aggml.models).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import click
import numpy as np

import aggml
from aggml import DType, GGUFFile, GGUFWriter
from aggml.cli.shared import awaited, bar, show

if TYPE_CHECKING:
    from aggml import Tensor

__all__ = ["gguf"]

SHOWN = 60  # characters of a value
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group
def gguf() -> None:
    """Look into GGUF files, check them, write them in other types."""


def _told(value: Any) -> Any:  # noqa: ANN401 as the file has it
    """A value for JSON; long arrays as their lengths."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and len(value) > 16:
        return {"length": len(value), "first": [_told(x) for x in value[:4]]}
    return value


@gguf.command
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--tensors/--no-tensors", default=True, help="List the tensors, too.")
def info(file: Path, as_json: bool, tensors: bool) -> None:
    """Metadata, types and tensors of FILE."""
    with GGUFFile.open(file) as opened:
        listed: list[dict[str, Any]] = [
            {"name": name, "type": t.dtype.type_name, "ne": list(t.ne[: t.ndim]), "bytes": t.nbytes}
            for name, t in opened.tensors.items()
        ]
        types: dict[str, int] = {}
        for tensor in opened.tensors.values():
            types[tensor.dtype.type_name] = types.get(tensor.dtype.type_name, 0) + tensor.nbytes
        data: dict[str, Any] = {
            "file": str(file),
            "version": opened.version,
            "alignment": opened.alignment,
            "bytes": opened.nbytes,
            "bytes_by_type": types,
            "metadata": {key: _told(value) for key, value in opened.metadata.items()},
        }
    if tensors:
        data["tensors"] = listed
    if as_json:
        show(data)
        return
    click.echo(f"GGUF version {data['version']}, {len(listed)} tensors, {data['bytes']:,} bytes")
    click.echo("  ".join(f"{name} {size:,}" for name, size in types.items()))
    click.echo("\nMETADATA")
    for key, value in data["metadata"].items():
        text = repr(value)
        click.echo(f"  {key} = {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}")
    if tensors:
        click.echo("\nTENSORS")
        for entry in listed:
            ne = ", ".join(map(str, entry["ne"]))
            click.echo(f"  {entry['name']}  {entry['type']}  [{ne}]")


@gguf.command
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@awaited
async def check(file: Path, as_json: bool) -> None:
    """Read all of FILE: the header, every tensor's numbers, and what its architecture needs.

    Fails if a number is NaN or infinite, or if a tensor is missing.
    """
    from aggml.models import Hyperparameters, ModelError
    from aggml.models.catalogue import describe

    problems: list[str] = []
    with await anyio.to_thread.run_sync(GGUFFile.open, file) as opened, bar("checking") as progress:
        done = 0
        for name, tensor in opened.tensors.items():
            wrong = await anyio.to_thread.run_sync(_not_finite, opened, name, tensor)
            if wrong:
                problems.append(f"{name}: {wrong} of its numbers are NaN or infinite")
            done += tensor.nbytes
            if progress is not None:
                progress(done, opened.nbytes)
        try:
            needed = describe(Hyperparameters(opened.metadata)).needs()
            problems += [f"{name} is missing" for name in needed if name not in opened.tensors]
        except ModelError as error:
            problems.append(str(error))
        count = len(opened.tensors)
    if as_json:
        show({"file": str(file), "tensors": count, "problems": problems})
    else:
        click.echo("\n".join(problems) or f"{count} tensors, all whole")
    if problems:
        sys.exit(1)


def _not_finite(file: GGUFFile, name: str, tensor: Tensor) -> int:
    """How many numbers of a tensor are NaN or infinite."""
    if tensor.dtype not in _READ:
        return 0
    values = aggml.dequantize(file.data(name), tensor.dtype, ne=tensor.ne)
    return int(np.size(values) - np.count_nonzero(np.isfinite(values)))


_READ = frozenset(
    kind for kind in DType if kind.is_quantized or kind in (DType.F32, DType.F16, DType.BF16)
)


@gguf.command
@click.argument("source", type=FILE)
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-t", "--type", "dtype", required=True, help="Of the matrices: q8_0, q4_K, f16, ...")
@click.option(
    "--output-type", "output", help="Of the output and the embeddings. [default: as the others]"
)
@click.option(
    "--keep", metavar="REGEX", help="Tensors whose name it matches stay as they are."
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@awaited
async def quantize(
    source: Path, target: Path, dtype: str, output: str | None, keep: str | None, as_json: bool
) -> None:
    """Write SOURCE to TARGET with its matrices in another type.

    Vectors stay as they are, and so do matrices whose rows are no whole number of blocks. TARGET is
    written aside and renamed when it is whole: Ctrl-C leaves no broken file.
    """
    kind = DType.parse(dtype)
    ends = kind if output is None else DType.parse(output)
    kept = None if keep is None else re.compile(keep)
    changed = 0
    with await anyio.to_thread.run_sync(GGUFFile.open, source) as opened:
        writer = GGUFWriter(target, alignment=opened.alignment)
        try:
            with bar("quantizing") as progress:
                for key, value in opened.metadata.items():
                    if key != "general.alignment":
                        writer.add(key, value, opened.types[key])
                done = 0
                for name, tensor in opened.tensors.items():
                    to = ends if name.startswith(("output.", "token_embd.")) else kind
                    if not _changes(name, tensor, to, kept):
                        to = tensor.dtype
                    await _copy(opened, writer, name, tensor, to)
                    changed += to is not tensor.dtype
                    done += tensor.nbytes
                    if progress is not None:
                        progress(done, opened.nbytes)
            await writer.aclose()
        except BaseException:
            writer.abandon()
            raise
    before, after = [(await anyio.Path(x).stat()).st_size for x in (source, target)]
    if as_json:
        sizes = {"bytes_before": before, "bytes": after}
        show({"source": str(source), "target": str(target), "changed": changed, **sizes})
    else:
        now = f"{changed} tensors are {kind.type_name} now"
        click.echo(f"{now}: {before:,} -> {after:,} bytes")


def _changes(name: str, tensor: Tensor, to: DType, kept: re.Pattern[str] | None) -> bool:
    """Whether a tensor gets another type."""
    matrix = sum(n > 1 for n in tensor.ne) >= 2 and name.endswith(".weight")
    if not matrix or (kept is not None and kept.search(name)) or "norm" in name:
        return False
    return tensor.ne[0] % to.blck_size == 0


async def _copy(file: GGUFFile, writer: GGUFWriter, name: str, tensor: Tensor, to: DType) -> None:
    """Write one tensor, in another type if that is not its own."""
    data = file.data(name)
    if to is tensor.dtype:
        await writer.add_tensor_async(name, data, to, ne=tensor.ne[: tensor.ndim])
        return
    values = await aggml.dequantize_async(data, tensor.dtype, ne=tensor.ne)
    await writer.add_tensor_async(name, values.reshape(tensor.shape), to)
