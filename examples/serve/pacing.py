"""What keeps the loop punctual: requests begin one by one, cycles are searched for seldom.

Not here: how many tokens are told of in one turn (engine.py).
"""

from __future__ import annotations

import gc
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

YOUNG: Final = 700  # objects made before the youngest are searched for cycles, as Python has it
# Searches of the youngest before what outlived them is searched too; 10 is Python's. Such a search
# takes 2 to 3 ms with 48 requests under way, whatever there is to find, for all that they hold is
# walked, and at most 5 to 7 after 60, 11 after 200 (trio); most cycles, those of requests that were
# cancelled, are found by the first search.
SECOND: Final = 60
# Such searches before all objects are: 10 to 15 ms.
ALL: Final = 100


class Door:
    """Lets one request in with each turn of the loop: from here to its queue it takes 0.4 ms."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def enter(self) -> None:
        """Wait for a turn; in order."""
        async with self._lock:
            await checkpoint()


def collect_seldom() -> None:
    """Keep all that is there from the collector for good, and let it search seldom.

    For a process that serves and does nothing else.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, SECOND, ALL)
