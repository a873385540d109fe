"""Weights: from a model file or folder to tensors on a backend.

Here: opening it, checking that all tensors are there, mapping or loading them. Not here: the use of
the weights (description.py), the file format (aggml.gguf).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.to_thread

import aggml
from aggml import Scheduler
from aggml.gguf import open_gguf
from aggml.models.catalogue import checkpoints
from aggml.models.checkpoints import ModelFolder, open_whisper
from aggml.models.dividing import SHARE, by_home, divide_layers, layer_of
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from aggml import Backend, Device, Tensor

__all__ = ["ModelFile", "load_weights", "open_model"]


class ModelFile(Protocol):
    """The common interface of a GGUFFile, GGUFParts, a ModelFolder and an ArraysFile."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by GGUF's keys."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Leaves by GGUF's names."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        ...

    def map(self, device: Device, names: Iterable[str] | None = None) -> object:
        """Place tensors without a copy, or raise Unsupported."""
        ...

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> object:
        """Copy tensors to a backend; those that the device can read in place may be mapped."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


async def open_model(path: Path, what: str = "model") -> ModelFile:
    """Open a GGUF file, all parts of one, a folder of Hugging Face, or a file of Whisper.

    In a thread.

    Args:
        path: of the file.
        what: it is, for errors.

    Raises:
        ModelError: it cannot be read, or is no model.
    """
    if await anyio.Path(path).is_dir():
        return await anyio.to_thread.run_sync(lambda: ModelFolder.open(path, checkpoints()))
    whisper = await anyio.to_thread.run_sync(open_whisper, path, what)
    if whisper is not None:
        return whisper
    try:
        return await anyio.to_thread.run_sync(open_gguf, path)
    except (OSError, aggml.AggmlError) as error:
        raise ModelError(f"cannot open the {what}: {error}") from error


async def load_weights(
    backend: Backend | Scheduler,
    file: ModelFile,
    needs: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    uses: Callable[[str], bool] | None = None,
    caches: Sequence[int] = (),
) -> Mapping[str, Tensor]:
    """Bring the weights of a file to ``backend``: mapped if it reads host memory, else copied.

    Args:
        backend: where to compute; the devices of a scheduler get layers by their memory.
        file: an open model file.
        needs: names of tensors that the file must have.
        progress: called with bytes loaded so far and bytes in all.
        uses: tells by its name whether a tensor is used; None: all of them are.
        caches: bytes of the caches of each layer, which will lie on the device of its weights.

    Raises:
        ModelError: a tensor is missing.
    """
    missing = [name for name in needs if name not in file.tensors]
    if missing:
        raise ModelError(f"the file has no tensor {missing[0]!r} ({len(missing)} are missing)")
    useful = [name for name in file.tensors if uses is None or uses(name)]
    if isinstance(backend, Scheduler):
        await _spread(backend, file, useful, caches, progress)
    else:
        await _bring(backend, file, useful, progress)
    return file.tensors


async def _bring(
    backend: Backend,
    file: ModelFile,
    names: Sequence[str],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Map tensors if the backend's device reads host memory, else copy them."""
    # in a thread, because placing a thousand tensors takes 8 ms
    if not await anyio.to_thread.run_sync(_map_tensors, file, backend.device, names):
        await file.load(backend, names=names, progress=progress)
    elif progress is not None:
        total = sum(file.tensors[name].nbytes for name in names)
        progress(total, total)


def _map_tensors(file: ModelFile, device: Device, names: Sequence[str]) -> bool:
    """Map tensors; False: the device has to copy them."""
    try:
        file.map(device, names)
    except (aggml.Unsupported, aggml.Misaligned):
        return False
    return True


async def _spread(
    scheduler: Scheduler,
    file: ModelFile,
    names: Sequence[str],
    caches: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Bring each layer to a backend that has memory for it: see `divide_layers`."""
    backends = scheduler.backends
    free: list[int] = []
    for k, backend in enumerate(backends[:-1]):
        counted = any(other.device is backend.device for other in backends[:k])
        free.append(0 if counted else int(backend.device.memory()[0] * SHARE))
    sizes = {name: file.tensors[name].nbytes for name in names}
    first = min((layer for name in names if (layer := layer_of(name)) is not None), default=0)
    homes = by_home(names, divide_layers(sizes, caches, free, first).of)
    total, done = sum(sizes.values()), 0
    for k, mine in sorted(homes.items()):

        def report(part: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + part, total)

        await _bring(backends[k], file, mine, report)
        done += sum(sizes[name] for name in mine)
