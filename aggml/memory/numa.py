"""NUMA: the nodes of the machine, and thread pools whose workers stay on some of them.

The process keeps no NUMA state: a pool with an affinity is passed to the backends that should use
it. Not here: the workers (stream/threadpool.py).
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

from aggml.errors import InvalidArgument
from aggml.stream.threadpool import ThreadPool

__all__ = ["NumaStrategy", "is_numa", "numa_mask", "numa_nodes", "numa_pool"]

_SYSFS = Path("/sys/devices/system/node")


class NumaStrategy(IntEnum):
    """The rule by which the workers of a pool choose processors (enum ggml_numa_strategy)."""

    DISABLED = 0  # the affinity of the process
    DISTRIBUTE = 1  # spread over all nodes, each worker on its own processor
    ISOLATE = 2  # on the node where the calling thread runs
    NUMACTL = 3  # the affinity of the process, which numactl has set
    MIRROR = 4  # the affinity of the process; ggml has never implemented it either


def numa_nodes(root: Path = _SYSFS) -> list[tuple[int, ...]]:
    """The processors of each node, in order; empty if the system does not report them."""
    nodes: list[tuple[int, tuple[int, ...]]] = []
    for path in root.glob("node[0-9]*"):
        try:
            nodes.append((int(path.name[4:]), _cpus((path / "cpulist").read_text())))
        except (OSError, ValueError):
            continue
    return [cpus for _, cpus in sorted(nodes)]


def is_numa(root: Path = _SYSFS) -> bool:
    """Whether there is more than one node (ggml_is_numa)."""
    return len(numa_nodes(root)) > 1


def numa_pool(
    strategy: NumaStrategy, n_threads: int | None = None, *, root: Path = _SYSFS
) -> ThreadPool:
    """A pool with workers placed by the strategy, for ``backend(pool=...)`` (ggml_numa_init).

    Args:
        strategy: a NumaStrategy or its value.
        n_threads: workers; None: as many as usable processors.
        root: the folder in which the system describes its nodes.

    Raises:
        InvalidArgument: no such strategy; ``n_threads`` out of range.
    """
    mask = numa_mask(strategy, root)
    if n_threads is None and any(mask):
        n_threads = sum(mask)
    return ThreadPool(
        n_threads, cpumask=mask, strict_cpu=strategy == NumaStrategy.DISTRIBUTE and any(mask)
    )


def numa_mask(strategy: NumaStrategy, root: Path = _SYSFS) -> list[bool]:
    """For each processor whether workers may use it; empty means the affinity of the process."""
    try:
        wanted = NumaStrategy(strategy)
    except ValueError:
        raise InvalidArgument(f"[numa] {strategy!r} is none of {list(NumaStrategy)}") from None
    allowed = _allowed_nodes()
    nodes = [kept for cpus in numa_nodes(root) if (kept := [c for c in cpus if c in allowed])]
    if len(nodes) < 2 or wanted not in (NumaStrategy.DISTRIBUTE, NumaStrategy.ISOLATE):
        return []
    chosen = set().union(*nodes)
    if wanted is NumaStrategy.ISOLATE:
        here = _current()
        chosen = set(next((cpus for cpus in nodes if here in cpus), nodes[0]))
    return [cpu in chosen for cpu in range(max(chosen) + 1)]


def _cpus(text: str) -> tuple[int, ...]:
    """The processors of a list such as "0-3,8"."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _allowed_nodes() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _current() -> int:
    """The processor on which this thread runs; -1 if the system does not report it."""
    try:
        fields = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()
        return int(fields[36])  # field 39 of the line, counted from the third
    except (OSError, ValueError, IndexError):
        return -1
