"""Folders of Hugging Face with random weights, one for each kind that an architecture is read from.

Here: config.json, and values of each tensor from its name. Names and shapes were recorded
(checkpoints.json, made by benchmarks/make_checkpoints.py from transformers' own models). Not here:
what they must give (reference_checkpoints.npz).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FOLDER: Final = Path(__file__).resolve().parent
RECORDED: Final = FOLDER / "checkpoints.json"
KINDS: Final = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def cases() -> dict[str, dict[str, Any]]:
    """Of each kind of folder "config" and "tensors": shapes by name."""
    found: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="ascii"))
    return found


def values(case: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random values of a tensor; norms near 1, and of those that count from 1 near 0."""
    random = np.random.default_rng(zlib.crc32(f"{case} {name}".encode()))
    made = random.standard_normal(shape).astype(np.float32)
    if "norm" in name.lower() or "_ln." in name or ".ln_" in name:
        from_one = case.startswith(("gemma", "qwen3next")) and "linear_attn." not in name
        first = 0 if from_one or name.endswith("bias") else 1
        return (first + np.float32(0.2) * made).astype(np.float32)
    if "bias" in name or name.endswith("sinks"):
        return made * np.float32(0.3)
    if "experts" in name and name.endswith("proj"):  # columns first
        return made / np.float32(np.sqrt(shape[-2]))
    scale = 4.0 if "embed" in name or "position" in name else 1.0
    return made * np.float32(scale / np.sqrt(shape[-1]))


def weights(case: str, tensors: Mapping[str, list[int]]) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a folder."""
    return {name: values(case, name, tuple(shape)) for name, shape in tensors.items()}


def write(
    folder: Path,
    case: str,
    *,
    kind: str = "f32",
    shards: int = 1,
    told: Any = None,
) -> Path:
    """A folder of one kind.

    Args:
        folder: made if it is not there.
        case: of `cases`.
        kind: of the weights: f32, f16 or bf16.
        shards: files that they are spread over.
        told: of the case; None: as recorded.
    """
    told = cases()[case] if told is None else told
    made = {name: x.astype(KINDS[kind]) for name, x in weights(case, told["tensors"]).items()}
    return save(folder, told["config"], made, shards=shards)


def save(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], *, shards: int = 1
) -> Path:
    """A folder of these tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    whole = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    if shards == 1:
        save_file(whole, folder / "model.safetensors")
        return folder
    where: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(whole.items())[i::shards])
        save_file(part, folder / file)
        where |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
