"""How many replicas a service needs: by the tokens that it still owes, and by its requests.

In Ray Serve's own rule a request for ten tokens counts as much as one for a thousand. Here: the
number that a replica reports to Ray Serve, and the rule that uses it. Not here: the deployment
(replicas.py).
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

    _asgi_app: Starlette  # Ray Serve's name for it

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The number that `ByTokens` uses; Ray Serve asks for it several times a second."""
        models = self._asgi_app.state.service.completers.values()
        return {OWED: float(sum(model.engine.owed for model in models))}


class ByTokens:
    """A scaling rule for Ray Serve: enough replicas for the tokens owed and for the requests.

    Args:
        tokens: how many tokens one replica may owe.
        requests: how many requests one replica may have under way.
    """

    def __init__(self, tokens: float, requests: float) -> None:
        self._tokens, self._requests = tokens, requests

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """How many replicas there should be; Ray Serve follows after some delay."""
        owed = sum((context.aggregated_metrics or {}).get(OWED, {}).values())
        wanted = max(owed / self._tokens, context.total_num_requests / self._requests)
        fewest = context.capacity_adjusted_min_replicas
        most = context.capacity_adjusted_max_replicas
        return max(fewest, min(most, math.ceil(wanted))), {}
