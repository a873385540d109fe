"""A small llama of random weights as a GGUF file, to try the service with: its text is noise.

Not here: real models; any llama, qwen2 or qwen3 GGUF will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["tokens", "write_small"]

WIDTH: Final = 256
LAYERS: Final = 4
HEADS: Final = 8
KV_HEADS: Final = 4
INNER: Final = 768
SPACE: Final = "\u2581"


def tokens() -> tuple[list[str], list[int]]:
    """A vocabulary for SentencePiece: every byte, and printable characters; with their types."""
    letters = [SPACE, *map(chr, range(33, 127))]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters]
    return names, [2, 3, 3, *[6] * 256, *[1] * len(letters)]


def write_small(
    path: Path,
    *,
    context: int = 4096,
    seed: int = 0,
    name: str = "small-random-llama",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model; 4 layers of width 256, f32.

    Args:
        path: of the file.
        context: positions of a sequence.
        seed: of the weights.
        name: of the model.
        metadata: further keys of the file.
    """
    random = np.random.default_rng(seed)
    names, kinds = tokens()
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "llama")
        writer.add("general.name", name)
        for key, value in {
            "block_count": LAYERS,
            "context_length": context,
            "embedding_length": WIDTH,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
        }.items():
            writer.add(f"llama.{key}", value)
        for key, of_tokens in {
            "model": "llama",
            "tokens": names,
            "scores": [0.0] * len(names),
            "token_type": kinds,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }.items():
            writer.add(f"tokenizer.ggml.{key}", of_tokens)

        for key, value in (metadata or {}).items():
            writer.add(key, value)

        def add(name: str, *shape: int) -> None:
            values = random.standard_normal(shape).astype(np.float32)
            values = values / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.1 * values
            writer.add_tensor(f"{name}.weight", values.astype(np.float32))

        kv = WIDTH // HEADS * KV_HEADS
        add("token_embd", len(names), WIDTH)
        add("output_norm", WIDTH)
        add("output", len(names), WIDTH)
        for i in range(LAYERS):
            add(f"blk.{i}.attn_norm", WIDTH)
            add(f"blk.{i}.attn_q", WIDTH, WIDTH)
            add(f"blk.{i}.attn_k", kv, WIDTH)
            add(f"blk.{i}.attn_v", kv, WIDTH)
            add(f"blk.{i}.attn_output", WIDTH, WIDTH)
            add(f"blk.{i}.ffn_norm", WIDTH)
            add(f"blk.{i}.ffn_gate", INNER, WIDTH)
            add(f"blk.{i}.ffn_up", INNER, WIDTH)
            add(f"blk.{i}.ffn_down", WIDTH, INNER)
    return path
