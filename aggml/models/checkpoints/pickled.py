"""read_pickled: the tensors of a ``.pt`` or ``.bin`` file of PyTorch, and nothing else of it.

Such a file is a zip archive with a pickle in it, and a pickle can call any function. Here a pickle
may name only the few functions and classes of which tensors are made, else the file is refused. So
no code of the file runs, and torch is not needed. Not here: safetensors (safetensors.py).
"""

from __future__ import annotations

import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.checkpoints.safetensors import NUMPY
from aggml.models.errors import ModelError
from aggml.process.paths import user_path

if TYPE_CHECKING:
    import io
    import os

    import numpy.typing as npt

__all__ = ["read_pickled"]

#: Types of elements by the names of torch's storages.
STORAGES: Final = {
    "DoubleStorage": NUMPY["F64"],
    "FloatStorage": NUMPY["F32"],
    "HalfStorage": NUMPY["F16"],
    "BFloat16Storage": NUMPY["BF16"],
    "LongStorage": NUMPY["I64"],
    "IntStorage": NUMPY["I32"],
    "ShortStorage": NUMPY["I16"],
    "CharStorage": NUMPY["I8"],
    "ByteStorage": NUMPY["U8"],
    "BoolStorage": NUMPY["BOOL"],
}


def read_pickled(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Tensors by name, mapped and read-only; in nested dicts the name is "outer.inner".

    Numbers and strings in the file are left out. Blocks while it reads the archive's directory.

    Raises:
        ModelError: there is no such file, or it contains something other than tensors, numbers,
            strings, and dicts and lists of them.
    """
    file = user_path(path)
    try:
        with zipfile.ZipFile(file) as archive, file.open("rb") as opened:
            whole = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            entries = {entry.filename: entry for entry in archive.infolist()}
            (name,) = [x for x in entries if x.rsplit("/", 1)[-1] == "data.pkl"]
            with archive.open(name) as data:
                reader = _Reader(data, name.removesuffix("data.pkl"), entries, whole)
                found = reader.load()
    except ModelError:
        raise
    except Exception as error:  # bytes that are no pickle may raise any exception
        raise ModelError(f"{str(file)!r} is no file of PyTorch's tensors: {error}") from error
    tensors: dict[str, npt.NDArray[Any]] = {}
    _collect(found, "", tensors)
    return tensors


def _collect(value: Any, name: str, into: dict[str, npt.NDArray[Any]]) -> None:  # noqa: ANN401
    """Add the tensors in a value to ``into`` under their names."""
    if isinstance(value, np.ndarray):
        into[name] = value
    elif isinstance(value, dict):
        for key, inner in value.items():
            _collect(inner, f"{name}.{key}" if name else str(key), into)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _collect(inner, f"{name}.{i}" if name else str(i), into)


class _Reader(pickle.Unpickler):
    """An unpickler that accepts only the names in `find_class`."""

    def __init__(
        self,
        data: io.IOBase | Any,  # noqa: ANN401 as the archive gives it
        folder: str,
        entries: dict[str, zipfile.ZipInfo],
        whole: npt.NDArray[np.uint8],
    ) -> None:
        super().__init__(data)
        self._folder, self._entries, self._whole = folder, entries, whole

    def find_class(self, module: str, name: str, /) -> Any:  # noqa: ANN401 as pickle has it
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if module == "torch" and name in STORAGES:
            return _Kind(STORAGES[name])
        raise ModelError(
            f"the file names {module}.{name}; only tensors and plain containers are read"
        )

    def persistent_load(self, pid: Any, /) -> npt.NDArray[Any]:  # noqa: ANN401 as pickle has it
        what, kind, key, _, count = pid
        if what != "storage" or not isinstance(kind, _Kind):
            raise ModelError(f"the file refers to {what!r}, which is not the storage of a tensor")
        entry = self._entries[f"{self._folder}data/{key}"]
        begin = self._begin(entry)
        size = count * kind.dtype.itemsize
        if entry.compress_type != zipfile.ZIP_STORED or not 0 <= size <= entry.file_size:
            raise ModelError(
                f"the storage {key!r} does not have {count} elements: the file is damaged"
            )
        raw = self._whole[begin : begin + size]
        return (raw.copy() if begin % kind.dtype.itemsize else raw).view(kind.dtype)

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Where an entry's bytes begin: after its local header, whose last parts vary in length."""
        at = entry.header_offset
        name, extra = struct.unpack("<HH", self._whole[at + 26 : at + 30].tobytes())
        begin: int = at + 30 + name + extra
        if begin + entry.file_size > len(self._whole):
            raise ModelError("a storage reaches beyond the end of the file")
        return begin


class _Kind:
    """The element type of a storage."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype


class _Dict(OrderedDict[str, Any]):
    """A state dict; the attributes that torch gives it are dropped."""

    def __setstate__(self, state: object) -> None:
        """Drop the attributes."""


def _tensor(
    storage: npt.NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
    *_: object,
) -> npt.NDArray[Any]:  # fmt: skip
    """A tensor as a checked view of a storage; in torch, `_rebuild_tensor_v2` makes it."""
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ModelError(f"a tensor has the shape {shape} with the impossible strides {strides}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if 0 not in shape and last >= len(storage):
        raise ModelError(f"a tensor of the shape {shape} reaches beyond the end of its storage")
    size = storage.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        storage[offset:], shape, tuple(step * size for step in strides), writeable=False
    )


def _parameter(data: npt.NDArray[Any], *_: object) -> npt.NDArray[Any]:
    return data
