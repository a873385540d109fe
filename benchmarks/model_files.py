"""Models for the benchmarks as GGUF files in build/bench.

A llama of 514 million random weights, and all-MiniLM-L6-v2 from its package for llama.cpp.

Not here: who runs them (generation.py, llamacpp.py).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

import aggml
from benchmarks.models import minilm
from benchmarks.peers import model_folder, module, need
from benchmarks.roofline import CACHE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

BASE: Final = 512  # rows of random numbers; a matrix is made of them, turned by a different number


@dataclass(frozen=True)
class Shape:
    """A llama's hyperparameters, lengths in elements."""

    width: int = 1536
    layers: int = 16
    heads: int = 12
    kv_heads: int = 6
    inner: int = 4096
    vocabulary: int = 32000

    @property
    def head(self) -> int:
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) under GGUF's names."""
        kv = self.head * self.kv_heads
        found = {
            "token_embd": (self.vocabulary, self.width),
            "output": (self.vocabulary, self.width),
        }
        for i in range(self.layers):
            found |= {
                f"blk.{i}.attn_q": (self.width, self.width),
                f"blk.{i}.attn_k": (kv, self.width),
                f"blk.{i}.attn_v": (kv, self.width),
                f"blk.{i}.attn_output": (self.width, self.width),
                f"blk.{i}.ffn_gate": (self.inner, self.width),
                f"blk.{i}.ffn_up": (self.inner, self.width),
                f"blk.{i}.ffn_down": (self.width, self.inner),
            }
        return found

    def norms(self) -> list[str]:
        """Names of the vectors, all of the model's width."""
        blocks = range(self.layers)
        names = (f"blk.{i}.{part}_norm" for i in blocks for part in ("attn", "ffn"))
        return ["output_norm", *names]

    def streamed(self) -> int:
        """Weights that every token is multiplied by."""
        return sum(m * k for name, (m, k) in self.matrices().items() if name != "token_embd")


LARGE: Final = Shape()
SMALL: Final = Shape(width=512, layers=2, heads=4, kv_heads=2, inner=1024, vocabulary=2048)


def llama_file(dtype: str, shape: Shape = LARGE, *, vocabulary: bool = False) -> Path:
    """A file with all matrices of one type; made at the first call.

    Args:
        dtype: of the matrices.
        shape: of the model.
        vocabulary: with names for the tokens, each a word of its own, so that it can be served.

    Raises:
        MissingPeerError: the gguf package is not installed.
    """
    need("gguf")
    mark = hashlib.sha256(repr(asdict(shape)).encode()).hexdigest()[:8]
    words = "-words" * vocabulary
    name = f"llama-{shape.width}x{shape.layers}-{mark}-{dtype}{words}.gguf"
    return _made(name, lambda path: _write_llama(path, dtype, shape, vocabulary=vocabulary))


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """The file of that name, whole or not at all."""
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        try:
            write(made)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    return path


def _write_llama(path: Path, dtype: str, shape: Shape, *, vocabulary: bool) -> None:
    gguf = module("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.head)
    writer.add_vocab_size(shape.vocabulary)
    if vocabulary:
        names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
        names += [f"\u2581w{i}" for i in range(len(names), shape.vocabulary)]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(names)
        writer.add_token_scores([0.0] * len(names))
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(names) - 259)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    else:
        writer.add_tokenizer_model("no_vocab")
    _finish(writer, ((f"{name}.weight", x) for name, x in tensors(dtype, shape)), dtype)


def _finish(writer: Any, tensors: Iterable[tuple[str, np.ndarray[Any, Any]]], dtype: str) -> None:
    """Add tensors, of which uint8 ones are rows of ``dtype``, and write everything."""
    raw = module("gguf").GGMLQuantizationType(aggml.DType.parse(dtype).value)
    for name, data in tensors:
        writer.add_tensor(name, data, raw_dtype=raw if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(dtype: str, shape: Shape) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Names and random values: matrices as rows of bytes (f32 as they are), vectors of ones."""
    base: dict[int, np.ndarray[Any, Any]] = {}
    for i, (name, (m, k)) in enumerate(shape.matrices().items()):
        if k not in base:
            rows = np.random.default_rng(k).standard_normal((BASE, k), np.float32)
            base[k] = stored(rows / np.float32(np.sqrt(k)), dtype)
        rows = np.roll(base[k], 37 * i, axis=0)
        yield name, np.ascontiguousarray(np.tile(rows, (-(-m // BASE), 1))[:m])
    for name in shape.norms():
        yield name, np.ones(shape.width, np.float32)


def stored(rows: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Rows of f32 in another type: bytes, but for f32 and f16."""
    if dtype == "f16":
        return rows.astype(np.float16)
    if dtype == "f32":
        return rows
    if dtype == "bf16":
        return rows.astype(ml_dtypes.bfloat16).view(np.uint8)
    return aggml.quantize(rows, dtype)


# -- all-MiniLM-L6-v2

_PARTS: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def minilm_file(dtype: str) -> Path:
    """The package's weights under llama.cpp's names, matrices of one type; made at the first call.

    Raises:
        MissingPeerError: the gguf package or the model's package is not installed.
    """
    need("gguf")
    weights = minilm.read_safetensors(model_folder() / "model.safetensors")
    return _made(f"minilm-{dtype}.gguf", lambda path: _write_minilm(path, dtype, weights))


def _write_minilm(path: Path, dtype: str, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
    gguf = module("gguf")
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(minilm.LAYERS)
    writer.add_context_length(minilm.POSITIONS)
    writer.add_embedding_length(minilm.WIDTH)
    writer.add_feed_forward_length(minilm.INNER)
    writer.add_head_count(minilm.HEADS)
    writer.add_layer_norm_eps(minilm.EPS)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    writer.add_vocab_size(len(weights["embeddings.word_embeddings.weight"]))
    writer.add_tokenizer_model("no_vocab")
    names = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
    }
    for i in range(minilm.LAYERS):
        for ours, theirs in _PARTS.items():
            names[f"encoder.layer.{i}.{ours}"] = f"blk.{i}.{theirs}"
    found = []
    for name, theirs in names.items():
        for part in ("weight", "bias"):
            data = weights.get(f"{name}.{part}")
            if data is None:
                continue
            matrix = theirs.startswith("blk") and data.ndim == 2
            made = stored(np.ascontiguousarray(data), dtype) if matrix else data
            found.append((f"{theirs}.{part}", made))
    _finish(writer, found, dtype)
