"""Errors of stages on other machines, and which of Ray's errors mean that one was lost.

Not here: errors that a stage raises itself; those arrive as they are (futures.py).
"""

from __future__ import annotations

from typing import Final

import ray.exceptions as of_ray

from aggml import AggmlError

__all__ = ["LOST", "StageLost"]


class StageLost(AggmlError, ConnectionError):
    """A stage died, or its node, or the way to it, and it did not come back in time.

    Attributes:
        stage: its number; None: of unknown stage.
        node: where it ran, as Ray names the node; None: it never ran.
    """

    def __init__(self, message: str, stage: int | None = None, node: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.node = node

    def __reduce__(self) -> tuple[type[StageLost], tuple[str, int | None, str | None]]:
        """With all it knows: it may come from another process."""
        return type(self), (str(self), self.stage, self.node)


#: Errors of Ray after which a stage, or what it had computed, is gone.
LOST: Final = (
    of_ray.RayActorError,
    of_ray.ObjectLostError,
    of_ray.NodeDiedError,
    of_ray.LocalRayletDiedError,
    of_ray.WorkerCrashedError,
    of_ray.RpcError,
    of_ray.RayChannelError,
)
