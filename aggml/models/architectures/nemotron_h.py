"""nemotron_h and nemotron_h_moe: each layer is a scan of Mamba 2, attention, or a net."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures.mamba2 import scan_tensors
from aggml.models.blocks import Alone, FeedForward
from aggml.models.checkpoints.keys import DECODER_KEYS, number, steps_without_limit
from aggml.models.checkpoints.recipes import Checkpoint, Rule, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    LARGEST_EPS,
    attention_of,
    description_of,
    layers_of,
    mamba2_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Key
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, scan = layers_of(hp), mamba2_of(hp)
    heads = hp.each_layer("attention.head_count_kv", layers)
    inner = hp.each_layer("feed_forward_length", layers)
    net: Block = FeedForward("relu_sqr", gated=False)
    if hp.integer("expert_count", 0):
        shared = FeedForward("relu_sqr", gated=False, suffix="_shexp")
        net = routed_experts_of(
            hp,
            "sigmoid",
            activation="relu_sqr",
            gated=False,
            latent=hp.integer("moe_latent_size", 0) > 0,
            shared=shared,
        )
    mixers = (
        Alone(net) if n else attention_of(hp, None, i) if heads[i] else scan
        for i, n in enumerate(inner)
    )
    eps = hp.number("attention.layer_norm_epsilon", 1e-5, least=0.0, most=LARGEST_EPS)
    eps = hp.number("attention.layer_norm_rms_epsilon", eps, least=0.0, most=LARGEST_EPS)
    return description_of(hp, [Layer(mixer, None) for mixer in mixers], eps=eps)


_KINDS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SCANS, _NETS = ("mamba", "linear_attention"), ("mlp", "moe")


def _kinds(config: Config) -> list[str]:
    """What each layer is."""
    told = config.need("hybrid_override_pattern", "layers_block_type")
    return [_KINDS.get(x, x) for x in told] if isinstance(told, str) else list(told)


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer; layers without attention have 0."""
    heads, kinds = int(config.need("num_key_value_heads")), _kinds(config)
    return [0 if kind in (*_SCANS, *_NETS) else heads for kind in kinds]


def _inner(name: str) -> Callable[[Config], list[int]]:
    """Elements between the matrices of each layer's net; 0: it has none."""

    def read(config: Config) -> list[int]:
        inner = int(config.need(name))
        return [inner if kind in _NETS else 0 for kind in _kinds(config)]

    return read


def _of(moe: bool) -> Checkpoint:
    """Folders with experts, or without them."""
    mixer = "layers.{i}.mixer."
    tensors: dict[str, Rule] = {
        "token_embd": "embeddings",
        "output_norm": "norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "layers.{i}.norm",
        **scan_tensors(mixer, "n_groups"),
        "blk.{i}.attn_q": f"{mixer}q_proj",
        "blk.{i}.attn_k": f"{mixer}k_proj",
        "blk.{i}.attn_v": f"{mixer}v_proj",
        "blk.{i}.attn_output": f"{mixer}o_proj",
    }
    keys: dict[str, Key] = {
        **DECODER_KEYS,
        "block_count": lambda config: len(_kinds(config)),
        "attention.head_count_kv": _kv_heads,
        "attention.layer_norm_epsilon": number("layer_norm_epsilon", "norm_eps", default=1e-5),
        "attention.layer_norm_rms_epsilon": lambda _: None,
        "rope.dimension_count": lambda _: None,
        "feed_forward_length": _inner("moe_intermediate_size" if moe else "intermediate_size"),
        "ssm.conv_kernel": "conv_kernel",
        "ssm.inner_size": lambda config: int(
            config.need("mamba_num_heads") * config.need("mamba_head_dim")
        ),
        "ssm.state_size": "ssm_state_size",
        "ssm.time_step_rank": "mamba_num_heads",
        "ssm.group_count": "n_groups",
        "ssm.time_step_limit": steps_without_limit,
    }
    if moe:
        tensors |= {
            "blk.{i}.ffn_gate_inp": f"{mixer}gate",
            "blk.{i}.exp_probs_b.bias": f"{mixer}gate.e_score_correction_bias",
            "blk.{i}.ffn_up_exps": stack(f"{mixer}experts.{{e}}.up_proj"),
            "blk.{i}.ffn_down_exps": stack(f"{mixer}experts.{{e}}.down_proj"),
            "blk.{i}.ffn_up_shexp": f"{mixer}shared_experts.up_proj",
            "blk.{i}.ffn_down_shexp": f"{mixer}shared_experts.down_proj",
            "blk.{i}.ffn_latent_down": f"{mixer}fc1_latent_proj",
            "blk.{i}.ffn_latent_up": f"{mixer}fc2_latent_proj",
        }
        keys |= {
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": number("routed_scaling_factor"),
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "moe_latent_size": "moe_latent_size",
        }
    else:
        tensors |= {"blk.{i}.ffn_up": f"{mixer}up_proj", "blk.{i}.ffn_down": f"{mixer}down_proj"}
    unused = (
        "expand rescale_prenorm_residual use_mamba_kernels num_logits_to_keep "
        "mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_layers_block_type time_step_floor "
        "time_step_max time_step_min hidden_dropout"
    )
    return Checkpoint(
        ("nemotron_h",), tensors, keys, "nemotron_h_moe" if moe else "nemotron_h",
        condition=lambda config: ("moe" in _kinds(config)) == moe,
        prefixes=("backbone.", "model."), ignored=(r"^mtp\.",),
        harmless=dict.fromkeys(unused.split(), "it matters to training, or to how it is computed"),
        expects={"mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",)},
    )  # fmt: skip


CHECKPOINTS: Final = (_of(moe=True), _of(moe=False))


ARCHITECTURE = Architecture(("nemotron_h", "nemotron_h_moe"), describe, CHECKPOINTS)
