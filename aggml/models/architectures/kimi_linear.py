"""kimi-linear: three of four layers use Kimi Delta Attention, the others latent attention.

Nothing has rotary positions. All layers but the first have experts and a shared net.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import deepseek2
from aggml.models.blocks import FeedForward, KimiDelta, LatentAttention
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, decay_rates, number
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import description_of, layers_of, nets_of, routed_experts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.description import Mixer
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: queries come from a short vector, which no published model has.
    """
    if hp.integer("attention.q_lora_rank", 0):
        raise ModelError(
            "kimi-linear.attention.q_lora_rank is set; only models without it are supported"
        )
    layers = layers_of(hp)
    heads = hp.each_layer("attention.head_count", layers, least=1)[0]
    key = hp.integer("attention.key_length_mla", least=2)
    turned = hp.integer("rope.dimension_count", least=1, most=key - 1)
    for name in ("key_length", "value_length"):
        hp.get(f"attention.{name}")  # of the short vectors: known, and not needed
    latent = LatentAttention(
        heads=heads,
        rank=hp.integer("attention.kv_lora_rank", least=1),
        plain=key - turned,
        turned=turned,
        value_length=hp.integer("attention.value_length_mla", least=1),
        rope=None,
        scale=1 / math.sqrt(key),
    )
    delta = KimiDelta(
        heads, hp.integer("kda.head_dim", least=1), hp.integer("ssm.conv_kernel", least=2)
    )
    shared = FeedForward(suffix="_shexp")
    nets = nets_of(hp, routed_experts_of(hp, "sigmoid", sum_to_one=True, shared=shared))
    # a layer with no heads of keys has a state
    mixers: list[Mixer] = [
        latent if n else delta for n in hp.each_layer("attention.head_count_kv", layers)
    ]
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def _kernels(part: str) -> Recipe:
    """The kernel of each channel, [channels, 1, tokens]."""

    def make(arrays: Sequence[Array], _: Config) -> Array:
        return arrays[0].reshape(arrays[0].shape[0], 1, -1)

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        return shapes[0][0], 1, math.prod(shapes[0][1:])

    return Recipe((f"layers.{{i}}.self_attn.{part}_conv1d.weight",), make, shape)


def _kv_heads(config: Config) -> list[int]:
    """1 for each layer with attention, 0 for the others."""
    n = int(config.need("num_hidden_layers"))
    kinds = config.get("layer_types")
    if kinds is None:
        # the published config.json counts layers from 1
        full = (config.get("linear_attn_config", default={}) or {}).get("full_attn_layers", ())
        return [int(i + 1 in full) for i in range(n)]
    return [int(kind == "full_attention") for kind in kinds]


def _of_delta(name: str, other: str) -> Callable[[Config], Any]:
    """A setting of the layers with states, which published folders have in a group of its own."""

    def read(config: Config) -> Any:  # noqa: ANN401 whatever the folder says
        group = config.get("linear_attn_config", default={}) or {}
        return config.get(other, default=group.get(name))

    return read


def _head_of_delta(config: Config) -> int:
    """Elements of a head of the layers with states.

    Raises:
        ModelError: these layers have another number of heads than the others: GGUF has one number.
    """
    heads = _of_delta("num_heads", "linear_num_heads")(config)
    if heads not in (None, config.need("num_attention_heads")):
        raise ModelError(f"config.json has {heads} heads in layers with states, others elsewhere")
    return int(_of_delta("head_dim", "linear_head_dim")(config))


def _dense(config: Config) -> int:
    """How many first layers have one net.

    Raises:
        ModelError: a layer behind one with experts has one net, too.
    """
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return int(config.get("first_k_dense_replace", default=0))
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if "dense" in kinds[dense:]:
        raise ModelError("config.json has a dense layer behind one with experts")
    return int(dense)


def _net(name: str) -> tuple[str, str]:
    """The place of a matrix of a single net; transformers and the model's own code differ."""
    return f"layers.{{i}}.mlp.{name}_proj", f"layers.{{i}}.block_sparse_moe.{name}_proj"


_MOE: Final = "layers.{i}.block_sparse_moe"
CHECKPOINT: Final = Checkpoint(
    ("kimi_linear",),
    {
        **DECODER,
        **{
            name: deepseek2.CHECKPOINT.tensors[name] for name in (
                "blk.{i}.attn_kv_a_mqa", "blk.{i}.attn_kv_a_norm", "blk.{i}.attn_k_b",
                "blk.{i}.attn_v_b",
            )
        },
        **{f"blk.{{i}}.ssm_conv1d_{x}.weight": _kernels(x) for x in ("q", "k", "v")},
        **{
            f"blk.{{i}}.ssm_{x}": f"layers.{{i}}.self_attn.{x}_proj"
            for x in ("f_a", "f_b", "g_a", "g_b")
        },
        "blk.{i}.ssm_beta": "layers.{i}.self_attn.b_proj",
        "blk.{i}.ssm_dt.bias": "layers.{i}.self_attn.dt_bias",
        "blk.{i}.ssm_a": decay_rates("layers.{i}.self_attn.A_log"),
        "blk.{i}.ssm_norm": "layers.{i}.self_attn.o_norm",
        "blk.{i}.ffn_gate": _net("gate"),
        "blk.{i}.ffn_up": _net("up"),
        "blk.{i}.ffn_down": _net("down"),
        "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
        "blk.{i}.exp_probs_b.bias": f"{_MOE}.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_exps": stack(f"{_MOE}.experts.{{e}}.w1"),
        "blk.{i}.ffn_down_exps": stack(f"{_MOE}.experts.{{e}}.w2"),
        "blk.{i}.ffn_up_exps": stack(f"{_MOE}.experts.{{e}}.w3"),
        "blk.{i}.ffn_gate_shexp": f"{_MOE}.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": f"{_MOE}.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": f"{_MOE}.shared_experts.down_proj",
    },
    {
        **{
            name: key for name, key in deepseek2.CHECKPOINT.keys.items()
            if name.startswith("attention.") and "q_lora" not in name
        },
        **{name: key for name, key in DECODER_KEYS.items() if not name.startswith("attention.")},
        "context_length": ("model_max_length", "max_position_embeddings"),
        "attention.head_count_kv": _kv_heads,
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
        "rope.dimension_count": "qk_rope_head_dim",
        "kda.head_dim": _head_of_delta,
        "ssm.conv_kernel": _of_delta("short_conv_kernel_size", "linear_conv_kernel_dim"),
        "leading_dense_block_count": _dense,
        "expert_count": ("num_experts", "num_local_experts"),
        "expert_used_count": ("num_experts_per_token", "num_experts_per_tok"),
        "expert_shared_count": ("num_shared_experts", "n_shared_experts"),
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": number("routed_scaling_factor", default=1.0),
        "expert_gating_func": lambda _: 2,
        "expert_group_count": lambda _: None,
    },
    expects={
        "hidden_act": ("silu",), "moe_renormalize": (True,), "num_expert_group": (1,),
        "topk_group": (1,), "attention_bias": (False,), "q_lora_rank": (None,),
        "mla_use_nope": (True,),
        "moe_router_activation_func": ("sigmoid",), "moe_layer_freq": (1,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("kimi-linear",), describe, (CHECKPOINT,))
