"""From hyperparameters to blocks: what most architectures read in the same way.

Here: heads, rotary positions, experts and whole models, from keys with GGUF's names. Keyword
arguments replace values that were read. Not here: the differences of one architecture
(architectures/).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from aggml.models.blocks.attention import Attention
from aggml.models.blocks.experts import Experts
from aggml.models.blocks.feed_forward import FeedForward
from aggml.models.blocks.mamba2 import Mamba2
from aggml.models.blocks.rope import Rope
from aggml.models.description import Description, Layer
from aggml.models.encoder.description import EncoderDescription
from aggml.models.errors import ModelError
from aggml.models.hyperparameters import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.description import Block, Mixer
    from aggml.models.encoder.description import EncoderLayer, Pooling
    from aggml.models.hyperparameters import Hyperparameters

__all__ = [
    "LARGEST_EPS",
    "POOLINGS",
    "add_prediction_head",
    "attention_of",
    "deepstack_of",
    "description_of",
    "divides",
    "each_flag",
    "encoder_of",
    "experts_of",
    "head_length",
    "layer_norm_description_of",
    "layers_of",
    "limits_of",
    "mamba2_of",
    "nets_of",
    "pooling_of",
    "post_norm_layer",
    "rms_encoder_of",
    "rope_of",
    "routed_experts_of",
    "sliding_layers",
    "window_of",
]

MOST_EXPERTS: Final = 1024  # a larger number is a mistake
#: Architectures whose pictures have rotary positions of rows and columns, and whether the pairs of
#: these take turns.
PLACED: Final[Mapping[str, bool]] = {
    "glm4": False, "glm4moe": False, "paddleocr": False, "qwen2vl": False, "qwen3vl": True,
    "qwen3vlmoe": True, "qwen35": True, "qwen35moe": True,
}  # fmt: skip
LARGEST_EPS: Final = 1.0  # of a norm; models have 1e-12 to 1e-3


def head_length(hp: Hyperparameters) -> int:
    """Elements of a head of queries.

    Raises:
        ModelError: the width is no multiple of the heads, and the file gives no length.
    """
    if hp.get("attention.key_length") is not None:
        return hp.integer("attention.key_length", least=1)
    width = hp.integer("embedding_length", least=1)
    heads = hp.each_layer("attention.head_count", 1, least=1)[0]
    if width % heads:
        raise ModelError(
            f"{hp.architecture}.attention.head_count is {heads}, which does not divide "
            f"{hp.architecture}.embedding_length = {width}"
        )
    return width // heads


def layers_of(hp: Hyperparameters) -> int:
    """How many layers the model has, without those that only predict further tokens (MTP)."""
    layers = hp.integer("block_count", least=1, most=MOST_LAYERS)
    return layers - hp.integer("nextn_predict_layers", 0, most=layers - 1)


def rope_of(hp: Hyperparameters, mode: Literal["normal", "neox"], **changes: Any) -> Rope:  # noqa: ANN401
    """Rotary positions, with the extension of the context that the file asks for.

    Raises:
        ModelError: an unknown way of extending the context.
    """
    head = head_length(hp)
    # as llama.cpp reads files: older ones give a factor alone, which is linear
    kind = hp.text("rope.scaling.type", "linear", ("none", "linear", "yarn", "longrope"))
    factor = hp.number(
        "rope.scaling.factor", hp.number("rope.scale_linear", 1.0, least=0.0), least=0.0
    )
    stretched = kind in ("linear", "yarn") and factor > 0
    context = hp.integer("context_length", least=1)
    dims = hp.integer("rope.dimension_count", head, least=2, most=max(head, 2))
    if dims % 2:
        raise ModelError(
            f"{hp.architecture}.rope.dimension_count is {dims}, expected was an even number"
        )
    read: dict[str, Any] = {
        "dims": dims,
        "mode": mode,
        "base": hp.number("rope.freq_base", 10000.0, above=0.0),
        "scale": 1.0 / factor if stretched else 1.0,
        "original_context": hp.integer("rope.scaling.original_context_length", context) or context,
        "extrapolation": 1.0 if kind == "yarn" else 0.0,
        "attention_factor": hp.number("rope.scaling.attn_factor", 1.0, above=0.0),
        "beta_fast": hp.number("rope.scaling.yarn_beta_fast", 32.0, above=0.0),
        "beta_slow": hp.number("rope.scaling.yarn_beta_slow", 1.0, above=0.0),
    }
    if hp.architecture in PLACED:
        told = hp.get("rope.dimension_sections")
        if isinstance(told, (list, np.ndarray)):
            each = np.asarray(told).tolist()
            whole = all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in each)
            if len(each) != 4 or not whole or not 0 < sum(each) <= dims // 2:
                raise ModelError(
                    f"{hp.architecture}.rope.dimension_sections is {each!r:.64}, expected four "
                    f"numbers with a sum of at most {dims // 2}"
                )
            read |= {"sections": tuple(each), "interleaved": PLACED[hp.architecture]}
    return Rope(**read | changes)


def attention_of(
    hp: Hyperparameters,
    rope: Rope | None,
    layer: int = 0,
    **changes: Any,  # noqa: ANN401
) -> Attention:
    """Attention of one layer."""
    layers = layers_of(hp)
    heads = hp.each_layer("attention.head_count", layers, least=1)
    kv_heads = hp.each_layer("attention.head_count_kv", layers, heads[0])
    head = head_length(hp)
    # a layer without heads of keys has no attention: see granitehybrid
    if kv_heads[layer] and heads[layer] % kv_heads[layer]:
        raise ModelError(
            f"{hp.architecture}.attention.head_count_kv is {kv_heads[layer]}, which does not "
            f"divide {hp.architecture}.attention.head_count = {heads[layer]}"
        )
    read: dict[str, Any] = {
        "heads": heads[layer],
        "kv_heads": kv_heads[layer],
        "key_length": head,
        "value_length": hp.integer("attention.value_length", head, least=1),
        "rope": rope,
    }
    return Attention(**read | changes)


def experts_of(hp: Hyperparameters, **changes: Any) -> Experts:  # noqa: ANN401
    """The experts of a layer; all layers have the same."""
    count = hp.integer("expert_count", least=1, most=MOST_EXPERTS)
    read: dict[str, Any] = {
        "count": count,
        "used": hp.integer("expert_used_count", least=1, most=count),
        "scale": hp.number("expert_weights_scale", 1.0) or 1.0,
    }
    return Experts(**read | changes)


#: How experts are weighed, by GGUF's numbers.
GATINGS: Final[Mapping[int, str]] = {1: "softmax", 2: "sigmoid", 3: "chosen"}


def routed_experts_of(
    hp: Hyperparameters,
    gating: Literal["softmax", "sigmoid"] = "softmax",
    **changes: Any,  # noqa: ANN401
) -> Experts:
    """Experts of which the file says how they are chosen and weighed.

    Args:
        hp: of the file.
        gating: if the file does not say it.
        changes: to what was read.

    Raises:
        ModelError: an unknown way of weighing experts; groups that do not divide the experts, or
            are too small.
    """
    kind = hp.integer("expert_gating_func", 0)
    if kind and kind not in GATINGS:
        raise ModelError(
            f"{hp.architecture}.expert_gating_func is {kind}, not 1 (softmax), 2 (sigmoid) or 3 "
            "(the softmax of the chosen ones)"
        )
    count, groups = hp.integer("expert_count", 0), hp.integer("expert_group_count", 1) or 1
    divides(hp, "expert_group_count", groups, "expert_count", count)
    read: dict[str, Any] = {
        "weights": GATINGS[kind] if kind else gating,
        "sum_to_one": hp.flag("expert_weights_norm", False),
        "groups": groups,
        "groups_used": hp.integer("expert_group_used_count", 1, most=groups) or 1,
    }
    found = experts_of(hp, **read | changes)
    size = found.count // found.groups
    if found.groups > 1 and size < found.group_best:
        raise ModelError(
            f"{hp.architecture}.expert_group_count is {found.groups}, so a group has {size} of "
            f"{found.count} experts, expected at least {found.group_best}"
        )
    return found


def nets_of(hp: Hyperparameters, experts: Experts, step: int = 1) -> list[Block]:
    """The net of each layer: some dense ones first, and then experts in every ``step``-th layer."""
    dense = hp.integer("leading_dense_block_count", 0)
    return [FeedForward() if i < dense or (i + 1) % step else experts for i in range(layers_of(hp))]


def mamba2_of(hp: Hyperparameters) -> Mamba2:
    """The scan of Mamba 2."""
    found = Mamba2(
        inner=hp.integer("ssm.inner_size", least=1),
        heads=hp.integer("ssm.time_step_rank", least=1),
        groups=hp.integer("ssm.group_count", least=1),
        state=hp.integer("ssm.state_size", least=1),
        kernel=hp.integer("ssm.conv_kernel", least=2),
    )
    divides(hp, "ssm.time_step_rank", found.heads, "ssm.inner_size", found.inner)
    divides(hp, "ssm.group_count", found.groups, "ssm.time_step_rank", found.heads)
    return found


def divides(hp: Hyperparameters, name: str, n: int, of: str, whole: int) -> None:
    """Refuse two numbers of which the first must divide the second, if it does not.

    Raises:
        ModelError: it does not.
    """
    if whole % n:
        raise ModelError(
            f"{hp.architecture}.{name} is {n}, which does not divide {hp.architecture}.{of} = "
            f"{whole}"
        )


def window_of(hp: Hyperparameters) -> int | None:
    """The window of all layers, in positions; None: every layer sees all."""
    window = hp.integer("attention.sliding_window", 0)
    return window if 0 < window < hp.integer("context_length", least=1) else None


def sliding_layers(hp: Hyperparameters, layers: int, period: int) -> tuple[bool, ...]:
    """Which layers see only a window: as the file says, or all but every ``period``-th.

    Raises:
        ModelError: the file has fewer values than layers.
    """
    name = "attention.sliding_window_pattern"
    if not isinstance(hp.get(name, period), (list, np.ndarray)):
        period = hp.integer(name, period)
        return tuple(period == 0 or i % period < period - 1 for i in range(layers))
    return each_flag(hp, name, layers, default=True)


def each_flag(hp: Hyperparameters, name: str, layers: int, *, default: bool) -> tuple[bool, ...]:
    """True or false for each layer.

    Args:
        hp: of the file.
        name: of the key, without the architecture.
        layers: how many.
        default: of all layers, if the file does not give the key.

    Raises:
        ModelError: the file has fewer values than layers, or others.
    """
    given = hp.get(name)
    if given is None:
        return (default,) * layers
    pattern = given if isinstance(given, (list, np.ndarray)) else [given]
    if len(pattern) < layers or not all(x in (0, 1) for x in pattern):
        raise ModelError(
            f"{hp.architecture}.{name} has {len(pattern)} values for {layers} layers; expected was "
            "true or false for each"
        )
    return tuple(bool(x) for x in pattern[:layers])


def limits_of(hp: Hyperparameters, name: str, layers: int) -> list[float]:
    """The limit of each layer's activations; 0: it has none.

    Raises:
        ModelError: too few of them, or one that is no number from 0 on.
    """
    told = hp.get(name)
    if told is None:
        return [0.0] * layers
    if not isinstance(told, (list, np.ndarray)):
        return [hp.number(name, least=0.0)] * layers
    right = all(isinstance(x, (int, float, np.floating)) and 0 <= x < np.inf for x in told)
    if len(told) < layers or not right:
        raise ModelError(
            f"{hp.architecture}.{name} has {len(told)} values for {layers} layers; expected was a "
            "number from 0 on for each"
        )
    return [float(x) for x in told[:layers]]


def post_norm_layer(mixer: Mixer, feed_forward: Block, **changes: Any) -> Layer:  # noqa: ANN401
    """A layer that has norms after its blocks, too."""
    read: dict[str, Any] = {
        "after_mixer": "post_attention_norm",
        "after_feed_forward": "post_ffw_norm",
    }
    return Layer(mixer, feed_forward, **read | changes)


def description_of(hp: Hyperparameters, layers: Sequence[Layer], **changes: Any) -> Description:  # noqa: ANN401
    """A whole model with these layers.

    Raises:
        ModelError: an unknown way of pooling.
    """
    kind, pooling = pooling_of(hp)
    read: dict[str, Any] = {
        "architecture": hp.architecture,
        "width": hp.integer("embedding_length", least=1),
        "context_length": hp.integer("context_length", least=1),
        "layers": tuple(layers),
        "pooling": "rank" if kind == RANK else pooling,
    }
    if "eps" not in changes:
        read["eps"] = hp.number("attention.layer_norm_rms_epsilon", least=0.0, most=LARGEST_EPS)
    return Description(**read | changes)


def add_prediction_head(hp: Hyperparameters, model: Description, layer: Layer) -> Description:
    """Add the head that predicts a further token (MTP) to a model, if the file says it has one.

    Args:
        hp: of the file.
        model: without the head.
        layer: of the head. Of several heads the first one is used, for each further token.
    """
    if not hp.integer("nextn_predict_layers", 0):
        return model
    head = replace(model, layers=(layer,), first=len(model.layers), predicts=True)
    return replace(model, ahead=head)


def deepstack_of(hp: Hyperparameters) -> int:
    """How many first layers get something more of the positions of pictures."""
    return hp.integer("n_deepstack_layers", 0, most=layers_of(hp) - 1)


def layer_norm_description_of(
    hp: Hyperparameters,
    layers: Sequence[Layer],
    **changes: Any,  # noqa: ANN401
) -> Description:
    """A whole model with these layers, whose norms subtract the mean (LayerNorm)."""
    eps = hp.number("attention.layer_norm_epsilon", least=0.0, most=LARGEST_EPS)
    return description_of(hp, layers, eps=eps, centred=True, **changes)


def rms_encoder_of(
    hp: Hyperparameters,
    layers: Sequence[EncoderLayer],
    **changes: Any,  # noqa: ANN401
) -> EncoderDescription:
    """A whole encoder with RMS norms before its blocks, and perhaps fewer heads of keys."""
    heads = hp.integer("attention.head_count", least=1)
    kv_heads = hp.integer("attention.head_count_kv", heads, least=1)
    divides(hp, "attention.head_count_kv", kv_heads, "attention.head_count", heads)
    read: dict[str, Any] = {
        "eps": hp.number("attention.layer_norm_rms_epsilon", least=0.0, most=LARGEST_EPS),
        "kv_heads": kv_heads,
        "head_length": head_length(hp),
        "rms": True,
        "embedding_norm": False,
    }
    return encoder_of(hp, layers, **read | changes)


#: Of weights of words; log(1 + x) is taken of each, too.
ACTIVATIONS: Final = ("relu", "log1p_relu")
RANK: Final = 4  # the way of pooling of a rank head
#: Ways of pooling by GGUF's numbers; 0 is none, for which a decoder takes the mean, and the rank
#: head of an encoder takes the first token.
POOLINGS: Final[Mapping[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last", RANK: "cls"}


def pooling_of(hp: Hyperparameters) -> tuple[int, Pooling]:
    """The file's way of pooling: GGUF's number, and its name.

    Raises:
        ModelError: an unknown way of pooling.
    """
    kind = hp.integer("pooling_type", 1)
    if kind not in POOLINGS:
        raise ModelError(
            f"{hp.architecture}.pooling_type is {kind}, not 1 (mean), 2 (the first token) or "
            "3 (the last)"
        )
    return kind, POOLINGS[kind]


def encoder_of(
    hp: Hyperparameters,
    layers: Sequence[EncoderLayer],
    **changes: Any,  # noqa: ANN401
) -> EncoderDescription:
    """A whole encoder with these layers.

    Raises:
        ModelError: an unknown way of pooling.
    """
    kind, pooling = pooling_of(hp)
    read: dict[str, Any] = {
        "architecture": hp.architecture,
        "width": hp.integer("embedding_length", least=1),
        "context_length": hp.integer("context_length", least=1),
        "heads": hp.integer("attention.head_count", least=1),
        "layers": tuple(layers),
        "pooling": "none" if kind == 0 else pooling,
        "normalize": hp.flag("pooling_normalize", True),
        "term_pooling": hp.text("sparse.pooling", "max", ("max", "sum")),
        "multi_left_out": hp.integer("multi.left_out", 0, most=1),
        "term_logs": 1 + (hp.text("sparse.activation", "relu", ACTIVATIONS) == "log1p_relu"),
    }
    if "eps" not in changes:
        read["eps"] = hp.number("attention.layer_norm_epsilon", least=0.0, most=LARGEST_EPS)
    heads, head = read["heads"], head_length(hp)  # refuses heads that do not divide the width
    if "head_length" not in changes and heads * head != read["width"]:
        raise ModelError(
            f"{hp.architecture}.attention.key_length is {head}, expected was "
            f"{read['width'] // heads}, as {heads} heads are as wide as the model"
        )
    return EncoderDescription(**read | changes)
