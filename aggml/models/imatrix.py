"""Importance matrices: how much each column of a weight matters, as llama.cpp measures it.

Here: reading its files, the older form and the one in GGUF. Not here: quantizing with them
(converting.py), measuring
(measuring.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml
from aggml import GGUFFile
from aggml.models.errors import ModelError
from aggml.process.paths import user_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["COUNTS", "SUMS", "read_imatrix"]

SUMS: Final = ".in_sum2"
COUNTS: Final = ".counts"


def read_imatrix(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[np.float32]]:
    """Weights of columns by names of tensors: (columns,), or (experts, columns) for experts.

    Blocks while it reads.

    Raises:
        ModelError: the file cannot be read, or is no importance matrix.
    """
    file = user_path(path)
    try:
        with file.open("rb") as opened:
            is_gguf = opened.read(4) == b"GGUF"
        found = _newer(file) if is_gguf else _older(file.read_bytes())
        _check(found)
        return found
    except struct.error as error:
        raise ModelError(
            f"cannot read the importance matrix {str(file)!r}: it is neither a .dat nor a .gguf "
            "of llama.cpp"
        ) from error
    except (OSError, ValueError, aggml.AggmlError) as error:
        raise ModelError(f"cannot read the importance matrix {str(file)!r}: {error}") from error


def _check(found: dict[str, npt.NDArray[np.float32]]) -> None:
    """Refuse weights that no measuring gives: they are means of squares."""
    for name, weights in found.items():
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"column {at[-1]}" if len(at) == 1 else f"column {at[-1]} of expert {at[0]}"
            raise ValueError(
                f"the weight of {name!r} in {place} is {weights[at]}, expected was a finite "
                "number from 0 on"
            )


def _newer(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """A GGUF file: for each tensor sums of squares, and how many values were summed."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    with GGUFFile.open(path) as file:

        def values(name: str) -> npt.NDArray[np.float32]:
            tensor = file.tensors[name]
            return file.data(name).view(np.float32).reshape(tensor.ne[1], tensor.ne[0])

        for name in file.tensors:
            stem = name.removesuffix(SUMS)
            if stem != name and stem + COUNTS in file.tensors:
                sums, counts = values(name), values(stem + COUNTS).reshape(-1, 1)
                # Nothing was measured for an expert that was never used: its columns weigh 1 each.
                means = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
                found[stem] = means[0] if len(means) == 1 else means
    if not found:
        raise ValueError("it has no tensors of sums")
    return found


def _older(raw: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """The older form: the number of entries, then the entries.

    Each has the length of its name, the name, the number of calls, the number of values, and the
    values.
    """
    found: dict[str, npt.NDArray[np.float32]] = {}
    at = 0

    def integer() -> int:
        nonlocal at
        (value,) = struct.unpack_from("<i", raw, at)
        at += 4
        if value < 0:
            raise ValueError(f"the count at byte {at - 4} is {value}")
        return int(value)

    for _ in range(integer()):
        length = integer()
        name = raw[at : at + length].decode()
        at += length
        calls, count = integer(), integer()
        if at + 4 * count > len(raw):
            raise ValueError(f"the entry of {name!r} reaches beyond the end of the file")
        values: Any = np.frombuffer(raw, "<f4", count, at)
        at += 4 * count
        found[name] = (values / max(calls, 1)).astype(np.float32)
    if not found:
        raise ValueError("it has no entries")
    return found
