"""hunyuan-moe: hunyuan-dense with experts and a shared net."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import hunyuan_dense
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import EXPERTS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    net = experts_of(hp, sum_to_one=True, shared=FeedForward(suffix="_shexp"))
    mixers = (attention_of(hp, rope, i, norm="turned head") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _same(*names: str, default: int | None = None) -> Callable[[Config], int | None]:
    """A number that config.json may give once, or once for each layer.

    The function raises ModelError if layers differ.
    """

    def read(config: Config) -> int | None:
        found = config.get(*names, default=default)
        each = set(found) if isinstance(found, list) else {found}
        if len(each) != 1:
            raise ModelError(
                f"config.json has {names[0]} = {found!r:.60}; expected was one number for all "
                "layers"
            )
        (one,) = each
        return None if one is None else int(one)

    return read


CHECKPOINT: Final = Checkpoint(
    ("hunyuan_v1_moe",),
    {
        **hunyuan_dense.CHECKPOINT.tensors, **EXPERTS,
        **dict.fromkeys(f"blk.{{i}}.ffn_{x}" for x in ("gate", "up", "down")),
        "blk.{i}.ffn_gate_inp": "layers.{i}.mlp.gate.wg",
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_mlp.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_mlp.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_mlp.down_proj",
    },
    {
        **hunyuan_dense.CHECKPOINT.keys,
        "feed_forward_length": _same("moe_intermediate_size", "intermediate_size"),
        "expert_count": "num_experts",
        "expert_used_count": _same("moe_topk", "num_experts_per_tok", default=1),
        "expert_feed_forward_length": _same("moe_intermediate_size", "intermediate_size"),
        "expert_shared_feed_forward_length": lambda config: int(
            config.need("intermediate_size") * _same("num_shared_expert", default=1)(config)
        ),
    },
    harmless={
        **dict.fromkeys(
            ("moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor"),
            "it is for training",
        ),
        **dict.fromkeys(
            ("cla_share_factor", "dense_list", "pool_type", "mask_init_id", "class_num", "pad_id",
             "org_vocab_size", "num_media_embeds", "attention_head_dim"),
            "it is for parts that the model does not have, or the tensors say the same",
        ),
    },
    expects={
        "hidden_act": ("silu",), "norm_type": ("rms",), "use_cla": (False,), "use_mla": (False,),
        "use_qk_norm": (True,), "use_rotary_pos_emb": (True,), "use_mixed_mlp_moe": (True,),
        "moe_layer_num_skipped": (0,), "position_embedding_xdrope": (False,),
        "add_classification_head": (False,), "norm_topk_prob": (True,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("hunyuan-moe",), describe, (CHECKPOINT,))
