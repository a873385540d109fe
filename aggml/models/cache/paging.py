"""Keys and values in pages: a sequence takes memory as it grows, within a fixed budget.

The cache is one range of addresses, long enough for every slot at full length. The operating system
gives a page of memory when it is first written, and gets it back when other slots need memory or no
sequence is left (as vAttention does on GPUs, Prabhu et al. 2024). Attention sees plain strided
rows. Here: the budget, the free slots, a model on such a cache. Not here: which sequence gets a
slot, and when (serve/engine.py); which pages are stored for later prompts (serve/prefixes.py).
"""

from __future__ import annotations

import heapq
import mmap
from typing import TYPE_CHECKING, Final

import anyio.to_thread
from anyio.lowlevel import checkpoint

from aggml import Graph
from aggml.models.cache.copying import Run, copied, copy_nodes, joined
from aggml.models.cache.huge import HugePages
from aggml.models.decoding.decoder import Decoder
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml import Backend, Buffer, Tensor

__all__ = ["PAGE", "PagedDecoder", "Pages", "budget_of"]

PAGE: Final = 64  # positions
AT_ONCE: Final = 1 << 20  # bytes that are copied on the loop, in 0.1 to 0.3 ms; more by a thread

RUNS: Final = 4  # runs of rows that one graph copies: to build it takes 0.02 ms for each and cache


