"""The layouts of tests/models, 16 times as wide, as GGUF files for architectures.py.

Extents from 16 on grow, and so do the metadata that name them; there are as many heads, layers and
experts as before. Not here: layouts whose extents are tied in another way (`UNEVEN`), measuring.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

import aggml

__all__ = ["UNEVEN", "measurable", "vocabulary", "write"]

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
WIDER: Final = 16
CTX: Final = 4096
#: llama.cpp has fixed sizes of gemma3n. Ranks of rwkv, and gemma4's embeddings of each layer, have
#: fewer than 16 elements, but matrices of several of them have more.
UNEVEN: Final = ("gemma3n", "gemma4", "rwkv6", "rwkv6-older", "rwkv7", "rwkv7-two-heads")
#: Layouts that need so many layers that they are large.
DEEP: Final = 27
SIZES: Final = (
    "embedding_length", "feed_forward_length", "vocab_size", "attention.key_length",
    "attention.value_length", "attention.key_length_mla", "attention.value_length_mla",
    "attention.key_length_swa", "attention.value_length_swa", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "rope.dimension_count", "rope.dimension_count_swa",
    "attention.kv_lora_rank", "attention.q_lora_rank", "ssm.inner_size", "kda.head_dim",
    "moe_latent_size", "rope.dimension_sections", "attention.sliding_window",
    "attention.indexer.key_length",
)  # fmt: skip


def _layouts() -> Any:  # a module of the tests
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    from models import random_models

    return random_models


def measurable() -> list[str]:
    """The layouts that can be widened, of decoders."""
    return [
        name
        for name, layout in _layouts().LAYOUTS.items()
        if name not in UNEVEN and layout.layers < DEEP
    ]


def vocabulary() -> int:
    """Tokens of a wider file."""
    return int(_layouts().VOCABULARY) * WIDER


def _metadata(name: str) -> dict[str, Any]:
    of = _layouts().LAYOUTS[name].architecture
    found = dict(_layouts().metadata_of(name))
    scan = f"{of}.ssm.group_count" in found
    sizes = [*SIZES, "ssm.state_size" if scan else "ssm.time_step_rank"]
    for key in (f"{of}.{size}" for size in sizes):
        told = found.get(key)
        if isinstance(told, list):
            found[key] = [x * WIDER for x in told]
        elif told is not None and told < CTX:
            found[key] = told * WIDER
    return found | {f"{of}.context_length": CTX}


def _wide(tensor: str, shape: tuple[int, ...], told: dict[str, Any], of: str) -> tuple[int, ...]:
    """The shape of a tensor in the wider file."""
    part = tensor.removesuffix(".weight").rpartition(".")[2]
    if "rope_" in tensor:
        return (shape[0] * WIDER,)
    heads = told.get(f"{of}.ssm.time_step_rank", 0)
    if f"{of}.ssm.group_count" in told and part == "ssm_in":  # its last rows are one of each head
        return (shape[0] - heads) * WIDER + heads, shape[1] * WIDER
    state = told.get(f"{of}.ssm.state_size")
    if state is not None and f"{of}.ssm.group_count" not in told:  # Mamba 1, whose states stay
        if part in ("ssm_a", "ssm_b_norm", "ssm_c_norm"):
            return (*(n * WIDER for n in shape[:-1]), shape[-1])
        if part == "ssm_x":
            return (shape[0] - 2 * state) * WIDER + 2 * state, shape[1] * WIDER
        if part in ("ssm_dt", "ssm_dt_norm"):
            return tuple(n * WIDER for n in shape)
    if part == "position_embd":
        return CTX, shape[1] * WIDER
    return tuple(n * WIDER if n >= WIDER else n for n in shape)


def write(path: Path, name: str, dtype: str) -> Path:
    """Write the GGUF file of a layout, with matrices of ``dtype`` and all else f32."""
    models = _layouts()
    layout, told = models.LAYOUTS[name], models.metadata_of(name)
    width, rng = models.WIDTH, np.random.default_rng(0)
    shapes = {"token_embd.weight": (models.VOCABULARY, width), "output_norm.weight": (width,)}
    shapes |= layout.shapes()
    # lfm2's last norm has the name token_embd_norm, that of olmo has no weights
    if layout.architecture == "olmo" or layout.architecture.startswith("lfm2"):
        del shapes["output_norm.weight"]
    with aggml.GGUFWriter(path) as writer:
        for key, value in (_metadata(name) | dict(models.NO_WORDS)).items():
            writer.add(key, value)
        for tensor, small in shapes.items():
            shape = _wide(tensor, small, told, layout.architecture)
            values: np.ndarray[Any, Any] = rng.standard_normal(shape, np.float32)
            if tensor.endswith("ssm_a"):
                values = -0.2 - np.abs(values)
            if "norm" in tensor or "rope_" in tensor:
                values = 1 + 0.2 * np.abs(values)
            is_matrix = len(shape) in (2, 3) and min(shape[-2:]) >= 32
            if is_matrix and not any(x in tensor for x in ("norm", "gate_inp", "position")):
                writer.add_tensor(tensor, aggml.quantize(values / shape[-1] ** 0.5, dtype), dtype)
            else:
                writer.add_tensor(tensor, values.astype(np.float32))
    return path
