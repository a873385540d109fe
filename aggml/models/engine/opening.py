"""How many sequences and how much memory the engine of a model gets.

Not here: loading weights (../loading.py), what the engine does with its memory (engine.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml.models.engine.engine import Engine, staged_slots
from aggml.models.kv.paging import PagedDecoder, budget_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aggml import DType
    from aggml.models.description import Description
    from aggml.models.site import Site

__all__ = ["SLOTS", "WINDOWS", "EngineLimits", "engine_of", "slots_that_fit"]

SLOTS: Final = 16
#: Windows of speech that are decoded together; the keys and values of one take 9 to 250 MB.
WINDOWS: Final = 4


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine of a model may take; the attributes are arguments of `aggml.models.load`."""

    memory: int | None = None
    chunk: int = 128
    max_waiting: int = 256
    prefix_cache: int | None = None
    prefix_folder: Path | None = None


def slots_that_fit(model: Description, site: Site, ctx: int, cache: DType | str) -> int:
    """How many sequences at a time a model gets if nobody says how many.

    On a device that computes in host memory a sequence takes memory as it grows. On others its
    caches are allocated whole: at most half of the free memory.
    """
    own = [x.device for x in site.backends if not x.device.caps.buffer_from_host]
    if not own:
        return SLOTS
    free = min(device.memory()[0] for device in own) * len(own) // 2
    n = SLOTS
    while n > 1:
        size = PagedDecoder.sizes(model, ctx=ctx, sequences=n + staged_slots(n), cache=cache)
        if sum(size) <= free:
            break
        n //= 2
    return n


def free_memory() -> int:
    """Bytes of host memory that this process can still get, about."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def engine_of(
    decoder: PagedDecoder, slots: int, limits: EngineLimits, metadata: Mapping[str, Any]
) -> Engine:
    """The engine of a decoder, within these limits.

    Raises:
        ModelError: the memory is not enough for one sequence.
    """
    page = decoder.page_bytes()
    pages = decoder.pages(0, slots)
    slack = decoder.slack(decoder.sequences)
    whole = (slots * pages.need(decoder.ctx) + pages.of(2 * decoder.ctx)) * page + slack
    memory = limits.memory
    if memory is None:
        memory = min(whole, max(free_memory() // 2, pages.need(decoder.ctx) * page + slack))
    budget = budget_of(memory, decoder)
    rest = (memory - slack) // page
    budget = min(budget, max(rest, pages.need(1)))
    del metadata
    return Engine(
        decoder, slots=slots, budget=budget, chunk=limits.chunk, max_waiting=limits.max_waiting
    )
