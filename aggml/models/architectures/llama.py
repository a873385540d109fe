"""llama: also mistral, smollm, tinyllama and mixtral, whose files name this architecture.

Norms before each block, rotary positions of mode "normal", a gated feed-forward net or experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    NEIGHBOURS,
    scaled_frequencies,
    window_of_folder,
)
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
    window_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal")
    has_experts = hp.integer("expert_count", 0) > 0
    net = experts_of(hp, sum_to_one=True) if has_experts else FeedForward()
    layers = range(layers_of(hp))
    window = window_of(hp)
    mixers = (attention_of(hp, rope, i, window=window) for i in layers)
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _window(config: Config) -> int | None:
    """The sliding window; models of transformers' class Llama have none."""
    if config.model_type not in ("mistral", "mixtral"):
        return None
    return window_of_folder(default=4096 if config.model_type == "mistral" else None)(config)


CHECKPOINT: Final = Checkpoint(
    ("llama", "mistral", "smollm", "mixtral"),
    DECODER | NEIGHBOURS | {
        "rope_freqs.weight": scaled_frequencies,
        "blk.{i}.ffn_gate_inp": "layers.{i}.block_sparse_moe.gate",
        "blk.{i}.ffn_gate_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w1"),
        "blk.{i}.ffn_down_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w2"),
        "blk.{i}.ffn_up_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w3"),
    },
    {
        **DECODER_KEYS, **EXPERT_KEYS, "expert_feed_forward_length": lambda _: None,
        "attention.sliding_window": _window,
    },
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("llama",), describe, (CHECKPOINT,))
