"""Hugging Face folders with random weights, one for each sort of folder that can be read.

Here: config.json, and the values of each tensor, made from its name. Names and shapes were recorded
(checkpoints.json, made by benchmarks/make_checkpoints.py from transformers' own models). Not here:
the expected results (reference_checkpoints.npz).
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
#: Models of gemma that do not add 1 to the weights of norms.
WHOLE_NORMS: Final = ("gemma3n", "gemma3n-active", "gemma4")
KINDS: Final = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def cases() -> dict[str, dict[str, Any]]:
    """For each sort of folder its "config", and its "tensors": name -> shape."""
    found: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="ascii"))
    return found


def values(case: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random values of a tensor. Norms are near 1; near 0 if the model adds 1 to them."""
    random = np.random.default_rng(zlib.crc32(f"{case} {name}".encode()))
    made = random.standard_normal(shape).astype(np.float32)
    if "norm" in name.lower() or "_ln." in name or ".ln_" in name:
        from_one = (
            case.startswith(("gemma", "qwen3next", "qwen35"))
            and case not in WHOLE_NORMS
            and "linear_attn." not in name
        )
        first = 0.0 if from_one or name.endswith("bias") else 1.0
        if case in WHOLE_NORMS and name.endswith(("q_norm.weight", "k_norm.weight")):
            first = 0.5  # products of queries and keys are not scaled
        return (np.float32(first) + np.float32(0.2) * made).astype(np.float32)
    if "act_fn." in name:  # parameters of xIELU, two of which are the same everywhere
        fixed = {"beta": 0.5, "eps": -1e-6}.get(name.rpartition(".")[2])
        return (0.3 * made if fixed is None else np.full(shape, fixed)).astype(np.float32)
    if name.endswith("layer_scalar"):
        return (1 + np.float32(0.2) * made).astype(np.float32)
    if "bias" in name or name.endswith("sinks"):
        return made * np.float32(0.3)
    if "experts" in name and name.endswith("proj"):  # shape (experts, columns, rows)
        return made / np.float32(np.sqrt(shape[-2]))
    scale = 4.0 if "embed" in name or "position" in name else 1.0
    return made * np.float32(scale / np.sqrt(shape[-1]))


def weights(case: str, tensors: Mapping[str, list[int]]) -> dict[str, NDArray[np.float32]]:
    """All tensors of a folder."""
    return {name: values(case, name, tuple(shape)) for name, shape in tensors.items()}


def write(
    folder: Path,
    case: str,
    *,
    kind: str = "f32",
    shards: int = 1,
    told: Any = None,
) -> Path:
    """Write a folder.

    Args:
        folder: made if it does not exist.
        case: a key of `cases`.
        kind: of the weights: f32, f16 or bf16.
        shards: over how many files they are spread.
        told: "config" and "tensors"; None: those of the case.
    """
    told = cases()[case] if told is None else told
    made = {name: x.astype(KINDS[kind]) for name, x in weights(case, told["tensors"]).items()}
    return save(folder, told["config"], made, shards=shards)


def save(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], *, shards: int = 1
) -> Path:
    """Write a folder with these tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # an array of no dimensions would become one of one
    whole = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in tensors.items()}
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
