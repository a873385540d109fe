"""Copies of rows from one place of the caches to another, in host memory or by a graph.

Here: the copying itself. Not here: which rows hold which positions (paging.py,
aggml/models/engine/prefixes.py), copies of whole sequences (caches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aggml import ops

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator, Sequence

    from aggml import Tensor

__all__ = ["Run", "copied", "copy_nodes", "joined"]


class Run(NamedTuple):
    """``n`` consecutive rows: the first row to read and the first row to write.

    Source and target do not overlap.
    """

    source: int
    target: int
    n: int


def copied(memory: mmap.mmap, caches: Sequence[tuple[Tensor, int]], runs: Iterable[Run]) -> None:
    """Copy rows within host memory.

    Args:
        memory: where the caches lie.
        caches: each cache, and the offset in ``memory`` at which it begins.
        runs: the rows.
    """
    held = np.frombuffer(memory, np.uint8)
    for run in runs:
        for cache, offset in caches:
            row = cache.nb[1]
            source, target = (offset + at * row for at in (run.source, run.target))
            held[target : target + run.n * row] = held[source : source + run.n * row]


def copy_nodes(caches: Iterable[Tensor], runs: Sequence[Run]) -> Iterator[Tensor]:
    """Nodes that copy these rows of each cache, for devices with their own memory."""
    for cache in caches:
        row = cache.nb[1]
        for run in runs:
            source, target = (
                ops.view_2d(cache, cache.ne[0], run.n, row, at * row)
                for at in (run.source, run.target)
            )
            yield ops.cpy(source, target)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same rows in fewer runs: a run that continues the previous one is merged with it."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if last and (last.source + last.n, last.target + last.n) == (run.source, run.target):
            found[-1] = Run(last.source, last.target, last.n + run.n)
        else:
            found.append(run)
    return found
