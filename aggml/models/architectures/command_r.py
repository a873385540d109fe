"""command-r: attention and net side by side after one LayerNorm; Command R and R+, Aya."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import cohere2
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, HEAD_NORMS, number
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

LARGE: Final = 64  # models with so many layers or more have norms of each head


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, rope = layers_of(hp), rope_of(hp, "normal", factors=None)
    norm = "own head" if layers >= LARGE else None
    mixers = (attention_of(hp, rope, i, norm=norm) for i in range(layers))
    return layer_norm_description_of(
        hp,
        [Layer(mixer, FeedForward(), before_feed_forward=None, parallel=True) for mixer in mixers],
        logit_scale=hp.number("logit_scale", 0.0) or 1.0,
    )


def _check_norms(config: Config) -> None:
    """Refuses norms of heads in models that have none in GGUF, and their lack in others.

    Raises:
        ModelError: config.json has such a setting.
    """
    told, layers = config.get("use_qk_norm", default=False), config.need("num_hidden_layers")
    if told != (layers >= LARGE):
        raise ModelError(
            f"config.json has use_qk_norm = {told} for {layers} layers; models with {LARGE} layers "
            "and more have such norms, and no others"
        )


CHECKPOINT: Final = Checkpoint(
    ("cohere",), {**cohere2.CHECKPOINT.tensors, **HEAD_NORMS},
    CENTRED_KEYS | {
        "logit_scale": number("logit_scale", default=0.0625),
        "attention.head_norms": _check_norms,
    },
    expects=cohere2.CHECKPOINT.expects,
)  # fmt: skip


ARCHITECTURE = Architecture(("command-r",), describe, (CHECKPOINT,))
