"""Which layers go to which stage.

Here: a plain function on costs and sizes. Not here: where costs come from (pipeline.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aggml import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cut"]


def cut(
    costs: Sequence[float] | Sequence[Sequence[float]],
    stages: int,
    *,
    speeds: Sequence[float] | None = None,
    sizes: Sequence[float] | None = None,
    limits: Sequence[float] | None = None,
    begin: float = 0.0,
    end: float | Sequence[float] = 0.0,
) -> list[tuple[int, int]]:
    """Cut layers into ranges so that the slowest stage is as fast as possible.

    A pipeline gives a result each time its slowest stage ends a step. So that stage alone decides
    how fast the pipeline is.

    Args:
        costs: time of each layer, in any unit; or one such list for each stage, if stages differ.
        stages: how many, each with at least one layer.
        speeds: of each stage; its time is its cost divided by its speed. None: all 1.
        sizes: bytes of each layer.
        limits: bytes for which each stage has room.
        begin: additional cost of the first stage: the embeddings.
        end: additional cost of the last stage: the output; or a list of this cost on each stage.

    Returns:
        For each stage its first layer and the one after its last.

    Raises:
        InvalidArgument: fewer layers than stages, or no stages; no cut fits into ``limits``.
    """
    rows = _of_each_stage(costs, stages)
    n = len(rows[0]) if rows else 0
    if not 1 <= stages <= n:
        raise InvalidArgument(f"[cut] {n} layers cannot be cut into {stages} stages: give 1 to {n}")
    faster = list(speeds or [1.0] * stages)
    room = list(limits or [float("inf")] * stages)
    for name, given in (("speeds", faster), ("limits", room)):
        if len(given) != stages:
            raise InvalidArgument(
                f"[cut] {len(given)} {name} for {stages} stages: give one for each"
            )
    ends = [float(end)] * stages if isinstance(end, int | float) else list(end)
    size = [0.0, *itertools.accumulate(sizes or [0.0] * n)]
    worst = float("inf")
    # best[i]: the least possible time of the slowest stage if the stages so far have the layers
    # before layer i; back[s][i]: the first layer of stage s in that case.
    best = [0.0] + [worst] * n
    back: list[list[int]] = []
    for stage in range(stages):
        beside = (begin if stage == 0 else 0.0) + (ends[stage] if stage == stages - 1 else 0.0)
        time = [0.0, *itertools.accumulate(rows[stage])]
        reached, begins = [worst] * (n + 1), [0] * (n + 1)
        for stop in range(stage + 1, n + 1):
            for first in range(stage, stop):
                if size[stop] - size[first] > room[stage]:
                    continue
                slowest = max(best[first], (time[stop] - time[first] + beside) / faster[stage])
                if slowest < reached[stop]:
                    reached[stop], begins[stop] = slowest, first
        best = reached
        back.append(begins)
    if best[n] == worst:
        raise InvalidArgument(
            f"[cut] layers of {size[n]:.0f} bytes do not fit into {room}: give more stages or "
            "memory"
        )
    edges = [n]
    for begins in reversed(back):
        edges.append(begins[edges[-1]])
    return list(itertools.pairwise(reversed(edges)))


def _of_each_stage(
    costs: Sequence[float] | Sequence[Sequence[float]], stages: int
) -> list[list[float]]:
    """The time of each layer on each stage."""
    plain = [float(x) for x in costs if isinstance(x, int | float)]
    if len(plain) == len(costs):
        return [plain] * stages
    rows = [list(x) for x in costs if not isinstance(x, int | float)]
    if len(rows) != stages or len({len(row) for row in rows}) != 1:
        raise InvalidArgument(
            f"[cut] costs has {len(rows)} lists for {stages} stages: give one each, equally long"
        )
    return rows
