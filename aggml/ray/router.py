"""The request router of the replicas, as Ray Serve calls it.

It runs in the process that holds the handle of the replicas: the deployment in front (front.py).
Here: following what Ray reports of replicas and requests. Not here: the decision (routing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ray.serve.request_router import RequestRouter

from aggml.ray.routing import ReplicaPrefixes, rank_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

__all__ = ["ByPrefix"]

MOST_KNOWN: Final = 8192  # pieces remembered of each replica: about 500,000 tokens, 1 MB of memory


class ByPrefix(RequestRouter):
    """Prefers the replica that has got the longest beginning of a prompt before.

    The last argument of a request is the list of its pieces.
    """

    def initialize_state(self, **kwargs: Any) -> None:  # noqa: ANN401 Ray's signature
        """Begin with an empty table.

        Args:
            kwargs: ``imbalance``, as for `routing.rank_replicas`; ``most``, how many pieces are
                remembered of each replica.
        """
        self._imbalance: int = kwargs["imbalance"]
        self._table = ReplicaPrefixes(kwargs.get("most", MOST_KNOWN))
        #: The replica of each request that is under way or about to be sent. Ray's own count is not
        #: enough: for requests that arrive in one turn of the loop, Ray asks for all choices before
        #: it sends the first request.
        self._under_way: dict[str, tuple[str, PendingRequest]] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One replica in each rank: Ray takes the next rank if a replica is full or dead."""
        replicas = {x.replica_id.unique_id: x for x in candidate_replicas}
        request = None if pending_request is None else pending_request.metadata.internal_request_id
        loads = self._loads(replicas, request)
        pieces = [] if pending_request is None else _pieces(pending_request)
        order = rank_replicas(pieces, loads, self._table, self._imbalance)
        if pending_request is not None and request is not None and order:
            self._under_way[request] = order[0], pending_request
            self._table.note(order[0], pieces)
        return [[replicas[name]] for name in order]

    def _loads(self, replicas: dict[str, RunningReplica], but: str | None) -> dict[str, int]:
        """Requests under way at each replica, without ``but``: by our count or Ray's, if higher."""
        ours = dict.fromkeys(replicas, 0)
        for request, (replica, pending) in [*self._under_way.items()]:
            if pending.future.cancelled():
                del self._under_way[request]  # cancelled before it was sent
            elif request != but and replica in ours:
                ours[replica] += 1
        cache = self._replica_queue_len_cache
        return {
            name: max(count, cache.get(replicas[name].replica_id) or 0)
            for name, count in ours.items()
        }

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: object,
    ) -> None:
        """Called when a replica has accepted a request; it may not be the first choice."""
        request, name = pending_request.metadata.internal_request_id, replica_id.unique_id
        if request in self._under_way and self._under_way[request][0] != name:
            self._under_way[request] = name, pending_request
            self._table.note(name, _pieces(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called when a request has ended, for any reason."""
        self._under_way.pop(internal_request_id, None)
        super().on_request_completed(replica_id, internal_request_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called when the set of replicas changes; forgets the pieces of those that are gone."""
        super().update_replicas(replicas)
        self._forget()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called when a replica has died, before Ray Serve updates the set of replicas."""
        super().on_replica_actor_died(replica_id)
        self._forget()

    def _forget(self) -> None:
        self._table.keep([x.unique_id for x in self._replicas])


def _pieces(request: PendingRequest) -> Sequence[bytes]:
    """The pieces that the deployment in front has put into a request."""
    last: Any = request.args[-1] if request.args else None
    return last if isinstance(last, list) else []
