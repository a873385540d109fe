"""A bound of the memory that a process of tests may take: a test that takes more fails by its name.

Without it the system ends some process when the machine is full, and nobody learns which test took
the memory. Programs that tests start have the bound, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

__all__ = ["MOST", "bound_memory"]

MOST: Final = 16 << 30  # bytes of private memory; the largest test takes a tenth of it


def bound_memory() -> bool:
    """Bound the memory of this process; returns whether it has a bound now.

    A process with a sanitizer has none: the table that it keeps beside memory has terabytes.
    """
    if sys.platform != "linux":
        return False
    import resource

    told = dict(x.split(":", 1) for x in Path("/proc/self/status").read_text().splitlines())
    if int(told["VmData"].split()[0]) << 10 > MOST:
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [x for x in (soft, hard, MOST) if x != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    return True
