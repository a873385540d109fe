"""Timing in turns, so that a busy moment hits all contenders alike; medians; a table.

Not here: the things that are timed.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aggml
from aggml.devices.cpu import isas

if TYPE_CHECKING:
    from aggml import Future

Sample = Callable[[], Awaitable[float]]
"""Does the thing once and returns the measured time, in seconds."""


@dataclass(frozen=True)
class Budget:
    """The demanded bound of a figure: ``sign`` ("<=" or ">=") and ``limit``.

    Attributes:
        of: the bound holds for the ratio to this peer of the row, for the share of this roof, or,
            if "", for the value itself.
    """

    of: str
    sign: str
    limit: float

    def kept(self, actual: float) -> bool:
        """Whether ``actual`` keeps the bound."""
        return actual <= self.limit if self.sign == "<=" else actual >= self.limit


@dataclass(frozen=True)
class Row:
    """One line of the result: a figure, the figures of the peers, the limits of the machine.

    Attributes:
        part: the benchmark, as the command line names it.
        what: name of the measurement.
        unit: the unit of ``value``, ``peers`` and ``roofs``.
        peers: figures by the peer's name, measured in turns with ``value``.
        roofs: limits of the machine by name, measured in the same turns.
        note: a remark for the reader: a peer that died, a build that was left out.
    """

    part: str
    what: str
    value: float
    unit: str
    peers: Mapping[str, float] = field(default_factory=dict)
    roofs: Mapping[str, float] = field(default_factory=dict)
    budgets: Sequence[Budget] = ()
    note: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def actual(self, of: str) -> float | None:
        """The figure that a budget with this ``of`` bounds; None if it was not measured."""
        if not of:
            return self.value
        beside = {**self.peers, **self.roofs}.get(of)
        return self.value / beside if beside else None

    def judged(self) -> list[tuple[Budget, float]]:
        """The budgets that can be judged, each with the actual figure."""
        found = ((x, self.actual(x.of)) for x in self.budgets)
        return [(budget, actual) for budget, actual in found if actual is not None]

    def as_json(self) -> dict[str, Any]:
        """All fields, ratios, shares and verdicts."""
        told = {
            "part": self.part,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "peers": {k: {"value": v, "ratio": self.actual(k)} for k, v in self.peers.items()},
            "roofs": {k: {"value": v, "share": self.actual(k)} for k, v in self.roofs.items()},
            "budgets": [
                {**asdict(budget), "actual": actual, "kept": budget.kept(actual)}
                for budget, actual in self.judged()
            ],
        }
        if self.note:
            told["note"] = self.note
        return {**told, **({"more": dict(self.more)} if self.more else {})}


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
    """A row that is judged by its ratio to one peer."""
    budgets = () if budget is None else (Budget(peer, *budget),)
    return Row(part, what, value, unit, {peer: peer_value}, budgets=budgets, more=more)


def absolute(
    part: str,
    what: str,
    value: float,
    unit: str,
    budget: tuple[str, float] | None = None,
    **more: Any,
) -> Row:
    """A row that is judged by itself."""
    budgets = () if budget is None else (Budget("", *budget),)
    return Row(part, what, value, unit, budgets=budgets, more=more)


async def interleaved(samples: Mapping[str, Sample], rounds: int) -> dict[str, list[float]]:
    """Take samples in turn, ``rounds`` of each, after a tenth as many that do not count."""
    found: dict[str, list[float]] = {name: [] for name in samples}
    warm = rounds // 10 + 1
    for index in range(rounds + warm):
        for name, sample in samples.items():
            seconds = await sample()
            if index >= warm:
                found[name].append(seconds)
    return found


def progress(text: str) -> None:
    """Name the present measurement on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """The median."""
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
    head = ("what", "value", "beside", "of the roofline", "budget")
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
                ", ".join(
                    f"{name} {_figure(peer)} ({row.value / peer:.3g}x)"
                    for name, peer in row.peers.items()
                    if peer
                ),
                ", ".join(
                    f"{row.value / roof:.0%} of {name}" for name, roof in row.roofs.items() if roof
                ),
                _verdicts(row) + (f"  ({row.note})" if row.note else ""),
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _verdicts(row: Row) -> str:
    told = []
    for budget, actual in row.judged():
        limit = f"{budget.limit:.0%} of" if budget.of in row.roofs else f"{budget.limit:.3g}"
        of = f"x {budget.of}" if budget.of in row.peers else budget.of
        verdict = "kept" if budget.kept(actual) else "MISSED"
        told.append(" ".join(f"{budget.sign} {limit} {of}".split()) + f" {verdict}")
    return ", ".join(told)


def _figure(value: float, unit: str = "") -> str:
    digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def _processor() -> tuple[str, str]:
    """The name of the processor and, if its family tells, its kind of core; else "".

    Virtual machines often hide the model: "AMD EPYC" may be a Zen 3, 4 or 5.
    """
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor(), ""
    first = info.read_text(encoding="utf-8").split("\n\n", maxsplit=1)[0]
    facts = {
        key.strip(): value.strip()
        for key, _, value in (x.partition(":") for x in first.splitlines())
    }
    family, flags = facts.get("cpu family", ""), facts.get("flags", "").split()
    core = ""
    if facts.get("vendor_id") == "AuthenticAMD" and "avx512f" in flags:
        core = {"25": "zen4", "26": "zen5"}.get(family, "")
    return facts.get("model name", platform.processor()), core


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Facts that figures depend on: processor, its best instruction set, cores, load, versions."""
    model, core = _processor()
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": aggml.__commit__,
        "cpu": model,
        "core": core,
        "isa": isas()[-1],
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }
