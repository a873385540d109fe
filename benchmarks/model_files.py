"""Models for the benchmarks as GGUF files in build/bench.

A llama of 514 million random weights, and all-MiniLM-L6-v2 from its package for llama.cpp.

Not here: the programs that run them (generation.py, llamacpp.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

import aggml
from aggml.models.checkpoints import SafeTensors
from benchmarks.peers import model_folder
from benchmarks.roofline import CACHE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

MEAN: Final = 1  # llama.cpp's number of mean pooling
BASE: Final = 512  # random rows; each matrix repeats them, beginning at another row


@dataclass(frozen=True)
class Shape:
    """A llama's hyperparameters, lengths in elements."""

    width: int = 1536
    layers: int = 16
    heads: int = 12
    kv_heads: int = 6
    inner: int = 4096
    vocabulary: int = 32000
    tied: bool = False  # token embeddings are the weights of the output, too

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def output(self) -> str:
        """The name of the matrix that computes logits."""
        return "token_embd" if self.tied else "output"

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of each matrix, by GGUF's name."""
        kv = self.head * self.kv_heads
        found = {"token_embd": (self.vocabulary, self.width)}
        if not self.tied:
            found["output"] = (self.vocabulary, self.width)
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
        """The names of the vectors; all have the model's width."""
        blocks = range(self.layers)
        names = (f"blk.{i}.{part}_norm" for i in blocks for part in ("attn", "ffn"))
        return ["output_norm", *names]

    def streamed(self) -> int:
        """How many weights every token is multiplied by."""
        return sum(m * k for name, (m, k) in self.matrices().items() if self.multiplies(name))

    def multiplies(self, matrix: str) -> bool:
        """Whether every token is multiplied by this matrix."""
        return matrix != "token_embd" or self.tied


# The type of most matrices in a file that llama.cpp's quantizer calls by this name. Files of these
# names are mixtures: `type_of` knows which matrices get another type.
MIXTURES: Final = {
    "Q4_0": "q4_0", "Q8_0": "q8_0", "IQ4_XS": "iq4_xs", "Q4_K_M": "q4_K", "Q5_K_M": "q5_K",
    "Q6_K": "q6_K",
}  # fmt: skip
# If rows are no multiple of 256, the quantizer writes these in place of types with blocks of 256.
FALLBACKS: Final = {"q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0", "iq4_xs": "iq4_nl"}


def type_of(matrix: str, dtype: str, shape: Shape) -> str:
    """The type of a matrix (GGUF name without ".weight") in a file of a type or of a mixture."""
    if dtype not in MIXTURES:
        return dtype
    found = _of_mixture(matrix, dtype, shape)
    odd = shape.matrices()[matrix][1] % 256 != 0
    if matrix == shape.output and odd:
        return "q8_0"
    return FALLBACKS.get(found, found) if odd else found


def _of_mixture(matrix: str, dtype: str, shape: Shape) -> str:
    """The type if rows are a multiple of 256: the rules of llama.cpp for models below 70B."""
    most = MIXTURES[dtype]
    if matrix == shape.output:
        return "q8_0" if most == "q8_0" else "q6_K"
    if not matrix.endswith(("attn_v", "ffn_down")):
        return most
    layer, eighth = int(matrix.split(".")[1]), shape.layers // 8
    values, grouped = matrix.endswith("attn_v"), shape.heads >= 4 * shape.kv_heads
    if dtype in ("Q4_K_M", "Q5_K_M"):
        last = layer >= 7 * shape.layers // 8
        more = layer < eighth or last or (layer - eighth) % 3 == 2
        return "q6_K" if more else most
    if dtype == "IQ4_XS" and (grouped if values else layer < eighth):
        return "q5_K"
    return most


def streamed_bytes(dtype: str, shape: Shape) -> float:
    """Bytes of the weights that every token is multiplied by."""
    total = 0
    for name, (m, k) in shape.matrices().items():
        if shape.multiplies(name):
            total += m * aggml.DType.parse(type_of(name, dtype, shape)).row_size(k)
    return float(total)


LARGE: Final = Shape()
SMALL: Final = Shape(width=512, layers=2, heads=4, kv_heads=2, inner=1024, vocabulary=2048)
# Matrices of real models, with so many layers that there are 0.4 to 0.6 billion weights: all of
# Qwen2.5 0.5B (896 is no multiple of 256), 8 of 28 of Qwen2.5 1.5B, 2 of 32 of Llama 3.1 8B.
REAL: Final = {
    "0.5B": Shape(896, 24, 14, 2, 4864, 151936, tied=True),
    "1.5B": Shape(1536, 8, 12, 2, 8960, 32000),
    "8B": Shape(4096, 2, 32, 8, 14336, 32000),
}


