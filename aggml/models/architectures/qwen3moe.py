"""qwen3moe: qwen3 with experts, whose weights sum to one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    PICTURES,
    UNUSED_WINDOW,
)
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, half, transpose_experts
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    deepstack_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), experts_of(hp, sum_to_one=True)
    layers = range(layers_of(hp))
    attention = (attention_of(hp, rope, i, norm="head") for i in layers)
    return description_of(
        hp, [Layer(mixer, net) for mixer in attention], deepstack=deepstack_of(hp)
    )


CHECKPOINT: Final = Checkpoint(
    ("qwen3_moe",), DECODER | HEAD_NORMS | EXPERTS, DECODER_KEYS | EXPERT_KEYS,
    harmless=UNUSED_WINDOW,
    expects={
        "hidden_act": ("silu",), "use_sliding_window": (False,), "norm_topk_prob": (True,),
        "decoder_sparse_step": (1,), "mlp_only_layers": ([],),
    },
)  # fmt: skip


def _unpack_experts(part: str, which: int | None) -> Recipe:
    """The experts' matrices, which lie in one tensor in either of two directions.

    Args:
        part: of the name in the folder.
        which: 0: the first half of the rows, 1: the second one, None: all.
    """
    source = f"layers.{{i}}.mlp.experts.{part}_proj"
    turned = transpose_experts(source, which)
    straight = Recipe((source,), lambda x, _: x[0], lambda shapes, _: shapes[0])
    if which is not None:
        straight = half(source, which, axis=1)

    def of(shape: Shape, config: Config) -> Recipe:
        width = int(config.need("hidden_size"))
        inner = int(config.need("moe_intermediate_size"))
        rows = (width, inner) if which is None else (2 * inner, width)
        return straight if shape[1:] == rows else turned

    return Recipe(
        (source,),
        lambda arrays, config: of(arrays[0].shape, config).make(arrays, config),
        lambda shapes, config: of(shapes[0], config).shape(shapes, config),
    )


#: The text of models that see.
SEEING: Final = replace(
    CHECKPOINT,
    model_types=("qwen3_vl_moe_text", "qwen3_vl_moe"),
    architecture="qwen3vlmoe",
    tensors={
        **{x: y for x, y in CHECKPOINT.tensors.items() if not x.endswith("_exps")},
        "blk.{i}.ffn_gate_exps.weight": _unpack_experts("gate_up", 0),
        "blk.{i}.ffn_up_exps.weight": _unpack_experts("gate_up", 1),
        "blk.{i}.ffn_down_exps.weight": _unpack_experts("down", None),
    },
    keys=DECODER_KEYS | EXPERT_KEYS | PICTURES,
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(r"^(model\.)?visual\.",),
)


ARCHITECTURE = Architecture(("qwen3moe", "qwen3vlmoe"), describe, (CHECKPOINT, SEEING))
