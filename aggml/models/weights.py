"""Weights: from a model file to tensors on a backend.

Here: opening GGUF, what must be in it, mapping or loading. Not here: what the weights are for
(description.py), the file format (aggml.gguf).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

import aggml
from aggml import GGUFFile
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aggml import Backend, Tensor

__all__ = ["load_weights", "open_model"]


async def open_model(path: Path) -> GGUFFile:
    """Open a GGUF file without holding up the loop.

    Raises:
        ModelError: it cannot be read, or is no GGUF file.
    """
    try:
        return await anyio.to_thread.run_sync(GGUFFile.open, path)
    except (OSError, aggml.AggmlError) as error:
        raise ModelError(f"cannot open the model: {error}") from error


async def load_weights(
    backend: Backend,
    file: GGUFFile,
    needs: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    uses: Callable[[str], bool] | None = None,
) -> Mapping[str, Tensor]:
    """Bring the weights of a file to ``backend``: mapped if it reads host memory, else copied.

    Args:
        backend: where to compute.
        file: open.
        needs: names of tensors that the file must have.
        progress: called with bytes loaded so far and bytes in all.
        uses: tells which tensors are worth a copy; None: all of them.

    Raises:
        ModelError: a tensor is missing.
    """
    missing = [name for name in needs if name not in file.tensors]
    if missing:
        raise ModelError(f"the file has no tensor {missing[0]!r} ({len(missing)} are missing)")
    try:
        file.map(backend.device)
    except (aggml.Unsupported, aggml.Misaligned):
        names = None if uses is None else [name for name in file.tensors if uses(name)]
        await file.load(backend, names=names, progress=progress)
    return file.tensors
