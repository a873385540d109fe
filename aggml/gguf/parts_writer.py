"""GGUFPartsWriter: writes a model as several GGUF files, "model-00001-of-00003.gguf" and so on.

Here: which tensor goes to which part, and putting all parts in place at the end. Not here: one file
(writer.py), reading parts (parts.py).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from aggml.errors import InvalidArgument
from aggml.gguf.parts import NAME
from aggml.gguf.value_types import DEFAULT_ALIGNMENT
from aggml.gguf.writer import GGUFWriter
from aggml.process.numbers import Numbers
from aggml.process.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aggml.dtype import DType

__all__ = ["GGUFPartsWriter"]

#: split.count is a number of 16 bits.
MOST_PARTS: Final = (1 << 16) - 1
#: Bytes of a tensor's entry in a directory beside its name, and of the head of a part, at most.
ENTRY: Final = 64
HEAD: Final = 256
_numbers = Numbers()  # of the files beside


class GGUFPartsWriter:
    """Writes a model in parts: `add` all values, `plan`, `add_tensor_async` in order, `aclose`.

    The first part has all metadata. Parts are written under other names beside ``path`` and renamed
    when all of them are on disk, the first one last.

    Args:
        path: "model.gguf" for parts "model-00001-of-00003.gguf"; the name of a part stands for all.
        alignment: as of `GGUFWriter`.

    Attributes:
        paths: of the parts; known after `plan`.
    """

    def __init__(self, path: str | os.PathLike[str], *, alignment: int = DEFAULT_ALIGNMENT) -> None:
        told = user_path(path)
        match = NAME.fullmatch(told.name)
        self._stem = match[1] if match else told.name.removesuffix(".gguf")
        self._folder = told.parent
        self._alignment = alignment
        self._asides: list[Path] = []
        self._parts: list[list[str]] = []
        self._of: dict[str, int] = {}  # numbers of parts by names of tensors
        self._writer = self._open()
        self.paths: list[Path] = []

    def _open(self) -> GGUFWriter:
        """The writer of the next part, under another name."""
        name = f".{self._stem}.{os.getpid()}-{next(_numbers)}.part{len(self._asides)}"
        self._asides.append(self._folder / name)
        return GGUFWriter(self._asides[-1], alignment=self._alignment)

    def add(self, key: str, value: object, type: str | None = None) -> None:  # noqa: A002 as GGUF has it
        """Add a metadata value to the first part; as `GGUFWriter.add`."""
        self._writer.add(key, value, type)

    def plan(self, sizes: Mapping[str, int], most: int, *, no_tensor_first_split: bool) -> None:
        """Decide which tensors each part has.

        A part has at most ``most`` bytes, unless one tensor or the metadata alone has more. So the
        first part may have no tensors.

        Args:
            sizes: bytes of each tensor, in their order.
            most: bytes of a part.
            no_tensor_first_split: whether the first part has no tensors in any case.

        Raises:
            InvalidArgument: there would be too many parts.
        """
        full = HEAD + self._writer.nbytes_of_values
        parts: list[list[str]] = [[]]
        for name, size in sizes.items():
            more = size + -size % self._alignment + len(name.encode()) + ENTRY
            apart = no_tensor_first_split and len(parts) == 1
            begun = bool(parts[-1]) or len(parts) == 1
            if apart or (full + more > most and begun):
                parts.append([])
                full = HEAD
            parts[-1].append(name)
            full += more
        if len(parts) > MOST_PARTS:
            raise InvalidArgument(
                f"[GGUFPartsWriter] {most} bytes for a part give {len(parts)} parts, expected were "
                f"at most {MOST_PARTS}"
            )
        self._parts = parts
        self._of = {name: i for i, names in enumerate(parts) for name in names}
        n = len(parts)
        self.paths = [
            self._folder / f"{self._stem}-{i + 1:05}-of-{n:05}.gguf" for i in range(n)
        ]  # fmt: skip
        self._add_place(0)
        self._writer.add("split.tensors.count", len(sizes), "int32")

    def _add_place(self, number: int) -> None:
        self._writer.add("split.no", number, "uint16")
        self._writer.add("split.count", len(self._parts), "uint16")

    async def add_tensor_async(
        self,
        name: str,
        array: Any,  # noqa: ANN401 as of `GGUFWriter`
        dtype: DType | str | None = None,
        *,
        ne: Sequence[int] | None = None,
    ) -> None:
        """Add the next tensor, in the order of `plan`; as `GGUFWriter.add_tensor_async`."""
        while len(self._asides) <= self._of[name]:
            await self._writer.aclose()
            self._writer = self._open()
            self._add_place(len(self._asides) - 1)
        await self._writer.add_tensor_async(name, array, dtype, ne=ne)

    async def aclose(self) -> None:
        """Write the last part, and put all of them in place.

        Cancellation: after the piece under way; `abandon` removes what was written.
        """
        await self._writer.aclose()
        await anyio.to_thread.run_sync(self._place)

    def _place(self) -> None:
        for aside, path in reversed([*zip(self._asides, self.paths, strict=True)]):
            aside.replace(path)
        self._asides = []

    def abandon(self) -> None:
        """Remove what was written. Older parts stay as they are."""
        self._writer.abandon()
        for aside in self._asides:
            with suppress(FileNotFoundError):
                aside.unlink()
        self._asides = []
