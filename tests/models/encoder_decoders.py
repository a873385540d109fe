"""Files of models like T5 with random weights: an encoder alone, or with a decoder.

Here: the files, and the texts for which results were recorded. Not here: the results
(reference_t5.npz, made by benchmarks/make_t5.py).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["KINDS", "decoded", "texts", "vocabulary", "write"]

VOCABULARY: Final = 320
WIDTH: Final = 64
HEADS: Final = 4
HEAD: Final = 16
INNER: Final = 96
BUCKETS: Final = 8
#: Layers of the decoder, whether nets have gates, whether there is a matrix for logits, and whether
#: each layer has a bias of its own.
KINDS: Final[Mapping[str, tuple[int, bool, bool, bool]]] = {
    "t5": (2, False, False, False),
    "t5-gated": (1, True, True, False),
    "t5-own": (2, True, True, True),
    "t5encoder": (0, True, False, False),
}


def texts() -> list[list[int]]:
    """Texts that the encoder reads; the longest reaches into the last buckets."""
    random = np.random.default_rng(3)
    return [random.integers(3, VOCABULARY, n).tolist() for n in (1, 7, 40, 150)]


def decoded() -> list[list[int]]:
    """The texts that the decoder writes, one for each of `texts`."""
    random = np.random.default_rng(4)
    return [[0, *random.integers(3, VOCABULARY, n).tolist()] for n in (0, 3, 150, 20)]


def _layer(at: str, *, cross: bool, gated: bool, own: bool) -> dict[str, tuple[int, ...]]:
    rows = HEADS * HEAD
    found: dict[str, tuple[int, ...]] = {}
    for part in ("attn", "cross_attn") if cross else ("attn",):
        found[f"{at}{part}_norm"] = (WIDTH,)
        found |= {f"{at}{part}_{x}": (rows, WIDTH) for x in "qkv"}
        found[f"{at}{part}_o"] = (WIDTH, rows)
    if own or at.endswith("blk.0."):
        found[f"{at}attn_rel_b"] = (BUCKETS, HEADS)
    found |= {f"{at}ffn_norm": (WIDTH,), f"{at}ffn_up": (INNER, WIDTH)}
    found[f"{at}ffn_down"] = (WIDTH, INNER)
    return found | ({f"{at}ffn_gate": (INNER, WIDTH)} if gated else {})


def vocabulary() -> dict[str, Any]:
    """Words by their letters, as T5's files have them."""
    tokens = ["<pad>", "</s>", "<unk>", *(f"▁{x}" for x in "abcdefgh")]
    tokens += [f"▁w{i}" for i in range(VOCABULARY - len(tokens))]
    return {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) / 100 for i in range(VOCABULARY)],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * (VOCABULARY - 3),
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip


def write(path: Path, kind: str, **changes: Any) -> Path:
    """Write a file; changes are further values of metadata, without the architecture."""
    decoders, gated, output, own = KINDS[kind]
    name = "t5encoder" if kind == "t5encoder" else "t5"
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, WIDTH)}
    for i in range(2):
        shapes |= _layer(f"enc.blk.{i}.", cross=False, gated=gated, own=own)
    shapes["enc.output_norm"] = (WIDTH,)
    for i in range(decoders):
        shapes |= _layer(f"dec.blk.{i}.", cross=True, gated=gated, own=own)
    if decoders:
        shapes["dec.output_norm"] = (WIDTH,)
    if output:
        shapes["output"] = (VOCABULARY, WIDTH)
    values: dict[str, Any] = {
        "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": INNER,
        "block_count": 2, "attention.head_count": HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6, "attention.relative_buckets_count": BUCKETS,
    }  # fmt: skip
    if decoders:
        values |= {"decoder_start_token_id": 0, "decoder_block_count": decoders}
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", name)
        for key, value in (values | changes).items():
            writer.add(f"{name}.{key}", value)
        for key, value in vocabulary().items():
            writer.add(key, value)
        for short, shape in shapes.items():
            random = np.random.default_rng(zlib.crc32(f"{kind} {short}".encode()))
            made = random.standard_normal(shape).astype(np.float32)
            if short.endswith("norm"):
                made = 1 + np.float32(0.2) * made
            elif not short.endswith("rel_b"):
                made = made / np.float32(np.sqrt(shape[-1]))
            writer.add_tensor(f"{short}.weight", made)
    return path
