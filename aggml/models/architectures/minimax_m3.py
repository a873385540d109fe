"""minimax-m3: experts, and attention in which an indexer chooses the blocks of keys of each token.

The first layers have one net and attention over all positions. Not here: the choice
(../blocks/indexer.py), the picture tower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import FeedForward, Indexer
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, add_one, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    MOST_EXPERTS,
    attention_of,
    description_of,
    head_length,
    layers_of,
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

MOST_POSITIONS: Final = 4096  # of a block; a larger number is a mistake
MOST_BLOCKS: Final = 1 << 20  # that a token sees


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: blocks in which prompts cannot lie beside each other; another number of heads of
            the indexer than of keys.
    """
    layers, rope = layers_of(hp), rope_of(hp, "neox", factors=None)
    dense = hp.integer("leading_dense_block_count", 0, most=layers)
    hp.integer("expert_shared_count", 1, most=MOST_EXPERTS)  # the tensors say the same
    shared = FeedForward("swiglu_oai", suffix="_shexp")
    experts = routed_experts_of(hp, "sigmoid", activation="swiglu_oai", shared=shared)
    made = []
    for i in range(layers):
        mixer = attention_of(
            hp, rope, i, norm="head", indexer=None if i < dense else _indexer(hp, rope.dims)
        )
        if mixer.indexer is not None and mixer.indexer.heads != mixer.kv_heads:
            raise ModelError(
                f"minimax-m3.attention.indexer.head_count is {mixer.indexer.heads}, expected was "
                f"{mixer.kv_heads}, one for each head of keys"
            )
        made.append(Layer(mixer, FeedForward("swiglu_oai") if i < dense else experts))
    return description_of(hp, made)


def _indexer(hp: Hyperparameters, turned: int) -> Indexer:
    """The indexer of a layer; the first ``turned`` elements of its heads have rotary positions."""
    found = Indexer(
        heads=hp.integer("attention.indexer.head_count", least=1),
        length=hp.integer("attention.indexer.key_length", head_length(hp), least=turned),
        size=hp.integer("attention.indexer.block_size", least=1, most=MOST_POSITIONS),
        count=hp.integer("attention.indexer.top_k", least=1, most=MOST_BLOCKS),
        near=hp.integer("attention.indexer.local_blocks", 1, most=MOST_BLOCKS),
    )
    if not found.fits or found.near > found.count:
        raise ModelError(
            f"minimax-m3.attention.indexer has blocks of {found.size} positions, of which a token "
            f"sees {found.count}, the last {found.near} in any case; expected was a size that "
            "divides 32, or one that divides 256 and so many blocks that 256 positions and one "
            "block more are seen"
        )
    return found


def _of_indexer(name: str, older: str) -> Callable[[Config], Any]:
    """A setting of the indexer, which older folders have in an object of its own."""

    def find(config: Config) -> int:
        told = config.get("sparse_attention_config", default={})
        return int(config.need(name) if told.get(older) is None else told[older])

    return find


def _dense(config: Config) -> int:
    """How many first layers have one net, and attention over all positions.

    Raises:
        ModelError: a later layer has one of these.
    """
    layers, dense = int(config.need("num_hidden_layers")), exaone_moe.dense_layers(config)
    kinds = config.get("layer_types")
    if kinds is None:
        told = config.get("sparse_attention_config", default={}).get("sparse_attention_freq")
        told = [0] * layers if told is None else told
        kinds = ["minimax_m3_sparse" if x else "full_attention" for x in told]
    wanted = ["minimax_m3_sparse" if i >= dense else "full_attention" for i in range(layers)]
    if list(kinds) != wanted:
        raise ModelError(
            f"config.json has the layer_types {kinds!r:.80}; expected was minimax_m3_sparse for "
            f"the {layers - dense} layers with experts, and full_attention for the others"
        )
    return dense


_MOE: Final = ("layers.{i}.block_sparse_moe", "layers.{i}.mlp")
_NORMED: Final = {
    "output_norm": "norm",
    "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
    "blk.{i}.attn_q_norm": "layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "layers.{i}.self_attn.k_norm",
    "blk.{i}.indexer.q_norm": "layers.{i}.self_attn.index_q_norm",
    "blk.{i}.indexer.k_norm": "layers.{i}.self_attn.index_k_norm",
}
CHECKPOINT: Final = Checkpoint(
    ("minimax_m3_vl", "minimax_m3_vl_text"),
    {
        **DECODER,
        **{f"{name}.weight": add_one(f"{source}.weight") for name, source in _NORMED.items()},
        "blk.{i}.indexer.q_proj": "layers.{i}.self_attn.index_q_proj",
        "blk.{i}.indexer.k_proj": "layers.{i}.self_attn.index_k_proj",
        "blk.{i}.ffn_gate_inp": tuple(f"{x}.gate" for x in _MOE),
        "blk.{i}.exp_probs_b.bias": (
            f"{_MOE[0]}.e_score_correction_bias", f"{_MOE[1]}.gate.e_score_correction_bias",
        ),
        **{
            f"blk.{{i}}.ffn_{part}_exps": stack(f"{_MOE[0]}.experts.{{e}}.{name}")
            for part, name in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
        },
        **{
            f"blk.{{i}}.ffn_{part}_shexp": tuple(f"{x}.shared_experts.{part}_proj" for x in _MOE)
            for part in ("gate", "down", "up")
        },
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "feed_forward_length": ("dense_intermediate_size", "intermediate_size"),
        "expert_feed_forward_length": "intermediate_size",
        "expert_shared_count": lambda config: config.get("n_shared_experts", default=1),
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": lambda _: True,
        "expert_weights_scale": "routed_scaling_factor",
        "leading_dense_block_count": _dense,
        "attention.indexer.head_count": _of_indexer("index_n_heads", "sparse_num_index_heads"),
        "attention.indexer.key_length": _of_indexer("index_head_dim", "sparse_index_dim"),
        "attention.indexer.top_k": _of_indexer("index_topk_blocks", "sparse_topk_blocks"),
        "attention.indexer.block_size": _of_indexer("index_block_size", "sparse_block_size"),
        "attention.indexer.local_blocks": _of_indexer("index_local_blocks", "sparse_local_block"),
    },
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=(r"^(model\.)?(vision_tower|multi_modal_projector|patch_merge_mlp)\.", r"^mtp\."),
    harmless={
        "rotary_dim": "partial_rotary_factor says the same",
        "shared_intermediate_size": "the shapes of the tensors say the same",
        **dict.fromkeys(
            ("merged_hidden_size", "projector_hidden_size", "video_token_index"),
            "pictures are not computed",
        ),
    },
    expects={
        "hidden_act": ("silu", "swigluoai"), "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,),
        "use_gemma_norm": (True,), "qk_norm_type": ("per_head",),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("minimax-m3",), describe, (CHECKPOINT,))