class Pages:
    """Counts the pages that are promised, and gives out slots, the lowest free one first.

    Args:
        budget: pages in all.
        slots: sequences at a time.
        fixed: pages that a sequence takes however long it is: those of its state.
        grows: whether it takes pages for its positions, too.

    Attributes:
        used: pages that are promised to sequences.
        stored: pages beside these, whose sequences may have ended: they hold what prompts began
            with. Whoever changes it keeps ``used + stored`` within the budget.
    """

    def __init__(self, budget: int, slots: int, *, fixed: int = 0, grows: bool = True) -> None:
        self.budget = budget
        self._fixed = fixed
        self._grows = grows
        self.used = self.stored = 0
        self._free = list(range(slots))
        self._held: dict[int, int] = {}  # slot: pages
        self._touched: dict[int, int] = {}  # slot: pages that have memory, at most

    @staticmethod
    def of(positions: int) -> int:
        """Pages that so many positions take."""
        return -(-positions // PAGE)

    def need(self, positions: int) -> int:
        """Pages that a sequence of so many positions takes, its state included."""
        return self._fixed + (self.of(positions) if self._grows else 0)

    @property
    def slots(self) -> list[int]:
        """Those in use, in order."""
        return sorted(self._held)

    def take(self, positions: int) -> int | None:
        """A slot with room for a sequence of that length; None while there is none.

        All pages that it may come to need are promised now, so a sequence that has begun can end.
        """
        need = self.need(positions)
        if not self._free or self.used + self.stored + need > self.budget:
            return None
        slot = heapq.heappop(self._free)
        self._hold(slot, need)
        self.used += need
        return slot

    def lacks(self, positions: int) -> int:
        """Stored pages that must go before `take` gives a slot; 0 also where that would not do."""
        need = self.need(positions)
        if not self._free or self.used + need > self.budget:
            return 0
        return max(0, self.used + self.stored + need - self.budget)

    def _hold(self, slot: int, pages: int) -> None:
        self._held[slot] = pages
        self._touched[slot] = max(pages, self._touched.get(slot, 0))

    def give_back(self, slot: int) -> None:
        """The sequence in ``slot`` has ended. Its pages stay for the next one in that slot."""
        self.used -= self._held.pop(slot)
        heapq.heappush(self._free, slot)

    def move(self, slot: int) -> int | None:
        """A free slot below ``slot`` instead of it; None if there is none."""
        if not self._free or self._free[0] > slot:
            return None
        lower = heapq.heapreplace(self._free, slot)
        self._hold(lower, self._held.pop(slot))
        return lower

    def surplus(self, *, idle: bool = False) -> list[tuple[int, int]]:
        """Slots that have to give memory back, and how many positions of each keep theirs.

        The highest slots come first: they are used least. With ``idle`` no slot keeps more than it
        was promised.
        """
        found = []
        total = sum(self._touched.values()) + self.stored
        for slot in sorted(self._touched, reverse=True):
            held = self._held.get(slot, 0)
            if total <= (0 if idle else self.budget):
                break
            if self._touched[slot] > held:
                total -= self._touched[slot] - held
                self._touched[slot] = held
                found.append((slot, max(held - self._fixed, 0) * PAGE))
        return found


class PagedDecoder(Decoder):
    """A model whose caches take memory only where they were written.

    On a device that does not compute in host memory the caches are allocated whole. Layers with a
    window keep all positions, which are pages that can be given back. A state lies beside them: as
    many pages as it fills, for as long as its sequence runs.

    Args:
        backend, model, weights, ctx, sequences, cache, max_graphs: as for `Decoder`.
    """

    ring = False
    graphs = 96

    def _allocate(self) -> object:
        self._maps: list[tuple[mmap.mmap, list[Tensor]]] = []
        self._huge: list[HugePages] = []  # of each of these
        return [
            self._mapped(backend, caches)
            if backend.device.caps.buffer_from_host
            else backend.alloc(caches)
            for backend, caches in self._homes()
        ]

    def _mapped(self, backend: Backend, caches: list[Tensor]) -> Buffer:
        """Memory that is there once it is touched."""
        # Private and anonymous: zeros, and nothing of it is there before it is touched.
        places = _places(caches)
        memory = mmap.mmap(-1, places[-1], flags=_FLAGS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # 2 MB for a first row would break the budget, but where they are promised: `promise`.
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        buffer = backend.device.buffer_from_host(memory)
        for cache, offset in zip(caches, places, strict=False):
            buffer.place(cache, offset)
        self._maps.append((memory, caches))
        self._huge.append(HugePages(memory))
        return buffer

    def promise(self, slot: int, positions: int) -> None:
        """Say that a sequence in ``slot`` may come to so many positions: `Pages.take` gave them.

        Memory of theirs that fills huge pages is in such, because attention over 32,768 positions
        then takes less time. It takes 1 to 2 us for each cache.
        """
        n = min(Pages.of(positions) * PAGE, self.ctx)
        for huge, (_, places) in zip(self._huge, self._row_maps(), strict=True):
            for cache, offset in places:
                begin = offset + slot * self.ctx * cache.nb[1]
                huge.promise(begin, begin + n * cache.nb[1])

    async def forget(self, slot: int, kept: int = 0) -> None:
        """Give the memory of a slot back, except its first positions; its rows then read as zeros.

        The state goes, too, unless positions are kept.

        No step may use the slot meanwhile. The system takes 0.03 ms for 100 positions of a layer:
        one layer in each turn of the loop.
        """
        for (memory, caches), huge in zip(self._maps, self._huge, strict=True):
            for cache, offset in zip(caches, _places(caches), strict=False):
                length = self.ctx
                if any(cache is state for state in self.caches.states):
                    if kept:
                        continue
                    length = 1
                first = offset + slot * length * cache.nb[1]
                begin = first + kept * cache.nb[1]
                huge.forget(first, begin)
                _give_back(memory, begin, offset + (slot + 1) * length * cache.nb[1])
                await checkpoint()

    async def forget_rows(self, first: int, n: int) -> None:
        """Give the memory of rows back, those of all layers with keys; they then read as zeros.

        No step may use them meanwhile.
        """
        for memory, places in self._row_maps():
            for cache, offset in places:
                begin = offset + first * cache.nb[1]
                _give_back(memory, begin, begin + n * cache.nb[1])
            await checkpoint()

    def _row_maps(self) -> list[tuple[mmap.mmap, list[tuple[Tensor, int]]]]:
        """Each mapped memory, and the caches with rows in it and where each begins."""
        rows = {id(cache) for cache, _ in self.caches.rows}
        return [
            (memory, [(x, at) for x, at in zip(caches, _places(caches), strict=False)
                      if id(x) in rows])
            for memory, caches in self._maps
        ]  # fmt: skip

    async def copy_rows(self, runs: Sequence[Run]) -> None:
        """Copy rows of keys and values, of all layers. No step may be under way.

        In host memory a thread copies them; on other devices a graph does.

        Cancellation: what is under way in a thread ends first, a graph is aborted; the targets are
        undefined.
        """
        runs = joined(runs)
        size = sum(cache.nb[1] for cache, _ in self.caches.rows) * sum(run.n for run in runs)
        mapped = set()
        for memory, places in self._row_maps():
            mapped |= {id(cache) for cache, _ in places}
            if size > AT_ONCE:
                await anyio.to_thread.run_sync(copied, memory, places, runs)
            else:
                copied(memory, places, runs)
        others = [cache for cache, _ in self.caches.rows if id(cache) not in mapped]
        for at in range(0, len(runs) if others else 0, RUNS):
            graph = Graph(*copy_nodes(others, runs[at : at + RUNS]))
            await self.site.prepare(graph)
            await (await self.site.submit(graph))
        await checkpoint()

    async def move(self, source: int, target: int, n: int) -> None:
        """Copy the first ``n`` positions of one slot, and its state, to another.

        Cancellation: aborts the copy; the positions of ``target`` are undefined.
        """
        if self._reached is not None:
            await self._reached.settled(source)
            self._reached.lose([target])
        n = min(-(-n // PAGE) * PAGE, self.ctx)  # few different graphs
        graph = Graph(*self.caches.copies(source, target, n))
        await self.site.prepare(graph)
        await (await self.site.submit(graph))
        if self._reached is not None:
            self._reached.copied(source, [target])

    @property
    def grows(self) -> bool:
        """Whether a sequence takes more pages as it grows: whether any layer keeps keys."""
        return bool(self.caches.rows)

    @property
    def has_states(self) -> bool:
        """Whether any layer keeps a state."""
        return bool(self.caches.states)

    @property
    def kept_as(self) -> str:
        """What keys and values depend on beside the tokens: the model, and their type."""
        kinds = sorted({cache.dtype.name for cache, _ in self.caches.rows})
        return f"{self.model.architecture} {len(self.model.layers)} {' '.join(kinds)}"

    def page_bytes(self) -> int:
        """Bytes of one page, of all layers. Of a model without keys a page holds a whole state."""
        rows = PAGE * sum(cache.nb[1] for cache, _ in self.caches.rows)
        return rows or self.caches.state_bytes

    def pages(self, budget: int, slots: int) -> Pages:
        """So many pages for ``slots`` sequences of this model."""
        fixed = -(-self.caches.state_bytes // self.page_bytes())
        return Pages(budget, slots, fixed=fixed, grows=self.grows)


def _give_back(memory: mmap.mmap, begin: int, end: int) -> None:
    """Give the pages of the system back that lie whole between two offsets."""
    first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
    if hasattr(mmap, "MADV_DONTNEED") and first < last:
        span = (last - first) * mmap.PAGESIZE
        memory.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, span)


_FLAGS: Final = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def _places(caches: Sequence[Tensor]) -> list[int]:
    """Where each of them begins, and where the last one ends: all at a page of the system."""
    found = [0]
    for cache in caches:
        found.append(found[-1] + -(-cache.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return found


def budget_of(memory: int, model: PagedDecoder) -> int:
    """Pages in so many bytes, enough for one sequence.

    Raises:
        ModelError: they are less than that.
    """
    page = model.page_bytes()
    pages, least = memory // page, model.pages(0, 1).need(1)
    if pages < least:
        of = "a page" if least == 1 else "the state of a sequence and a page"
        raise ModelError(
            f"{memory} bytes for keys and values are less than {of} ({least * page} bytes)"
        )
    return pages
