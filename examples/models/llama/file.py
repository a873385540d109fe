"""What a GGUF file says of a model: hyperparameters, weights.

Here: opening it, what it must have, bringing weights to a backend. Not here: graphs of them
(graph.py), the tokenizer in it (vocabulary.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

import aggml
from aggml import GGUFFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aggml import Backend, Tensor

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")


class ModelError(Exception):
    """The file is no model that this example can run."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters under the names of GGUF's metadata; lengths in elements."""

    architecture: str
    block_count: int
    embedding_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    value_length: int
    context_length: int
    rms_eps: float
    rope_dims: int
    rope_base: float
    rope_scale: float
    yarn: float  # share of YaRN's extrapolation
    original_context: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Config:
        """Read them.

        Raises:
            ModelError: another architecture, experts, or a value that is missing.
        """
        architecture = metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(
                f"the architecture is {architecture!r}, not one of {', '.join(ARCHITECTURES)}"
            )

        def value(name: str, default: Any = None) -> Any:  # noqa: ANN401 as the file has it
            found = metadata.get(f"{architecture}.{name}", default)
            if found is None:
                raise ModelError(f"the file says nothing of {architecture}.{name}")
            return found

        if value("expert_count", 0):
            raise ModelError("models with experts are not supported")
        heads = int(value("attention.head_count"))
        width = int(value("embedding_length"))
        head = int(value("attention.key_length", width // heads))
        scaling = value("rope.scaling.type", "none")
        factor = float(value("rope.scaling.factor", 1.0))
        return cls(
            architecture=architecture,
            block_count=int(value("block_count")),
            embedding_length=width,
            head_count=heads,
            head_count_kv=int(value("attention.head_count_kv", heads)),
            key_length=head,
            value_length=int(value("attention.value_length", head)),
            context_length=int(value("context_length")),
            rms_eps=float(value("attention.layer_norm_rms_epsilon")),
            rope_dims=int(value("rope.dimension_count", head)),
            rope_base=float(value("rope.freq_base", 10000.0)),
            rope_scale=1.0 / factor if scaling in ("linear", "yarn") and factor > 0 else 1.0,
            yarn=1.0 if scaling == "yarn" else 0.0,
            original_context=int(
                value("rope.scaling.original_context_length", value("context_length"))
            ),
        )


async def open_model(path: Path) -> GGUFFile:
    """Open a GGUF file without holding up the loop.

    Raises:
        ModelError: it cannot be read, or is no GGUF file.
    """
    try:
        return await anyio.to_thread.run_sync(GGUFFile.open, path)
    except (OSError, aggml.AggmlError) as error:
        raise ModelError(f"cannot open the model: {error}") from error


async def load_weights(
    backend: Backend, file: GGUFFile, progress: Callable[[int, int], None] | None = None
) -> tuple[Config, Mapping[str, Tensor]]:
    """Bring the weights of a file to ``backend``: mapped if it reads host memory, else copied.

    Raises:
        ModelError: the file is no model that this example can run.
    """
    config = Config.of(file.metadata)
    missing = [name for name in _needed(config) if name not in file.tensors]
    if missing:
        raise ModelError(f"the file has no tensor {missing[0]!r} ({len(missing)} are missing)")
    try:
        file.map(backend.device)
    except (aggml.Unsupported, aggml.Misaligned):
        await file.load(backend, progress=progress)
    return config, file.tensors


def _needed(config: Config) -> list[str]:
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
    parts += ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    blocks = range(config.block_count)
    names = [f"blk.{i}.{part}.weight" for i in blocks for part in parts]
    return ["token_embd.weight", "output_norm.weight", *names]
