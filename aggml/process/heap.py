"""trim_heap: memory that was freed goes back to the system.

Not here: mapped memory (native/runtime/unmap.c).
"""

from __future__ import annotations

import ctypes

__all__ = ["trim_heap"]


def trim_heap() -> None:
    """Give free memory of malloc back to the system, where it is glibc's.

    Other threads that allocate wait meanwhile, up to 10 ms. So it is called when nobody waits.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return
    trim(ctypes.c_size_t(0))
