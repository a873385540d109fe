"""Adapters of random numbers: GGUF files, folders of PEFT, and merged models. No tests here."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from models import random_models

import aggml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    Pairs = Mapping[str, tuple[F32, F32]]

ALPHA = 8.0


def pairs(
    shapes: Mapping[str, tuple[int, ...]], seed: str, *, rank: int = 3, strength: float = 0.5
) -> dict[str, tuple[F32, F32]]:
    """Matrices A (rank, columns) and B (rows, rank) for matrices of these shapes."""
    found = {}
    for name, (rows, columns) in shapes.items():
        random = np.random.default_rng(zlib.crc32(f"{seed} {name}".encode()))
        a = random.standard_normal((rank, columns)).astype(np.float32) / np.sqrt(columns)
        b = random.standard_normal((rows, rank)).astype(np.float32) * strength / np.sqrt(ALPHA)
        found[name] = a.astype(np.float32), b.astype(np.float32)
    return found


def shapes_of(
    layout: str, ends: Iterable[str] = ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down")
) -> dict[str, tuple[int, ...]]:
    """The matrices of a layout whose names end so."""
    wanted = tuple(f".{x}.weight" for x in ends)
    return {
        name: x.shape for name, x in random_models.weights(layout).items()
        if f".{name}".endswith(wanted)
    }  # fmt: skip


def write(
    path: Path, architecture: str, parts: Pairs, *, alpha: float | None = ALPHA,
    told: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write an adapter as llama.cpp has it."""
    metadata = {
        "general.type": "adapter", "general.architecture": architecture, "adapter.type": "lora",
        **(told or {}),
    }  # fmt: skip
    with aggml.GGUFWriter(path) as writer:
        for key, value in metadata.items():
            if value is not None:
                writer.add(key, value)
        if alpha is not None:
            writer.add("adapter.lora.alpha", float(alpha), "float32")
        for name, (a, b) in parts.items():
            writer.add_tensor(f"{name}.lora_a", a)
            writer.add_tensor(f"{name}.lora_b", b)
    return path


def merged(layout: str, parts: Pairs, *, scale: float = 1.0) -> dict[str, F32]:
    """The weights of a layout with an adapter in them."""
    found = random_models.weights(layout)
    for name, (a, b) in parts.items():
        rank = len(a)
        change = b.astype(np.float64) @ a.astype(np.float64) * (scale * ALPHA / rank)
        found[name] = (found[name] + change).astype(np.float32)
    return found


def write_model(path: Path, layout: str, weights: Mapping[str, F32], kind: str = "f32") -> Path:
    """Write a model of a layout with these weights; its matrices in a type."""
    types = random_models.LAYOUTS[layout].types
    with aggml.GGUFWriter(path) as writer:
        for key, value in random_models.metadata_of(layout).items():
            writer.add(key, value)
        writer.add("tokenizer.ggml.model", "no_vocab")
        for name, values in weights.items():
            own = next((t for end, t in types.items() if name.endswith(end)), None)
            if own is not None:
                writer.add_tensor(name, aggml.quantize(values, own), own)
            elif (
                kind != "f32" and values.ndim == 2 and "norm" not in name and "gate_inp" not in name
            ):
                writer.add_tensor(name, aggml.quantize(values, kind), kind)
            else:
                writer.add_tensor(name, values)
    return path


def write_folder(
    folder: Path, parts: Pairs, *, config: Mapping[str, Any] | None = None, prefix: bool = True
) -> Path:
    """Write a folder of PEFT; names are those of modules: "model.layers.0.self_attn.q_proj"."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    rank = max(next(iter(parts.values()))[0].shape[:1], default=0)
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", **(config or {})}
    (folder / "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")
    arrays = {}
    for module, (a, b) in parts.items():
        name = f"base_model.model.{module}" if prefix else module
        arrays[f"{name}.lora_A.weight"], arrays[f"{name}.lora_B.weight"] = a, b
    save_file(arrays, folder / "adapter_model.safetensors")
    return folder


def write_control(path: Path, directions: Mapping[int, F32]) -> Path:
    """Write a control vector as llama.cpp has it."""
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "controlvector")
        for layer, vector in directions.items():
            writer.add_tensor(f"direction.{layer}", vector)
    return path


EXAMPLES: dict[str, tuple[str, ...]] = {
    "llama": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    "qwen2": ("attn_q", "attn_output", "ffn_down"),
    "phi3": ("attn_qkv", "ffn_up"),
    "qwen3moe": ("attn_q", "attn_output", "ffn_gate_inp"),
    "gptneox": ("attn_qkv", "ffn_down"),
}


def example_adapter(path: Path, layout: str) -> Path:
    """The adapter with which llama.cpp's logits were recorded (benchmarks/make_adapters.py)."""
    parts = pairs(shapes_of(layout, EXAMPLES[layout]), "llama.cpp", rank=4)
    return write(path, random_models.metadata_of(layout)["general.architecture"], parts)


def example_directions(layers: int, width: int) -> dict[int, F32]:
    """The control vector with which they were recorded; layer 2 has none."""
    random = np.random.default_rng(5)
    return {
        layer: random.standard_normal(width).astype(np.float32)
        for layer in range(1, layers) if layer != 2
    }  # fmt: skip


def example_control(path: Path, layout: str) -> Path:
    """A file of `example_directions` for a layout."""
    told = random_models.metadata_of(layout)
    of = told["general.architecture"]
    layers, width = told[f"{of}.block_count"], told[f"{of}.embedding_length"]
    return write_control(path, example_directions(layers, width))