def llama_file(dtype: str, shape: Shape = LARGE, *, vocabulary: bool = False) -> Path:
    """A file with all matrices of one type; made at the first call.

    Args:
        dtype: the type of the matrices, or a mixture.
        shape: the shape of the model.
        vocabulary: whether tokens have names, each a word of its own, so that it can be served.
            Rows of `BASE` repeat in the output, so the first tokens of the vocabulary are chosen.
            These are words: single bytes would be held back until a character is complete, and a
            client would count too few tokens.
    """
    mark = hashlib.sha256(repr(asdict(shape)).encode()).hexdigest()[:8]
    words = "-words-first" * vocabulary
    name = f"llama-{shape.width}x{shape.layers}-{mark}-{dtype}{words}.gguf"
    return _made(name, lambda path: _write_llama(path, dtype, shape, vocabulary=vocabulary))


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """The file of that name, made if it is missing. `GGUFWriter` leaves no incomplete file."""
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        write(path)
    return path


def _write_llama(path: Path, dtype: str, shape: Shape, *, vocabulary: bool) -> None:
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "llama")
        for key, value in {
            "block_count": shape.layers,
            "context_length": 4096,
            "embedding_length": shape.width,
            "feed_forward_length": shape.inner,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": shape.head,
            "vocab_size": shape.vocabulary,
        }.items():
            writer.add(f"llama.{key}", value)
        if vocabulary:
            words = range(3, shape.vocabulary - 256)
            names = ["<unk>", "<s>", "</s>", *(f"\u2581w{i}" for i in words)]
            names += [f"<0x{i:02X}>" for i in range(256)]
            for key, of_tokens in {
                "model": "llama",
                "tokens": names,
                "scores": [0.0] * len(names),
                "token_type": [2, 3, 3, *[1] * len(words), *[6] * 256],
                "bos_token_id": 1,
                "eos_token_id": 2,
            }.items():
                writer.add(f"tokenizer.ggml.{key}", of_tokens)
        else:
            writer.add("tokenizer.ggml.model", "no_vocab")
        for name, data in tensors(dtype, shape):
            kind = type_of(name, dtype, shape) if data.dtype == np.uint8 else None
            writer.add_tensor(f"{name}.weight", data, kind)


def tensors(dtype: str, shape: Shape) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Names and values: random matrices as rows of bytes (f32 and f16 as such), vectors of ones."""
    base: dict[tuple[int, str], np.ndarray[Any, Any]] = {}
    for i, (name, (m, k)) in enumerate(shape.matrices().items()):
        key = k, type_of(name, dtype, shape)
        if key not in base:
            rows = np.random.default_rng(k).standard_normal((BASE, k), np.float32)
            base[key] = stored(rows / np.float32(np.sqrt(k)), key[1])
        rows = np.roll(base[key], 37 * i, axis=0)
        yield name, np.ascontiguousarray(np.tile(rows, (-(-m // BASE), 1))[:m])
    for name in shape.norms():
        yield name, np.ones(shape.width, np.float32)


def stored(rows: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Rows of f32 in another type: as bytes, except f32 and f16."""
    if dtype == "f16":
        return rows.astype(np.float16)
    if dtype == "f32":
        return rows
    if dtype == "bf16":
        return rows.astype(ml_dtypes.bfloat16).view(np.uint8)
    return aggml.quantize(rows, dtype)


# -- all-MiniLM-L6-v2

MINILM_LAYERS: Final = 6
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
        MissingPeerError: the model's package is not installed.
    """
    file = SafeTensors.open(model_folder() / "model.safetensors")
    weights = {name: file[name] for name in file.stored if file[name].dtype == np.float32}
    return _made(f"minilm-{dtype}.gguf", lambda path: _write_minilm(path, dtype, weights))


def _write_minilm(path: Path, dtype: str, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
    names = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
    }
    for i in range(MINILM_LAYERS):
        for ours, theirs in _PARTS.items():
            names[f"encoder.layer.{i}.{ours}"] = f"blk.{i}.{theirs}"
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "bert")
        for key, value in {
            "block_count": MINILM_LAYERS,
            "context_length": 512,
            "embedding_length": 384,
            "feed_forward_length": 1536,
            "attention.head_count": 12,
            "attention.layer_norm_epsilon": 1e-12,
            "attention.causal": False,
            "pooling_type": MEAN,
            "vocab_size": len(weights["embeddings.word_embeddings.weight"]),
        }.items():
            writer.add(f"bert.{key}", value)
        writer.add("tokenizer.ggml.token_type_count", 2)
        writer.add("tokenizer.ggml.model", "no_vocab")
        for name, theirs in names.items():
            for part in ("weight", "bias"):
                data = weights.get(f"{name}.{part}")
                if data is None:
                    continue
                matrix = theirs.startswith("blk") and data.ndim == 2
                made = stored(np.ascontiguousarray(data), dtype) if matrix else data
                kind = dtype if made.dtype == np.uint8 else None
                writer.add_tensor(f"{theirs}.{part}", made, kind)
