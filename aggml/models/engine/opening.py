"""How many sequences and how much memory the engine of a model gets.

Not here: loading weights (../loading.py), what the engine does with its memory (engine.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml.models.engine.engine import Engine
from aggml.models.kv.paging import PagedDecoder, budget_of
from aggml.models.kv.prefixes import Prefixes

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.site import Site

__all__ = [
    "SLOTS", "WINDOWS", "EngineLimits", "allocates_whole", "engine_of", "free_memory", "is_short",
]  # fmt: skip

SLOTS: Final = 16
#: Windows of speech that are decoded together; the keys and values of one take 9 to 250 MB.
WINDOWS: Final = 4


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine of a model may take; the attributes are arguments of `aggml.models.load`."""

    memory: int | None = None
    kv_memory: int | None = None
    chunk: int = 128
    max_waiting: int = 256
    prefix_cache: int | None = None
    prefix_folder: Path | None = None


def is_short(site: Site, weights: int) -> bool:
    """Whether memory may be short for the number of sequences that a model has by default.

    On a device that computes in host memory a sequence takes memory as it grows, so only large
    weights matter. On other devices the caches are allocated whole.
    """
    return allocates_whole(site) or 4 * weights > free_memory()


def allocates_whole(site: Site) -> bool:
    """Whether a device has memory of its own: there all keys and values get memory at once."""
    return any(not x.device.caps.buffer_from_host for x in site.backends)


def free_memory() -> int:
    """Bytes of host memory that this process can still get, about."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def engine_of(decoder: PagedDecoder, slots: int, limits: EngineLimits, about: str = "") -> Engine:
    """The engine of a decoder, within these limits.

    Args:
        decoder: of the model.
        slots: sequences at a time.
        limits: what the engine may take.
        about: names the model's files in a folder of stored prompts, so that no other model reads
            what this one stores.

    Raises:
        ModelError: the memory is not enough for one sequence.
    """
    page = decoder.page_bytes()
    pages = decoder.pages(0, slots)
    slack = decoder.slack(decoder.sequences)
    whole = (slots * pages.need(decoder.ctx) + pages.of(2 * decoder.ctx)) * page + slack
    memory = limits.kv_memory
    if memory is None:
        memory = min(whole, max(free_memory() // 2, pages.need(decoder.ctx) * page + slack))
    budget = budget_of(memory, decoder)
    rest = (memory - slack) // page
    budget = min(budget, max(rest, pages.need(1)))
    wanted = memory // 2 if limits.prefix_cache is None else limits.prefix_cache
    stored = min(wanted, budget * page)  # bytes of stored prompts
    return Engine(
        decoder, slots=slots, budget=budget, chunk=limits.chunk, max_waiting=limits.max_waiting,
        prefixes=Prefixes(decoder, stored, limits.prefix_folder, about=about) if stored else None,
    )  # fmt: skip
