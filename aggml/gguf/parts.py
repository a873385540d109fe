"""A model in several GGUF files: "model-00001-of-00003.gguf" and so on, read as one.

Here: finding the parts, and GGUFParts, which has the interface of a GGUFFile. Not here: one file
(file.py), writing
parts (parts_writer.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self

from aggml.errors import InvalidState
from aggml.gguf.file import GGUFFile
from aggml.gguf.header import GGUFError
from aggml.process.paths import user_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from aggml.backend import Backend
    from aggml.backend.backend import Device
    from aggml.memory.buffer import Buffer
    from aggml.tensor import Tensor

__all__ = ["SPLIT_KEYS", "GGUFParts", "open_gguf"]

#: The keys that say which part of how many a file is.
SPLIT_KEYS: Final = ("split.no", "split.count", "split.tensors.count")
NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def open_gguf(path: str | os.PathLike[str], *, mmap: bool = True) -> GGUFFile | GGUFParts:
    """Open a GGUF file; if it is a part of a model, the other parts, too. Blocks meanwhile.

    Args:
        path: a file, or any part of a model in several files.
        mmap: as for `GGUFFile.open`.

    Raises:
        GGUFError: as for `GGUFFile.open`; a part is missing or belongs to another model.
        OSError: a file cannot be read.
    """
    file = GGUFFile.open(path, mmap=mmap)
    count = file.metadata.get("split.count", 1)
    if count in (0, 1) and not isinstance(count, bool):
        return file
    with file:  # each part is opened once more, in its order
        names = _names(file, count)
    return GGUFParts._of(user_path(path), names, mmap=mmap)


def _names(file: GGUFFile, count: object) -> list[Path]:
    """The paths of all parts of the model to which a file belongs."""
    place = f"[open_gguf] {str(file.path)!r}"
    if not isinstance(count, int) or isinstance(count, bool) or not 1 < count <= 99999:
        raise GGUFError(f"{place}: split.count is {count!r}, expected was a number from 1 to 99999")
    match = NAME.fullmatch(file.path.name)
    number = file.metadata.get("split.no")
    if match is None or int(match[3]) != count:
        raise GGUFError(
            f"{place}: split.count is {count}, so its name should end in "
            f"'-00001-of-{count:05}.gguf' or the like: without such names the other parts cannot "
            "be found"
        )
    if number != int(match[2]) - 1 or isinstance(number, bool):
        raise GGUFError(
            f"{place}: split.no is {number!r}, but by its name it is part {int(match[2])}"
        )
    names = [file.path.with_name(f"{match[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    missing = [name.name for name in names if not name.is_file()]
    if missing:
        raise GGUFError(
            f"{place}: it is part {int(match[2])} of {count}, and {len(missing)} other parts are "
            f"missing, the first is {missing[0]!r}"
        )
    return names


class GGUFParts:
    """The open parts of a model: `open_gguf` makes it.

    Attributes:
        path: the part that was opened.
        version, alignment, metadata, types: of the first part, as for `GGUFFile`.
        tensors: of all parts, in order.
    """

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Any]
    types: dict[str, str]
    tensors: dict[str, Tensor]
    parts: list[GGUFFile]
    _part: dict[str, GGUFFile]

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidState("[GGUFParts] parts are opened by open_gguf")

    @classmethod
    def _of(cls, path: Path, names: list[Path], *, mmap: bool) -> Self:
        self = object.__new__(cls)
        self.path, self.parts, self._part, self.tensors = path, [], {}, {}
        try:
            for i, name in enumerate(names):
                self.parts.append(GGUFFile.open(name, mmap=mmap))
                self._add(self.parts[-1], i, len(names))
            first = self.parts[0]
            told = first.metadata.get("split.tensors.count")
            if told is not None and told != len(self.tensors):
                raise GGUFError(
                    f"[open_gguf] {str(first.path)!r}: split.tensors.count is {told!r}, but the "
                    f"parts have {len(self.tensors)} tensors"
                )
        except BaseException:
            self.close()
            raise
        self.version, self.alignment = first.version, first.alignment
        self.metadata, self.types = first.metadata, first.types
        return self

    def _add(self, part: GGUFFile, number: int, count: int) -> None:
        place = f"[open_gguf] {str(part.path)!r}"
        for key, wanted in (("split.no", number), ("split.count", count)):
            if part.metadata.get(key) != wanted:
                raise GGUFError(
                    f"{place}: {key} is {part.metadata.get(key)!r}, expected was {wanted}"
                )
        for name in part.tensors:
            if name in self._part:
                raise GGUFError(
                    f"{place}: tensor {name!r} is in {self._part[name].path.name!r}, too"
                )
            self._part[name] = part
        self.tensors |= part.tensors

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(part.nbytes for part in self.parts)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, as for `GGUFFile.data`."""
        return self._part.get(name, self.parts[0]).data(name)

    def _names_by_part(self, names: Iterable[str] | None) -> list[tuple[GGUFFile, list[str]]]:
        wanted = [*(self.tensors if names is None else dict.fromkeys(names))]
        by: dict[int, list[str]] = {}
        for name in wanted:
            part = self._part.get(name, self.parts[0])  # which refuses a name that is unknown
            by.setdefault(self.parts.index(part), []).append(name)
        return [(self.parts[i], found) for i, found in by.items()]

    def map(self, device: Device, names: Iterable[str] | None = None) -> list[Buffer]:
        """Place tensors without a copy, as for `GGUFFile.map`; a buffer for each part."""
        buffers: list[Buffer] = []
        try:
            for part, found in self._names_by_part(names):
                buffers.append(part.map(device, found))
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        return buffers

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Buffer]:
        """Copy tensors to a backend, as for `GGUFFile.load`; a buffer for each part.

        Cancellation: stops after the pieces that are queued; no tensor is placed.
        """
        groups = self._names_by_part(names)
        total = sum(self.tensors[name].nbytes for _, found in groups for name in found)
        done = 0
        buffers: list[Buffer] = []

        def report(part: int, _: int) -> None:
            if progress is not None:
                progress(done + part, total)

        try:
            for part, found in groups:
                buffers.append(await part.load(backend, names=found, progress=report))
                done += sum(self.tensors[name].nbytes for name in found)
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        return buffers

    def close(self) -> None:
        """Release the mappings of all parts."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<GGUFParts {self.path.name!r}, {len(self.parts)} parts, {len(self.tensors)} tensors "
            f"of {self.nbytes} bytes>"
        )
