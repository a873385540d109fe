"""mpt: LayerNorms, ALiBi or embeddings of positions, nets without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures.olmo import EPS
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture; without ALiBi the file has embeddings of positions."""
    slope = hp.number("attention.max_alibi_bias", 0.0, least=0.0)
    clamp, net = hp.number("attention.clamp_kqv", 0.0, least=0.0), FeedForward("gelu", gated=False)
    mixers = (
        attention_of(hp, None, i, joined=True, slope=slope, clamp=clamp)
        for i in range(layers_of(hp))
    )
    return layer_norm_description_of(
        hp, [Layer(mixer, net) for mixer in mixers], position_table=not slope
    )


def _of_attention(name: str, default: Any = None) -> Callable[[Config], Any]:  # noqa: ANN401
    """A setting of attention, which config.json has in an object."""

    def find(config: Config) -> Any:  # noqa: ANN401 as the file has it
        told = config.get("attn_config", default={}).get(name)
        return default if told is None else told

    return find


def _slope(config: Config) -> float:
    """The largest bias of ALiBi; 0: there is none."""
    whole = _of_attention("alibi", default=True)(config)
    return float(_of_attention("alibi_bias_max", default=8)(config)) if whole else 0.0


def _clamp(config: Config) -> float | None:
    """The bound of queries, keys and values; None: there is none."""
    told = _of_attention("clip_qkv")(config)
    return None if told is None else float(told)


CHECKPOINT: Final = Checkpoint(
    ("mpt",),
    {
        "token_embd": "wte",
        "position_embd": "wpe",
        "output_norm": "norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "blocks.{i}.norm_1",
        "blk.{i}.attn_qkv": "blocks.{i}.attn.Wqkv",
        "blk.{i}.attn_output": "blocks.{i}.attn.out_proj",
        "blk.{i}.ffn_norm": "blocks.{i}.norm_2",
        "blk.{i}.ffn_up": "blocks.{i}.ffn.up_proj",
        "blk.{i}.ffn_down": "blocks.{i}.ffn.down_proj",
    },
    {
        **CENTRED_KEYS,
        "context_length": "max_seq_len",
        "embedding_length": "d_model",
        "block_count": "n_layers",
        "feed_forward_length": lambda config: int(
            config.get("expansion_ratio", default=4) * config.need("d_model")
        ),
        "attention.head_count": "n_heads",
        "attention.head_count_kv": lambda config: _of_attention(
            "kv_n_heads", default=config.need("n_heads")
        )(config),
        "attention.key_length": lambda _: None,
        "attention.value_length": lambda _: None,
        "attention.layer_norm_epsilon": lambda config: float(
            config.get("layer_norm_epsilon", default=EPS)
        ),
        "attention.clamp_kqv": _clamp,
        "attention.max_alibi_bias": _slope,
        "rope.dimension_count": lambda _: None,
    },
    prefixes=("transformer.",),
    harmless=dict.fromkeys(
        ("learned_pos_emb", "no_bias", "init_device", "init_config", "verbose", "emb_pdrop",
         "resid_pdrop", "embedding_fraction", "tokenizer_name", "max_position_embeddings"),
        "it changes no result, or the tensors say the same",
    ),
    expects={"norm_type": ("low_precision_layernorm", "layernorm"), "logit_scale": ()},
)  # fmt: skip


ARCHITECTURE = Architecture(("mpt",), describe, (CHECKPOINT,))
