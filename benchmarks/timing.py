"""How things are timed: interleaved, so that a busy moment hits all alike; medians; a table.

Not here: what is timed.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aggml import Future

Sample = Callable[[], Awaitable[float]]
"""Does the thing once and returns what was measured, in seconds."""


@dataclass(frozen=True)
class Row:
    """One line of the result: a figure, that of the peer, and what is demanded.

    Attributes:
        part: the benchmark, as ``--only`` names it.
        what: what was measured.
        unit: of ``value`` and ``peer_value``.
        ratio: value / peer_value, or value itself where the limit is absolute.
        budget: what the ratio must be: ("<=", 0.125) or (">=", 1.5); None: anything.
    """

    part: str
    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    budget: tuple[str, float] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> bool | None:
        """Whether the budget is kept; None without one."""
        if self.budget is None or self.ratio is None:
            return None
        sign, limit = self.budget
        return self.ratio <= limit if sign == "<=" else self.ratio >= limit

    def as_json(self) -> dict[str, Any]:
        """All fields and the verdict."""
        return {**asdict(self), "kept": self.kept}


def versus(
    part: str,
    what: str,
    value: float,
    unit: str,
    peer: str,
    peer_value: float,
    budget: tuple[str, float] | None = None,
    **more: Any,
) -> Row:
    """A row that is judged by its ratio to a peer."""
    return Row(part, what, value, unit, peer, peer_value, value / peer_value, budget, more)


def absolute(
    part: str,
    what: str,
    value: float,
    unit: str,
    budget: tuple[str, float] | None = None,
    **more: Any,
) -> Row:
    """A row that is judged by itself."""
    return Row(part, what, value, unit, ratio=value, budget=budget, more=more)


async def interleaved(samples: Mapping[str, Sample], rounds: int) -> dict[str, list[float]]:
    """Take samples of each in turn, ``rounds`` times, after a tenth as many that do not count."""
    found: dict[str, list[float]] = {name: [] for name in samples}
    warm = rounds // 10 + 1
    for index in range(rounds + warm):
        for name, sample in samples.items():
            seconds = await sample()
            if index >= warm:
                found[name].append(seconds)
    return found


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def computed_in(future: Future[Any]) -> float:
    """Seconds between start and end of a finished operation, as its stream saw them."""
    times = future.times
    return (times.done or math.nan) - (times.started or math.nan)


def seconds_of(work: Callable[[], object]) -> float:
    """How long a plain call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def table(rows: Sequence[Row]) -> str:
    """The rows as text, a blank line between benchmarks."""
    head = ("what", "value", "peer", "peer's value", "ratio", "budget", "")
    lines: list[tuple[str, ...]] = [head]
    last = None
    for row in rows:
        if last not in (None, row.part):
            lines.append(("",) * len(head))
        last = row.part
        lines.append(
            (
                row.what,
                _figure(row.value, row.unit),
                row.peer,
                "" if row.peer_value is None else _figure(row.peer_value, row.unit),
                "" if row.peer_value is None or row.ratio is None else f"{row.ratio:.3g}",
                "" if row.budget is None else f"{row.budget[0]} {row.budget[1]:g}",
                {True: "kept", False: "MISSED", None: ""}[row.kept],
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _figure(value: float, unit: str) -> str:
    digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """What the figures depend on: processor, cores, load, versions."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }
