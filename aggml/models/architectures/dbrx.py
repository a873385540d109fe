"""dbrx: Databricks' DBRX; experts, LayerNorms without biases, bounded queries, keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.architectures.olmo import EPS
from aggml.models.checkpoints.keys import CENTRED_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    experts_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

SECOND_NORM: Final = "attn_output_norm"


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), experts_of(hp, sum_to_one=True)
    clamp = hp.number("attention.clamp_kqv", 0.0, least=0.0)
    mixers = (attention_of(hp, rope, i, joined=True, clamp=clamp) for i in range(layers_of(hp)))
    return layer_norm_description_of(
        hp, [Layer(mixer, net, before_feed_forward=SECOND_NORM) for mixer in mixers]
    )


def _part(name: str, *keys: str, default: Any = None) -> Callable[[Config], Any]:  # noqa: ANN401
    """A setting of one of the two objects in which config.json has them."""

    def find(config: Config) -> Any:  # noqa: ANN401 as the file has it
        told = config.get(name, default={})
        return next((told[key] for key in keys if told.get(key) is not None), default)

    return find


_EXPERTS: Final = _part("ffn_config", "moe_num_experts", default=4)


def _used(config: Config) -> int:
    """How many experts each token uses.

    Raises:
        ModelError: their weights do not add up to 1, or their nets have another activation.
    """
    norm = _part("ffn_config", "moe_normalize_expert_weights", default=1)(config)
    kind = _part("ffn_config", "ffn_act_fn", default={"name": "silu"})(config)
    if norm != 1 or kind.get("name") != "silu":
        raise ModelError(
            f"config.json has moe_normalize_expert_weights = {norm!r} and ffn_act_fn = "
            f"{kind!r:.60} in ffn_config; expected was 1 and silu"
        )
    return int(_part("ffn_config", "moe_top_k", default=1)(config))


def _stacked(source: str, *, turned: bool = False) -> Recipe:
    """The matrices of all experts, which the folder has one below the other."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        each = x.reshape(int(_EXPERTS(config)), -1, x.shape[-1])
        return np.ascontiguousarray(each.swapaxes(1, 2)) if turned else each

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        (rows, columns), n = shapes[0], int(_EXPERTS(config))
        return (n, columns, rows // n) if turned else (n, rows // n, columns)

    return Recipe((source,), make, shape)


_MLP: Final = "blocks.{i}.ffn.experts.mlp"
CHECKPOINT: Final = Checkpoint(
    ("dbrx",),
    {
        "token_embd": "wte",
        "output_norm": "norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "blocks.{i}.norm_attn_norm.norm_1",
        f"blk.{{i}}.{SECOND_NORM}": "blocks.{i}.norm_attn_norm.norm_2",
        "blk.{i}.attn_qkv": "blocks.{i}.norm_attn_norm.attn.Wqkv",
        "blk.{i}.attn_output": "blocks.{i}.norm_attn_norm.attn.out_proj",
        "blk.{i}.ffn_gate_inp": "blocks.{i}.ffn.router.layer",
        "blk.{i}.ffn_gate_exps.weight": _stacked(f"{_MLP}.w1"),
        "blk.{i}.ffn_up_exps.weight": _stacked(f"{_MLP}.v1"),
        "blk.{i}.ffn_down_exps.weight": _stacked(f"{_MLP}.w2", turned=True),
    },
    {
        **CENTRED_KEYS,
        "context_length": "max_seq_len",
        "embedding_length": "d_model",
        "block_count": "n_layers",
        "attention.head_count": "n_heads",
        "attention.head_count_kv": _part("attn_config", "kv_n_heads", default=1),
        "attention.layer_norm_epsilon": lambda _: EPS,
        "attention.clamp_kqv": _part("attn_config", "clip_qkv"),
        "attention.key_length": lambda _: None,
        "attention.value_length": lambda _: None,
        "feed_forward_length": _part("ffn_config", "ffn_hidden_size", default=3584),
        "expert_count": _EXPERTS,
        "expert_used_count": _used,
        "rope.dimension_count": lambda _: None,
        "rope.freq_base": _part("attn_config", "rope_theta", default=10000.0),
    },
    prefixes=("transformer.",),
    harmless=dict.fromkeys(("emb_pdrop", "resid_pdrop"), "nothing is trained here"),
)  # fmt: skip


ARCHITECTURE = Architecture(("dbrx",), describe, (CHECKPOINT,))
