"""The limits of the machine, measured in the same run as the kernels: a table.

Not here: the loops (aggml.devices.cpu.Roofline), kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from aggml.devices.cpu import Roofline
from benchmarks.timing import Row, absolute, median

__all__ = ["CACHE", "PART", "Roofline", "measure"]

PART: Final = "roofline"
CACHE: Final = Path(__file__).resolve().parent.parent / "build" / "bench"


def measure(roofline: Roofline, *, quick: bool) -> list[Row]:
    """One row for each figure, with one thread and with all."""
    counts = sorted({1, roofline.threads})
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(3 if quick else 15):
        for n in counts:
            found.setdefault(("read", n), []).append(roofline.read(n))
            for name in roofline.peaks:
                found.setdefault((name, n), []).append(roofline.peak(name, n))
    rows = []
    for (name, n), values in found.items():
        what = "read from memory" if name == "read" else f"{name}, multiply and add"
        unit = "GB/s" if name == "read" else "GOP/s"
        spread: dict[str, Any] = {"least": min(values) / 1e9, "most": max(values) / 1e9}
        plural = "threads" if n > 1 else "thread"
        rows.append(absolute(PART, f"{what}, {n} {plural}", median(values) / 1e9, unit, **spread))
    return rows
