"""gemma4: gemma3 with longer heads where all positions are seen, and normed values.

The last layers may use the keys and values of earlier ones, each token may have an embedding for
each layer, and there may be experts beside the nets.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.blocks import BesideExperts, FeedForward, LayerEnd
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, HEAD_NORMS, number
from aggml.models.checkpoints.recipes import Checkpoint, compute
from aggml.models.description import Architecture, Description
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    head_length,
    layers_of,
    post_norm_layer,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.blocks import Attention
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    size = hp.integer("embedding_length_per_layer_input")
    net: Block = FeedForward("gelu")
    before: str | None = "ffn_norm"
    if hp.integer("expert_count", 0):
        experts = experts_of(hp, activation="gelu", sum_to_one=True, scale=1.0)
        net, before = BesideExperts(FeedForward("gelu"), experts), None  # it has norms of its own
    mixers = _mixers(hp)
    entire = size > 0 or any(mixer.borrows is not None for mixer in mixers)
    return description_of(
        hp,
        [
            post_norm_layer(
                mixer, net, before_feed_forward=before, ending=LayerEnd(i * entire, size)
            )
            for i, mixer in enumerate(mixers)
        ],
        embedding_scale=math.sqrt(hp.integer("embedding_length", least=1)),
        logit_soft_cap=hp.number("final_logit_softcapping", 30.0, least=0.0),  # as llama.cpp
        layer_embedding=size,
        entire=entire,
    )


def _mixers(hp: Hyperparameters) -> list[Attention]:
    """The attention of each layer.

    Raises:
        ModelError: the file does not say which layers have a window; too many layers shall use the
            keys and values of others.
    """
    layers, head = layers_of(hp), head_length(hp)
    if hp.get("attention.sliding_window_pattern") is None:
        raise ModelError(
            f"the file has no {hp.architecture}.attention.sliding_window_pattern, which this "
            "architecture needs: convert the model again"
        )
    local = sliding_layers(hp, layers, 6)
    window = hp.integer("attention.sliding_window", least=1)
    near = hp.integer("attention.key_length_swa", head, least=1)
    rope = rope_of(hp, "neox")
    turned = hp.integer("rope.dimension_count_swa", rope.dims, least=2, most=near)
    if turned % 2:
        raise ModelError(
            f"{hp.architecture}.rope.dimension_count_swa is {turned}, expected was an even number"
        )
    everywhere = replace(rope, stretched=True)
    nearby = replace(
        rope,
        dims=turned,
        base=hp.number("rope.freq_base_swa", 10000.0, above=0.0),
        scale=1.0,
        factors=None,
    )
    own = layers - hp.integer("attention.shared_kv_layers", 0, most=max(layers - 2, 0))
    lenders = {True: own - 2, False: own - 1}  # of layers with a window, and of the others
    if own < layers and [*local[own - 2 : own]] != [True, False]:
        raise ModelError(
            f"{hp.architecture}.attention.shared_kv_layers is {layers - own}, but the layers "
            f"{own - 2} and {own - 1} do not have a window and none, as the last {layers - own} "
            "layers need"
        )
    return [
        attention_of(
            hp, nearby if close else everywhere, i, scale=1.0, norm="head", value_norm=True,
            key_length=near if close else head,
            value_length=hp.integer("attention.value_length_swa", near, least=1)
            if close else hp.integer("attention.value_length", head, least=1),
            window=window if close else None,
            causal=not close,
            joined=None,
            lends=own < layers and i in lenders.values(),
            borrows=None if i < own else lenders[close],
        )
        for i, close in enumerate(local)
    ]  # fmt: skip


def _everywhere(config: Config, name: str, old: str) -> int | None:
    """A number of the layers that see all positions; None: as that of the others."""
    told = config.get(old)
    for i, of in config.get("per_layer_config", default={}).items():
        if told is None and config.need("layer_types")[int(i)] == "full_attention":
            told = of.get(name)
    return None if told is None else int(told)


def _head(config: Config) -> int:
    return _everywhere(config, "head_dim", "global_head_dim") or config.head


def _kv_heads(config: Config) -> int | list[int]:
    """Heads of keys, of each layer if they differ."""
    near = int(config.need("num_key_value_heads"))
    far = _everywhere(config, "num_key_value_heads", "num_global_key_value_heads")
    kinds = config.need("layer_types")
    return near if far is None else [far if x == "full_attention" else near for x in kinds]


def _inner(config: Config) -> int | list[int]:
    """Elements between the matrices of each net; in layers that share keys, twice as many."""
    inner, layers = int(config.need("intermediate_size")), int(config.need("num_hidden_layers"))
    own = layers - int(config.get("num_kv_shared_layers", default=0))
    if not config.get("use_double_wide_mlp", default=False):
        return inner
    return [inner if i < own else 2 * inner for i in range(layers)]


def _of_experts(name: str) -> Callable[[Config], int | None]:
    """A number of the experts; None: there are none."""

    def read(config: Config) -> int | None:
        found = config.get(name)
        return int(found) if config.get("enable_moe_block", default=False) else None

    return read


def _frequencies(config: Config) -> Array:
    """1 for the frequencies that are used where all positions are seen, 1e30 for the others."""
    rope, half = config.rope("full_attention"), _head(config) // 2
    if rope.get("rope_type") not in ("proportional", "default", None):
        raise ModelError(f"config.json has the rope_type {rope['rope_type']!r} for all positions")
    used = int(float(rope.get("partial_rotary_factor", 1.0)) * half)
    return np.array([1.0] * used + [1e30] * (half - used), np.float32)


CHECKPOINT: Final = Checkpoint(
    ("gemma4_text", "gemma4"),
    {
        **DECODER, **HEAD_NORMS,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_norm": "layers.{i}.pre_feedforward_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
        "blk.{i}.layer_output_scale.weight": "layers.{i}.layer_scalar",
        "blk.{i}.inp_gate": "layers.{i}.per_layer_input_gate",
        "blk.{i}.proj": "layers.{i}.per_layer_projection",
        "blk.{i}.post_norm": "layers.{i}.post_per_layer_input_norm",
        "blk.{i}.post_ffw_norm_1": "layers.{i}.post_feedforward_layernorm_1",
        "blk.{i}.pre_ffw_norm_2": "layers.{i}.pre_feedforward_layernorm_2",
        "blk.{i}.post_ffw_norm_2": "layers.{i}.post_feedforward_layernorm_2",
        "blk.{i}.ffn_gate_inp": "layers.{i}.router.proj",
        "blk.{i}.ffn_gate_inp.scale": "layers.{i}.router.scale",
        "blk.{i}.ffn_gate_up_exps.weight": "layers.{i}.experts.gate_up_proj",
        "blk.{i}.ffn_down_exps.weight": "layers.{i}.experts.down_proj",
        "blk.{i}.ffn_down_exps.scale": "layers.{i}.router.per_expert_scale",
        "per_layer_token_embd": "embed_tokens_per_layer",
        "per_layer_model_proj": "per_layer_model_projection",
        "per_layer_proj_norm": "per_layer_projection_norm",
        "rope_freqs.weight": compute(_frequencies),
    },
    {
        **DECODER_KEYS,
        "attention.key_length": _head,
        "attention.value_length": _head,
        "attention.key_length_swa": lambda config: config.head,
        "attention.value_length_swa": lambda config: config.head,
        "attention.head_count_kv": _kv_heads,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [
            x == "sliding_attention" for x in config.need("layer_types")
        ],
        "attention.shared_kv_layers": lambda config: config.get("num_kv_shared_layers", default=0),
        "embedding_length_per_layer_input": lambda config: config.get(
            "hidden_size_per_layer_input", default=0
        ),
        "feed_forward_length": _inner,
        "expert_count": _of_experts("num_experts"),
        "expert_used_count": _of_experts("top_k_experts"),
        "expert_feed_forward_length": _of_experts("moe_intermediate_size"),
        "final_logit_softcapping": number("final_logit_softcapping", default=0.0),
        "rope.dimension_count": _head,
        "rope.dimension_count_swa": lambda config: config.head,
    },
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(r"vision_tower\.", r"audio_tower\.", r"embed_vision\.", r"embed_audio\."),
    harmless={
        "attention_k_eq_v": "the names of the tensors say the same",
        "vocab_size_per_layer_input": "the shape of the tensor says the same",
    },
    expects={"hidden_activation": ("gelu_pytorch_tanh",)},
    bare=("blk.{i}.ffn_gate_inp.scale", "blk.{i}.ffn_down_exps.scale"),
)  # fmt: skip


ARCHITECTURE = Architecture(("gemma4",), describe, (CHECKPOINT,))
