"""mamba2: no attention and no feed-forward nets, a selective scan in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import Mamba2
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import description_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    mixer = Mamba2(
        inner=hp.integer("ssm.inner_size"),
        heads=hp.integer("ssm.time_step_rank"),
        groups=hp.integer("ssm.group_count"),
        state=hp.integer("ssm.state_size"),
        kernel=hp.integer("ssm.conv_kernel"),
    )
    return description_of(hp, [Layer(mixer, None)] * hp.integer("block_count"))


ARCHITECTURE = Architecture(("mamba2",), describe)
