"""Tiny llama models as GGUF files, and the same model in numpy, float64 and without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WIDTH: Final = 64
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = WIDTH // HEADS
INNER: Final = 96
LAYERS: Final = 2
EPS: Final = 1e-5
BASE: Final = 10000.0
FAVOUR: Final = 1.5  # how much a `decided` model prefers the favourite successor of a token
# Besides all bytes and some letters, the merged pieces; SentencePiece's scores decrease in this
# order.
WORDS: Final = ("he", "ll", "hell", "o", "hello", "wo", "rld", "world", "▁hello", "▁world", "ld")


def pieces() -> tuple[list[str], list[float], list[int]]:
    """The tokens, scores and types of a small SentencePiece vocabulary."""
    letters = sorted({*"abcdefghijklmnopqrstuvwxyz▁", *"".join(WORDS)})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters]
    scores = [0.0] * len(tokens)
    types = [2, 3, 3, *[6] * 256, *[1] * len(letters)]
    for i, word in enumerate(w for w in WORDS if w not in letters):
        tokens.append(word)
        scores.append(-float(i + 1))
        types.append(1)
    return tokens, scores, types


def weights(architecture: str, seed: int = 5) -> dict[str, NDArray[np.float32]]:
    """Random weights by GGUF's names, in numpy order."""
    random = np.random.default_rng(seed)
    vocabulary = len(pieces()[0])

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        made: NDArray[np.float32] = random.standard_normal((rows, columns)).astype(np.float32)
        return made / np.float32(np.sqrt(columns))

    def near(n: int, value: float) -> NDArray[np.float32]:
        return (value + 0.2 * random.standard_normal(n)).astype(np.float32)

    made = {
        "token_embd.weight": matrix(vocabulary, WIDTH) * 8,
        "output_norm.weight": near(WIDTH, 1),
    }
    if architecture == "llama":  # other architectures use the embeddings as output matrix
        made["output.weight"] = matrix(vocabulary, WIDTH)
    for i in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", HEAD * KV_HEADS, WIDTH),
            ("attn_v", HEAD * KV_HEADS, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ):
            made[f"blk.{i}.{name}.weight"] = matrix(rows, columns)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                made[f"blk.{i}.{name}.bias"] = near(rows, 0)
        made[f"blk.{i}.attn_norm.weight"] = near(WIDTH, 1)
        made[f"blk.{i}.ffn_norm.weight"] = near(WIDTH, 1)
        if architecture == "qwen3":
            made[f"blk.{i}.attn_q_norm.weight"] = near(HEAD, 1)
            made[f"blk.{i}.attn_k_norm.weight"] = near(HEAD, 1)
    return made


def decided(dtype: str, seed: int = 6) -> dict[str, NDArray[Any]]:
    """Weights of a llama with clear preferences; matrices as uint8 blocks of ``dtype``, or f32.

    With purely random weights the two best logits are often so near to each other that rounding to
    8 bits, which moves them by 0.02 of their spread in any program, changes their order. Here each
    token has a favourite successor, as in a trained model.
    """
    made = weights("llama", seed)
    embeddings = made["token_embd.weight"]
    after = np.random.default_rng(seed).permutation(len(embeddings))
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    made["output.weight"][after] += FAVOUR * embeddings / length
    if dtype == "f32":
        return dict(made)
    return {
        name: aggml.quantize(values, dtype) if values.ndim == 2 else values
        for name, values in made.items()
    }


def dequantized(made: dict[str, NDArray[Any]], dtype: str) -> dict[str, NDArray[Any]]:
    """The numbers that the `decided` weights represent."""
    row = aggml.DType.parse(dtype)
    return {
        name: aggml.dequantize(x, row, ne=(x.shape[1] // row.type_size * row.blck_size, len(x)))
        if x.dtype == np.uint8
        else x
        for name, x in made.items()
    }


def write(
    path: Path,
    architecture: str = "llama",
    *,
    vocabulary: bool = True,
    tensors: dict[str, NDArray[Any]] | None = None,
    dtype: str = "f32",
) -> Path:
    """Write a model file of `weights`, or of ``tensors``; uint8 tensors are blocks of ``dtype``."""
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", architecture)
        for key, value in {
            "block_count": LAYERS,
            "context_length": 512,
            "embedding_length": WIDTH,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": EPS,
            "rope.freq_base": BASE,
        }.items():
            writer.add(f"{architecture}.{key}", value)
        if vocabulary:
            tokens, scores, types = pieces()
            for key, of_tokens in {
                "model": "llama",
                "tokens": tokens,
                "scores": scores,
                "token_type": types,
                "bos_token_id": 1,
                "eos_token_id": 2,
            }.items():
                writer.add(f"tokenizer.ggml.{key}", of_tokens)
        for name, values in (tensors or weights(architecture)).items():
            writer.add_tensor(name, values, dtype if values.dtype == np.uint8 else None)
    return path


# -- the same model in numpy


def _norm(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    size: NDArray[Any] = np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    result: NDArray[Any] = x / size * weight
    return result


def _turn(x: NDArray[Any], neox: bool) -> NDArray[Any]:
    """Rotary position embedding of x (tokens, heads, HEAD)."""
    angle = np.arange(len(x))[:, None, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    y = np.empty_like(x)
    first = np.s_[..., : HEAD // 2] if neox else np.s_[..., 0::2]
    second = np.s_[..., HEAD // 2 :] if neox else np.s_[..., 1::2]
    y[first] = x[first] * np.cos(angle) - x[second] * np.sin(angle)
    y[second] = x[first] * np.sin(angle) + x[second] * np.cos(angle)
    return y


def logits(
    ids: list[int], architecture: str, made: dict[str, NDArray[Any]] | None = None
) -> NDArray[Any]:
    """The logits after each token (tokens, vocabulary), with `weights` or the weights ``made``."""
    made = made or dict(weights(architecture))
    w = {name: values.astype(np.float64) for name, values in made.items()}
    n, neox = len(ids), architecture != "llama"
    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):

        def linear(name: str, x: NDArray[Any], i: int = i) -> NDArray[Any]:
            return x @ w[f"blk.{i}.{name}.weight"].T + w.get(f"blk.{i}.{name}.bias", 0.0)

        h = _norm(x, w[f"blk.{i}.attn_norm.weight"])
        q = linear("attn_q", h).reshape(n, HEADS, HEAD)
        k = linear("attn_k", h).reshape(n, KV_HEADS, HEAD)
        v = linear("attn_v", h).reshape(n, KV_HEADS, HEAD)
        if architecture == "qwen3":
            q = _norm(q, w[f"blk.{i}.attn_q_norm.weight"])
            k = _norm(k, w[f"blk.{i}.attn_k_norm.weight"])
        q, k = _turn(q, neox), _turn(k, neox)
        k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
        scores += np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + linear("attn_output", np.einsum("hqk,khd->qhd", share, v).reshape(n, WIDTH))
        h = _norm(x, w[f"blk.{i}.ffn_norm.weight"])
        gate = linear("ffn_gate", h)
        x = x + linear("ffn_down", gate / (1 + np.exp(-gate)) * linear("ffn_up", h))
    head = w.get("output.weight", w["token_embd.weight"])
    result: NDArray[Any] = _norm(x, w["output_norm.weight"]) @ head.T
    return result
