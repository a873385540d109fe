"""A small llama of random weights as a GGUF file, to try the service with: what it says is noise.

Not here: real models; any llama, qwen2 or qwen3 GGUF will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

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


def write_small(path: Path, *, context: int = 4096, seed: int = 0) -> Path:
    """Write the model; 4 layers of width 256, f32."""
    random = np.random.default_rng(seed)
    names, kinds = tokens()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small-random-llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(names))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
