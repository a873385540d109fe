"""Adapters in GGUF files: reading one, and the checks that adapters of all formats need.

``general.type`` is "adapter", ``adapter.type`` is "lora"; for each matrix NAME that changes there
are NAME.lora_a and NAME.lora_b, whose product is multiplied by ``adapter.lora.alpha`` / rank. Not
here: folders (peft.py), control vectors (control_vectors.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml
from aggml.gguf import open_gguf
from aggml.models.adapters.low_rank import LowRank
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from aggml import Tensor
    from aggml.gguf import GGUFFile, GGUFParts
    from aggml.models.adapters.low_rank import F32

__all__ = ["check_fits", "elements", "open_file", "read_adapter_file", "scale_of"]

ENDS: Final = (".lora_a", ".lora_b")


def open_file(path: Path, what: str) -> GGUFFile | GGUFParts:
    """Open a GGUF file; ``what`` says what it should be.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return open_gguf(path)
    except (OSError, aggml.AggmlError) as error:
        raise ModelError(f"cannot open the {what} {str(path)!r}: {error}") from error


def elements(file: GGUFFile | GGUFParts, name: str) -> F32:
    """A tensor's elements, in numpy's order."""
    tensor = file.tensors[name]
    try:
        found = aggml.dequantize(file.data(name), tensor.dtype, tensor.ne)
    except aggml.AggmlError as error:
        raise ModelError(f"tensor {name!r} cannot be read: {error}") from error
    return found.reshape(tensor.shape)


def scale_of(where: str, alpha: Any, rank: int, *, rooted: bool = False) -> float:  # noqa: ANN401
    """What the product of two matrices is multiplied by: alpha / rank, or alpha / sqrt(rank).

    Args:
        where: the file and the name of alpha, for messages.
        alpha: as the file has it.
        rank: of the matrices.
        rooted: whether it is divided by the square root.

    Raises:
        ModelError: ``alpha`` is no number, or 0: the adapter would change nothing.
    """
    good = isinstance(alpha, (int, float, np.number)) and not isinstance(alpha, bool)
    if not good or not math.isfinite(alpha) or alpha == 0:
        raise ModelError(f"{where} is {alpha!r}, expected a number other than 0")
    return float(alpha) / (math.sqrt(rank) if rooted else rank)


def read_adapter_file(path: Path, architecture: str) -> dict[str, LowRank]:
    """The changes of an adapter by the names of the matrices. Blocks meanwhile.

    Args:
        path: a GGUF file.
        architecture: of the model.

    Raises:
        ModelError: it cannot be read, is no LoRA adapter, or is one of another architecture; a
            tensor is missing or of no use.
    """
    where = f"the adapter {str(path)!r}"
    with open_file(path, "adapter") as file:
        told = file.metadata
        for key, wanted in (
            ("general.type", "adapter"), ("adapter.type", "lora"),
            ("general.architecture", architecture),
        ):  # fmt: skip
            if told.get(key) != wanted:
                raise ModelError(f"{where} has {key} = {told.get(key)!r}, expected was {wanted!r}")
        if "adapter.alora.invocation_tokens" in told:
            raise ModelError(
                f"{where} has adapter.alora.invocation_tokens: adapters that begin in the middle "
                "of a prompt are not supported"
            )
        names: dict[str, None] = {}
        for name in file.tensors:
            if not name.endswith(ENDS):
                raise ModelError(
                    f"{where} has the tensor {name!r}, which is neither a lora_a nor a lora_b"
                )
            names[name[: -len(ENDS[0])]] = None
        if not names:
            raise ModelError(f"{where} has no tensors")
        found = {}
        for name in names:
            for end in ENDS:
                if name + end not in file.tensors:
                    raise ModelError(f"{where} has no tensor {name + end!r}, the other of a pair")
            found[name] = _pair(where, file, name, told.get("adapter.lora.alpha"))
        return found


def _pair(
    where: str,
    file: GGUFFile | GGUFParts,
    name: str,
    alpha: Any,  # noqa: ANN401 as the file has it
) -> LowRank:
    a, b = (elements(file, name + end) for end in ENDS)
    if a.ndim != 2 or b.ndim != 2 or not len(a):
        raise ModelError(
            f"{where}: {name}.lora_a {list(a.shape)} and .lora_b {list(b.shape)} are no matrices, "
            "so this tensor cannot take an adapter"
        )
    if b.shape[1] != len(a):
        raise ModelError(f"{where}: {name}.lora_a has the rank {len(a)}, .lora_b has {b.shape[1]}")
    if alpha is None:  # then llama.cpp, whose format this is, does not scale either
        return LowRank(a, b)
    return LowRank(a, b * np.float32(scale_of(f"{where}: adapter.lora.alpha", alpha, len(a))))


def check_fits(
    where: str,
    adapter: Mapping[str, LowRank],
    tensors: Mapping[str, Tensor],
    able: Collection[str],
    architecture: str,
) -> None:
    """Check that the matrices which an adapter changes are there, can be changed and fit.

    Args:
        where: the adapter, for messages.
        adapter: its changes.
        tensors: of the model.
        able: names of the matrices that can take an adapter.
        architecture: of the model.

    Raises:
        ModelError: the first matrix that does not fit, by its name.
    """
    for name, change in adapter.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise ModelError(f"{where} changes {name!r}, which the model does not have")
        if name not in able:
            kinds = dict.fromkeys(x.removesuffix(".weight").rpartition(".")[2] for x in able)
            raise ModelError(
                f"{where} changes {name!r}, which cannot take an adapter; in {architecture} these "
                f"can: {', '.join(sorted(kinds))}"
            )
        rows, columns, rank = len(change.b), change.a.shape[1], len(change.a)
        if (columns, rows) != tensor.ne[:2] or not rank:
            raise ModelError(
                f"{where} is for a matrix {name!r} of {rows} rows and {columns} columns, with the "
                f"rank {rank}; the model's has {tensor.ne[1]} rows and {tensor.ne[0]} columns"
            )
        for part, values in (("A", change.a), ("B", change.b)):
            if not np.isfinite(values).all():
                raise ModelError(f"{where} has NaN or infinity in the matrix {part} of {name!r}")
