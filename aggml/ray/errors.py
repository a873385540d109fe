"""StageLost, and which of Ray's errors mean that an actor was lost.

Not here: errors that a stage raises itself; they arrive unchanged (futures.py).
"""

from __future__ import annotations

from typing import Final

import ray.exceptions as of_ray

from aggml import AggmlError

__all__ = ["LOST", "StageLost"]


class StageLost(AggmlError, ConnectionError):
    """A stage, its node or its connection died, and the stage did not come back in time.

    Attributes:
        stage: the number of the stage; None: unknown.
        node: Ray's id of the node where it ran; None: unknown, or it never ran.
    """

    def __init__(self, message: str, stage: int | None = None, node: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.node = node

    def __reduce__(self) -> tuple[type[StageLost], tuple[str, int | None, str | None]]:
        """Pickle it with all attributes, because it may come from another process."""
        return type(self), (str(self), self.stage, self.node)


#: Ray's errors after which an actor, or a result that it had computed, is gone.
LOST: Final = (
    of_ray.RayActorError,
    of_ray.ObjectLostError,
    of_ray.NodeDiedError,
    of_ray.LocalRayletDiedError,
    of_ray.WorkerCrashedError,
    of_ray.RpcError,
    of_ray.RayChannelError,
)
