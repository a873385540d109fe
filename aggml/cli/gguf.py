"""``aggml gguf``: shows what is in a model file, and checks that it is complete.

Not here: the format (aggml.gguf), which tensors a model needs (aggml.models), writing files
(converting.py).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import click
import numpy as np

import aggml
from aggml import DType, GGUFFile
from aggml.cli.converting import convert, quantize
from aggml.cli.shared import UserPath, bar, run_on_loop, show
from aggml.gguf import GGUFParts, open_gguf

if TYPE_CHECKING:
    from aggml import Tensor

__all__ = ["gguf"]

SHOWN = 60  # most characters printed of a value
FILE = UserPath(exists=True, dir_okay=False, path_type=Path)


@click.group
def gguf() -> None:
    """Show and check GGUF files, and write them with other element types."""


def _as_json(value: Any) -> Any:  # noqa: ANN401 as the file has it
    """A value for JSON; of an array of more than 16, the length and the first four."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        if len(value) > 16:
            return {"length": len(value), "first": [_as_json(x) for x in value[:4]]}
        return [_as_json(x) for x in value]
    if isinstance(value, str):  # bytes that are no UTF-8 are shown as escapes
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


@gguf.command
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
@click.option(
    "--tensors/--no-tensors", default=True, show_default=True, help="Whether to list the tensors."
)
def info(file: Path, as_json: bool, tensors: bool) -> None:
    """Print the metadata, element types and tensors of FILE."""
    with open_gguf(file) as opened:
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
            "metadata": {key: _as_json(value) for key, value in opened.metadata.items()},
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
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
@run_on_loop
async def check(file: Path, as_json: bool) -> None:
    """Read all of FILE and look for damage.

    Fails if a number is NaN or infinite, or if a tensor that the architecture needs is missing.
    """
    from aggml.models import ModelError, problems_of

    problems: list[str] = []
    with await anyio.to_thread.run_sync(open_gguf, file) as opened, bar("checking") as progress:
        done = 0
        for name, tensor in opened.tensors.items():
            wrong = await anyio.to_thread.run_sync(_not_finite, opened, name, tensor)
            if wrong:
                problems.append(f"{name}: {wrong} of its numbers are NaN or infinite")
            done += tensor.nbytes
            if progress is not None:
                progress(done, opened.nbytes)
        try:
            problems += problems_of(opened.metadata, opened.tensors)
        except ModelError as error:
            problems.append(str(error))
        count = len(opened.tensors)
    if as_json:
        show({"file": str(file), "tensors": count, "problems": problems})
    else:
        click.echo("\n".join(problems) or f"{count} tensors, all whole")
    if problems:
        sys.exit(1)


def _not_finite(file: GGUFFile | GGUFParts, name: str, tensor: Tensor) -> int:
    """How many numbers of a tensor are NaN or infinite."""
    if tensor.dtype not in _READ:
        return 0
    values = aggml.dequantize(file.data(name), tensor.dtype, ne=tensor.ne)
    return int(np.size(values) - np.count_nonzero(np.isfinite(values)))


_READ = frozenset(
    dtype for dtype in DType if dtype.is_quantized or dtype in (DType.F32, DType.F16, DType.BF16)
)


gguf.add_command(convert)
gguf.add_command(quantize)
