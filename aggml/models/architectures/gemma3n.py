"""gemma3n: gemma4's embeddings of layers, several streams of each token, and nets with few values.

The last layers use the keys and values of earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.blocks import (
    AltUp,
    BesideLaurel,
    FeedForward,
    StreamCorrection,
    StreamPrediction,
)
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    HEAD_NORMS,
    number,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, sliding_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.blocks import Attention
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

MOST_STREAMS: Final = 64
#: Of both published models: layers with keys of their own, and layers whose nets use few values.
KEYED: Final = 20
SPARSE: Final = 10
SHARE: Final = 0.95  # of the values of a sparse net that count as 0


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    size = hp.integer("embedding_length_per_layer_input", 256, least=1)
    count = hp.integer("altup.num_inputs", 4, least=2, most=MOST_STREAMS)
    streams = AltUp(count, hp.integer("altup.active_idx", 0, most=count - 1))
    each = zip(_mixers(hp), _cutoffs(hp), strict=True)
    return description_of(
        hp,
        [
            Layer(
                BesideLaurel(mixer), FeedForward("gelu", cutoff=cutoff),
                after_feed_forward="post_ffw_norm", sum_scale=math.sqrt(0.5),
                beginning=StreamPrediction(streams), ending=StreamCorrection(streams, i, size),
            )
            for i, (mixer, cutoff) in enumerate(each)
        ],
        embedding_scale=math.sqrt(hp.integer("embedding_length", least=1)),
        logit_soft_cap=hp.number("final_logit_softcapping", 30.0, least=0.0),  # as llama.cpp
        layer_embedding=size,
        streams=streams,
        entire=True,
    )  # fmt: skip


def _mixers(hp: Hyperparameters) -> list[Attention]:
    """The attention of each layer.

    Raises:
        ModelError: a layer shall use the keys of one of its kind, and there is none.
    """
    layers, rope = layers_of(hp), rope_of(hp, "neox", factors=None)
    local = sliding_layers(hp, layers, 5)
    window = hp.integer("attention.sliding_window", least=1)
    base = hp.number("rope.freq_base_swa", 10000.0, above=0.0)
    shared = max(layers - KEYED, 0)
    own = layers - hp.integer("attention.shared_kv_layers", shared, most=layers - 1)
    lenders = {near: i for i, near in enumerate(local[:own])}  # the last one of each kind
    missing = [i for i in range(own, layers) if local[i] not in lenders]
    if missing:
        raise ModelError(
            f"{hp.architecture}.attention.shared_kv_layers is {layers - own}, but no layer before "
            f"layer {own} has keys for layer {missing[0]}, which has "
            f"{'a' if local[missing[0]] else 'no'} window"
        )
    return [
        attention_of(
            hp, replace(rope, base=base, scale=1.0) if near else rope, i,
            scale=1.0, norm="head", value_norm=True, window=window if near else None,
            lends=own < layers and i in lenders.values(),
            borrows=None if i < own else lenders[near],
        )
        for i, near in enumerate(local)
    ]  # fmt: skip


def _cutoffs(hp: Hyperparameters) -> list[float | None]:
    """`FeedForward.cutoff` of each layer; the file has -inf for none.

    Raises:
        ModelError: the file has fewer numbers than layers, or something else.
    """
    layers = layers_of(hp)
    told = hp.get("activation_sparsity_scale")
    if told is None:
        return [NormalDist().inv_cdf(SHARE) if i < SPARSE else None for i in range(layers)]
    each = np.asarray(told)
    if each.ndim != 1 or len(each) < layers or each.dtype.kind not in "fi":
        raise ModelError(
            f"{hp.architecture}.activation_sparsity_scale is {told!r:.60}, expected was a number "
            f"for each of {layers} layers"
        )
    found = [float(x) for x in each[:layers]]
    wrong = [x for x in found if math.isnan(x) or x == math.inf]
    if wrong:
        raise ModelError(
            f"{hp.architecture}.activation_sparsity_scale has the value {wrong[0]}, expected were "
            "finite numbers, or -inf for layers that use all values"
        )
    return [None if x == -math.inf else x for x in found]


def _deviations(config: Config) -> list[float]:
    """How many standard deviations above the mean the cutoff of each layer is."""
    layers = int(config.need("num_hidden_layers"))
    told = config.get("activation_sparsity_pattern")
    if told is None:
        told = [SHARE if layers > SPARSE and i < SPARSE else 0.0 for i in range(layers)]
    each = told if isinstance(told, list) else [told] * layers
    numbers = (isinstance(x, (int, float)) and not isinstance(x, bool) for x in each)
    if len(each) != layers or not all(numbers) or not all(0 <= x < 1 for x in each):
        raise ModelError(
            f"config.json has activation_sparsity_pattern = {told!r:.60} for {layers} layers; "
            "expected was a number from 0 to 1 (exclusive) for each"
        )
    return [NormalDist().inv_cdf(x) if x > 0 else -math.inf for x in each]


def _of_every_token() -> Recipe:
    """Embeddings of layers; tokens without some have those of the first token."""

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        rows = max(int(config.need("vocab_size")), shapes[0][0])
        return rows, shapes[0][1]

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        rows, columns = shape([x.shape], config)
        return np.concatenate([x, np.broadcast_to(x[:1], (rows - len(x), columns))])

    return Recipe(("embed_tokens_per_layer",), make, shape)


CHECKPOINT: Final = Checkpoint(
    ("gemma3n_text", "gemma3n"),
    {
        **DECODER, **HEAD_NORMS,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_norm": "layers.{i}.pre_feedforward_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
        "blk.{i}.inp_gate": "layers.{i}.per_layer_input_gate",
        "blk.{i}.proj": "layers.{i}.per_layer_projection",
        "blk.{i}.post_norm": "layers.{i}.post_per_layer_input_norm",
        "blk.{i}.altup_correct_coef": "layers.{i}.altup.correction_coefs",
        "blk.{i}.altup_correct_scale.weight": "layers.{i}.altup.correct_output_scale",
        "blk.{i}.altup_predict_coef": "layers.{i}.altup.prediction_coefs",
        "blk.{i}.altup_router": "layers.{i}.altup.modality_router",
        "blk.{i}.altup_router_norm": "layers.{i}.altup.router_norm",
        "blk.{i}.laurel_l": "layers.{i}.laurel.linear_left",
        "blk.{i}.laurel_r": "layers.{i}.laurel.linear_right",
        "blk.{i}.laurel_post_norm": "layers.{i}.laurel.post_laurel_norm",
        "altup_proj": stack("altup_projections.{e}"),
        "altup_unembd_proj": stack("altup_unembed_projections.{e}"),
        "per_layer_token_embd": _of_every_token(),
        "per_layer_model_proj": "per_layer_model_projection",
        "per_layer_proj_norm": "per_layer_projection_norm",
    },
    {
        **DECODER_KEYS,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(5),
        "attention.shared_kv_layers": lambda config: config.get("num_kv_shared_layers", default=15),
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "altup.num_inputs": lambda config: config.get("altup_num_inputs", default=4),
        "altup.active_idx": lambda config: config.get("altup_active_idx", default=0),
        "activation_sparsity_scale": _deviations,
        "final_logit_softcapping": number("final_logit_softcapping", default=30.0),
    },
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(r"vision_tower\.", r"audio_tower\.", r"embed_vision\.", r"embed_audio\."),
    harmless={
        "vocab_size_per_layer_input": "the shape of the tensor says the same",
        "laurel_rank": "the shapes of the tensors say the same",
        "altup_coef_clip": "weights are clipped in training only",
    },
    expects={"hidden_activation": ("gelu_pytorch_tanh",), "altup_correct_scale": (True,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("gemma3n",), describe, (CHECKPOINT,))
