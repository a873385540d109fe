"""ArraysFile: arrays in memory with the interface of a GGUFFile.

Not here: where the arrays come from (whisper.py).
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from anyio.lowlevel import checkpoint as breath

import aggml
from aggml import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from aggml import Backend, Buffer, Device, Tensor

__all__ = ["ArraysFile"]

KINDS = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}


class ArraysFile:
    """The part of the interface of `aggml.GGUFFile` that models use.

    Args:
        path: of the file.
        metadata: values by GGUF's keys.
        arrays: tensors of floats by GGUF's names.

    Attributes:
        path: of the file.
        metadata: values by GGUF's keys.
        tensors: leaves by GGUF's names; not placed until `load`.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self._arrays = {
            name: x if x.dtype.name in KINDS else x.astype(np.float32) for name, x in arrays.items()
        }
        self.tensors: dict[str, Tensor] = {
            name: aggml.new_tensor(KINDS[x.dtype.name], ne=x.shape[::-1] or (1,), name=name)
            for name, x in self._arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor's elements, in numpy's order."""
        return np.ascontiguousarray(self._arrays[name])

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Buffer]:
        """Copy tensors to a backend.

        Cancellation: stops after the tensor that is being copied; none is placed.
        """
        wanted = list(self.tensors if names is None else dict.fromkeys(names))
        if not wanted:
            return []
        total, done = sum(self.tensors[x].nbytes for x in wanted), 0
        buffer = await backend.alloc_async([self.tensors[x] for x in wanted])
        try:
            for name in wanted:
                await backend.set(self.tensors[name], self._arrays[name])
                done += self.tensors[name].nbytes
                if progress is not None:
                    progress(done, total)
                await breath()
        except BaseException:
            buffer.close()
            raise
        buffer.usage = aggml.BufferUsage.WEIGHTS
        return [buffer]

    def map(self, device: Device, names: Iterable[str] | None = None) -> list[Buffer]:
        """Place tensors where their arrays lie, without a copy.

        Args:
            device: reads host memory.
            names: which tensors; all if not given.

        Returns:
            A buffer for each tensor, with usage WEIGHTS. It keeps the array alive, also when this
            file is closed.

        Raises:
            Unsupported: the device cannot use host memory; `load` copies.
            Misaligned: an array begins at an odd address; `load` copies.
        """
        wanted = list(self.tensors if names is None else dict.fromkeys(names))
        buffers: list[Buffer] = []
        try:
            for name in wanted:
                array = np.ascontiguousarray(self._arrays[name])
                array.flags.writeable = False  # nobody but operations changes it from here on
                buffer = device.buffer_from_host(array)
                buffers.append(buffer)
                buffer.is_file = _in_mapping(array)
                buffer.usage = aggml.BufferUsage.WEIGHTS
                buffer.place(self.tensors[name], 0)
        except aggml.AggmlError:
            for buffer in buffers:
                buffer.close()
            raise
        return buffers

    def close(self) -> None:
        """Drop the arrays."""
        self._arrays = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_mapping(array: npt.NDArray[Any]) -> bool:
    """Whether an array is a part of a mapped file."""
    owner: object = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner is not None
