"""From hyperparameters to blocks: what most architectures read in the same way.

Here: heads, rotary positions, experts and whole models, from keys with GGUF's names. Keyword
arguments replace values that were read. Not here: the differences of one architecture
(architectures/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from aggml.models.blocks.attention import Attention, Rope
from aggml.models.blocks.experts import Experts
from aggml.models.blocks.mamba2 import Mamba2
from aggml.models.description import Description, Layer
from aggml.models.encoding.description import EncoderDescription
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.description import Block, Mixer
    from aggml.models.encoding.description import EncoderLayer, Pooling
    from aggml.models.hyperparameters import Hyperparameters

__all__ = [
    "POOLINGS",
    "attention_of",
    "centred_of",
    "description_of",
    "encoder_of",
    "experts_of",
    "head_length",
    "mamba2_of",
    "normed_after",
    "rope_of",
    "windowed",
]


def head_length(hp: Hyperparameters) -> int:
    """Elements of a head of queries."""
    heads = hp.each_layer("attention.head_count", 1)[0]
    return hp.integer("attention.key_length", hp.integer("embedding_length") // heads)


def rope_of(hp: Hyperparameters, mode: Literal["normal", "neox"], **changes: Any) -> Rope:  # noqa: ANN401
    """Rotary positions, with the extension of the context that the file asks for.

    Raises:
        ModelError: an unknown way of extending the context.
    """
    head = head_length(hp)
    kind = str(hp.get("rope.scaling.type", "none"))
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(
            f"{hp.architecture}.rope.scaling.type is {kind!r}, not none, linear, yarn or longrope"
        )
    factor = hp.number("rope.scaling.factor", 1.0)
    stretched = kind in ("linear", "yarn") and factor > 0
    context = hp.integer("context_length")
    read: dict[str, Any] = {
        "dims": hp.integer("rope.dimension_count", head),
        "mode": mode,
        "base": hp.number("rope.freq_base", 10000.0),
        "scale": 1.0 / factor if stretched else 1.0,
        "original_context": hp.integer("rope.scaling.original_context_length", context),
        "extrapolation": 1.0 if kind == "yarn" else 0.0,
        "attention_factor": hp.number("rope.scaling.attn_factor", 1.0),
        "beta_fast": hp.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": hp.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    return Rope(**read | changes)


def attention_of(
    hp: Hyperparameters,
    rope: Rope | None,
    layer: int = 0,
    **changes: Any,  # noqa: ANN401
) -> Attention:
    """Attention of one layer."""
    layers = hp.integer("block_count")
    heads = hp.each_layer("attention.head_count", layers)
    kv_heads = hp.each_layer("attention.head_count_kv", layers, heads[0])
    head = head_length(hp)
    read: dict[str, Any] = {
        "heads": heads[layer],
        "kv_heads": kv_heads[layer],
        "key_length": head,
        "value_length": hp.integer("attention.value_length", head),
        "rope": rope,
    }
    return Attention(**read | changes)


def experts_of(hp: Hyperparameters, **changes: Any) -> Experts:  # noqa: ANN401
    """The experts of a layer; all layers have the same."""
    read: dict[str, Any] = {
        "count": hp.integer("expert_count"),
        "used": hp.integer("expert_used_count"),
        "scale": hp.number("expert_weights_scale", 1.0) or 1.0,
    }
    return Experts(**read | changes)


def mamba2_of(hp: Hyperparameters) -> Mamba2:
    """The scan of Mamba 2."""
    return Mamba2(
        inner=hp.integer("ssm.inner_size"),
        heads=hp.integer("ssm.time_step_rank"),
        groups=hp.integer("ssm.group_count"),
        state=hp.integer("ssm.state_size"),
        kernel=hp.integer("ssm.conv_kernel"),
    )


def windowed(hp: Hyperparameters, layers: int, period: int) -> tuple[bool, ...]:
    """Which layers see only a window: as the file says, or all but every ``period``-th."""
    pattern = hp.get("attention.sliding_window_pattern", period)
    if isinstance(pattern, int):
        return tuple(pattern == 0 or i % pattern < pattern - 1 for i in range(layers))
    return tuple(bool(x) for x in pattern[:layers])


def normed_after(mixer: Mixer, feed_forward: Block, **changes: Any) -> Layer:  # noqa: ANN401
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
    kind, pooling = _pooling(hp)
    read: dict[str, Any] = {
        "architecture": hp.architecture,
        "width": hp.integer("embedding_length"),
        "context_length": hp.integer("context_length"),
        "layers": tuple(layers),
        "pooling": "rank" if kind == RANK else pooling,
    }
    if "eps" not in changes:
        read["eps"] = hp.number("attention.layer_norm_rms_epsilon")
    return Description(**read | changes)


def centred_of(hp: Hyperparameters, layers: Sequence[Layer], **changes: Any) -> Description:  # noqa: ANN401
    """A whole model with these layers, whose norms subtract the mean (LayerNorm)."""
    eps = hp.number("attention.layer_norm_epsilon")
    return description_of(hp, layers, eps=eps, centred=True, **changes)


RANK: Final = 4  # the way of pooling of a rank head
#: Ways of pooling by GGUF's numbers; 0 is none, and the rank head of an encoder takes the first
#: token.
POOLINGS: Final[Mapping[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last", RANK: "cls"}


def _pooling(hp: Hyperparameters) -> tuple[int, Pooling]:
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
    read: dict[str, Any] = {
        "architecture": hp.architecture,
        "width": hp.integer("embedding_length"),
        "context_length": hp.integer("context_length"),
        "heads": hp.integer("attention.head_count"),
        "eps": hp.number("attention.layer_norm_epsilon"),
        "layers": tuple(layers),
        "pooling": _pooling(hp)[1],
        "normalize": hp.flag("pooling_normalize", True),
    }
    return EncoderDescription(**read | changes)
