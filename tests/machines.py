"""Pretended machines: many cores and banks of memory; a chip of fast and slow cores.

Here: what pools made within the context see. Not here: the same in C (tests/native/rig.h).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def machine(cores: int, banks: int) -> Iterator[None]:
    """So many cores in so many banks, of equal size."""
    _native.pretend_cores(cores, banks)
    try:
        yield
    finally:
        _native.pretend_cores(0, 0)


@contextmanager
def desktop(folder: Path, usable: str = "0-31") -> Iterator[None]:
    """8 performance cores with 2 hyperthreads each (0 to 15) and 16 efficiency cores (16 to 31)."""

    def put(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    put("usable", usable)
    put("devices/cpu_core/cpus", "0-15")
    put("devices/cpu_atom/cpus", "16-31")
    for cpu in range(32):
        core = f"{cpu & ~1}-{cpu | 1}" if cpu < 16 else f"{cpu}"
        put(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", core)
        clock = 5800000 if cpu < 16 else 4300000
        put(f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", str(clock))
    _native.pretend_files(str(folder))
    try:
        yield
    finally:
        _native.pretend_files("")
