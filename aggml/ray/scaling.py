"""How many replicas a service needs: by the tokens that it still owes, and by its requests.

A request for ten tokens and one for a thousand count the same in Ray Serve's own rule. Here: what a
replica tells Ray Serve, and the rule that is made of it. Not here: the deployment (replicas.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext
    from starlette.applications import Starlette

__all__ = ["OWED", "ByTokens", "Replica"]

OWED: Final = "owed_tokens"


class Replica:
    """A replica, which tells Ray Serve how many tokens its engines still owe."""

    _asgi_app: Starlette  # as Ray Serve names it

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `ByTokens` looks at; Ray Serve asks for it several times a second."""
        completers = self._asgi_app.state.service.completers.values()
        return {OWED: float(sum(x.model.engine.owed for x in completers))}


class ByTokens:
    """A rule of Ray Serve: replicas for the tokens owed, and no fewer than for the requests.

    Args:
        tokens: that one replica may owe.
        requests: that one replica may have under way.
    """

    def __init__(self, tokens: float, requests: float) -> None:
        self._tokens, self._requests = tokens, requests

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """How many replicas there shall be; Ray Serve waits a while before it does so."""
        owed = sum((context.aggregated_metrics or {}).get(OWED, {}).values())
        wanted = max(owed / self._tokens, context.total_num_requests / self._requests)
        fewest = context.capacity_adjusted_min_replicas
        most = context.capacity_adjusted_max_replicas
        return max(fewest, min(most, math.ceil(wanted))), {}
