"""mamba: the selective scan of Mamba 1, also of Falcon Mamba."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import Mamba
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    scan = Mamba(
        inner=hp.integer("ssm.inner_size", least=1),
        state=hp.integer("ssm.state_size", least=1),
        rank=hp.integer("ssm.time_step_rank", least=1),
        kernel=hp.integer("ssm.conv_kernel", least=2),
        normed=hp.flag("ssm.dt_b_c_rms", False),
    )
    return description_of(hp, [Layer(scan, None)] * layers_of(hp))


ARCHITECTURE = Architecture(("mamba",), describe)
