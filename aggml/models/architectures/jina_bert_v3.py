"""jina-bert-v3: BERT with rotary positions instead of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.recipes import Rule
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "neox"), None, "gelu")
    return encoder_of(hp, [layer] * layers_of(hp))


_AT: Final = "encoder.layers.{i}."
_MAP: Final[dict[str, Rule]] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.{i}.attn_qkv": f"{_AT}mixer.Wqkv",
    "blk.{i}.attn_output": f"{_AT}mixer.out_proj",
    "blk.{i}.attn_output_norm": f"{_AT}norm1",
    "blk.{i}.ffn_up": f"{_AT}mlp.fc1",
    "blk.{i}.ffn_down": f"{_AT}mlp.fc2",
    "blk.{i}.layer_output_norm": f"{_AT}norm2",
}
#: What the published model's own code changes by adapters, and so gives other names.
_ADAPTED: Final = (
    "token_embd", "token_types", "blk.{i}.attn_qkv", "blk.{i}.attn_output", "blk.{i}.ffn_up",
    "blk.{i}.ffn_down",
)  # fmt: skip


def _original() -> dict[str, Rule]:
    """The names of tensors of the published folder."""
    found = dict(_MAP)
    for name in _ADAPTED:
        source = found.pop(name)
        found[f"{name}.weight"] = (
            f"{source}.parametrizations.weight.original", f"{source}.weight",
        )  # fmt: skip
        found[f"{name}.bias"] = f"{source}.bias"
    return found


CHECKPOINT: Final = Checkpoint(
    ("jina_embeddings_v3",), _MAP, ENCODER_KEYS, prefixes=("roberta.",),
    ignored=(r"^pooler\.", r"^lm_head\."), expects={"hidden_act": ("gelu",)},
)  # fmt: skip
#: The published folder, with code of its own. Its adapters for tasks are left out: the vectors are
#: those that this code computes without a task.
ORIGINAL: Final = Checkpoint(
    ("xlm-roberta",), _original(), ENCODER_KEYS, prefixes=("roberta.",),
    ignored=(r"^pooler\.", r"^lm_head\.", r"\.lora_[AB]$"), expects={"hidden_act": ("gelu",)},
    condition=lambda config: config.get("position_embedding_type") == "rotary"
    and config.get("lora_adaptations") is not None,
    harmless={
        **dict.fromkeys(
            ("lora_alpha", "lora_dropout_p", "lora_rank", "load_trained_adapters"),
            "adapters are left out",
        ),
        "lora_main_params_trainable": "it is for training",
        "use_reentrant": "it is for training",
        "output_past": "an encoder has no past",
        "emb_pooler": "modules.json says how vectors are pooled",
        "matryoshka_dimensions": "the caller says how many elements a vector has",
        "truncate_dim": "the caller says how many elements a vector has",
        "task_instructions": "config_sentence_transformers.json has them, too",
        "position_embedding_type": "this map is for rotary positions",
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("jina-bert-v3",), describe, (CHECKPOINT, ORIGINAL))
