"""chatglm: ChatGLM 3, GLM-4 9B, GLM-Edge; biases of queries, gate and up in one matrix.

glm4 has the same blocks with two more norms. Not here: folders of ChatGLM's own code, whose
vocabularies are programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "normal", factors=None), FeedForward(joined=True)
    mixers = (attention_of(hp, rope, i, joined=None) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


CHECKPOINT: Final = Checkpoint(
    ("glm",),
    DECODER | {"blk.{i}.ffn_up": "layers.{i}.mlp.gate_up_proj"},
    DECODER_KEYS,
    expects={"hidden_act": ("silu",)},
)


ARCHITECTURE = Architecture(("chatglm",), describe, (CHECKPOINT,))
