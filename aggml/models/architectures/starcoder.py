"""starcoder: StarCoder and SantaCoder (gpt_bigcode); gpt2 with one head of keys and values.

GELU is computed by tanh, as in llama.cpp. Folders that name the exact one ("gelu") are read, too,
since no key of GGUF says which: as with gptneox, the difference is below 5e-4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.architectures import gpt2
from aggml.models.description import Architecture

if TYPE_CHECKING:
    from aggml.models.checkpoints.recipes import Rule
    from aggml.models.description import Description
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture: the blocks are those of gpt2."""
    return gpt2.describe(hp)


_LINEAR: Final[dict[str, Rule]] = {
    "blk.{i}.attn_qkv": "h.{i}.attn.c_attn",
    "blk.{i}.attn_output": "h.{i}.attn.c_proj",
    "blk.{i}.ffn_up": "h.{i}.mlp.c_fc",
    "blk.{i}.ffn_down": "h.{i}.mlp.c_proj",
}
CHECKPOINT: Final = replace(
    gpt2.CHECKPOINT,
    model_types=("gpt_bigcode",),
    tensors={**gpt2.CHECKPOINT.tensors, **_LINEAR},
    keys={**gpt2.CHECKPOINT.keys, "attention.head_count_kv": lambda _: 1},
    ignored=(r"attn\.(masked_)?bias$",),
    harmless=dict.fromkeys(
        (
            "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size",
            "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache",
            "validate_runner_input",
        ),
        "it says how results are computed, not which",
    ),
    expects={
        "activation_function": ("gelu_pytorch_tanh", "gelu_new", "gelu"),
        "scale_attn_weights": (True,),
        "add_cross_attention": (False,), "multi_query": (True,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("starcoder",), describe, (CHECKPOINT,))
