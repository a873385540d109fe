"""Shards: the tensors of a folder by name, in one file or several.

Here: which files. Not here: the files themselves (safetensors.py, pickled.py), making GGUF's
tensors of them (folder.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.pickled import read_pickled
from aggml.models.checkpoints.safetensors import SafeTensors
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["Shards"]

#: Names of the files of weights, the preferred one first.
FILES: Final = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


#: Further files of weights, each with one matrix that is named after it: bge-m3 has them.
FURTHER: Final = ("sparse_linear", "colbert_linear")


class Shards:
    """The tensors of a folder.

    Args:
        folder: has weights in one of `FILES`, or in one safetensors file of another name.

    Attributes:
        files: the safetensors files, mapped.
        of: the safetensors file of each tensor; tensors of PyTorch's files are not in it.

    Raises:
        ModelError: there are no weights, a file is missing, two files have the same tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.files: list[SafeTensors] = []
        self.of: dict[str, SafeTensors] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        named, paths = _paths(folder)
        for path in paths:
            if path.suffix == ".safetensors":
                file = SafeTensors.open(path)
                self.files.append(file)
                self._add(dict.fromkeys(file.stored, file), self.of, path)
            else:
                self._add(read_pickled(path), self._arrays, path)
        for name in FURTHER:
            path = folder / f"{name}.pt"
            if path.is_file():
                head = {f"{name}.{part}": x for part, x in read_pickled(path).items()}
                self._add(head, self._arrays, path)
        for name, file_name in named.items():
            self._check_place(name, file_name)

    def _check_place(self, name: str, file_name: str) -> None:
        """Refuse an index that names a tensor which its file does not have.

        Raises:
            ModelError: the tensor is nowhere, or in another file.
        """
        found = self.of.get(name)
        if name not in self:
            raise ModelError(f"the index of files names {name!r}, but no file has that tensor")
        if found is not None and found.path.name != file_name:
            raise ModelError(
                f"the index of files says that {name!r} is in {file_name!r}, but it is in "
                f"{found.path.name!r}"
            )

    def _add(self, found: dict[str, Any], into: dict[str, Any], path: Path) -> None:
        twice = next((name for name in found if name in self), None)
        if twice is not None:
            raise ModelError(f"tensor {twice!r} is in {path.name!r} and in another file, too")
        into.update(found)

    def __contains__(self, name: str) -> bool:
        return name in self.of or name in self._arrays

    def names(self) -> list[str]:
        """The names of all tensors."""
        return [*self.of, *self._arrays]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A tensor, read-only."""
        file = self.of.get(name)
        return self._arrays[name] if file is None else file[name]


def _paths(folder: Path) -> tuple[dict[str, str], list[Path]]:
    """The files that hold the weights of a folder; and the file of each tensor by an index."""
    found = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if found is None:
        others = sorted(folder.glob("*.safetensors"))
        if len(others) != 1:
            raise ModelError(
                f"{str(folder)!r} has none of {', '.join(FILES)}, and {len(others)} other "
                "safetensors files instead of one"
            )
        return {}, others
    if found.suffix != ".json":
        return {}, [found]
    try:
        named = dict(json.loads(found.read_text(encoding="utf-8-sig"))["weight_map"])
        outside = [name for name in named.values() if "/" in name]
        paths = [folder / name for name in sorted({*named.values()})]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{str(found)!r} is no index of files: {error}") from error
    if outside:  # an index must not lead out of its folder
        raise ModelError(f"{str(found)!r} names {outside[0]!r}: not in the folder")
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise ModelError(f"{str(found)!r} names {missing or 'no file'}: not in the folder")
    return named, paths
