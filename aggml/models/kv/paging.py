"""Keys and values in pages: a sequence takes memory as it grows, within a fixed budget.

The cache is one range of addresses, long enough for every slot at full length. The operating system
provides memory for a page when the page is first written. It gets the memory back when other slots
need it or no sequence is left (as vAttention does on GPUs, Prabhu et al. 2024). Attention sees
plain strided rows. Here: the budget, the free slots, a decoder with such caches, taking rows and
states out of it and putting them back. Not here: which sequence gets a slot (../engine/engine.py),
which pages are kept for later prompts (prefixes.py).
"""

from __future__ import annotations

import functools
import heapq
import mmap
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument, InvalidState
from aggml.models.decoder.decoder import Decoder
from aggml.models.errors import ModelError
from aggml.models.kv.huge import HugePages
from aggml.models.kv.snapshots import CacheForm, Snapshot, blank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aggml import Backend, Buffer, Future, Tensor
    from aggml.models.kv.caches import Caches
    from aggml.models.kv.snapshots import Bytes

    Lying = tuple[int, Tensor, int]  # the number among the caches of its kind; bytes of a row

__all__ = ["PAGE", "PagedDecoder", "Pages", "budget_of", "count_fitting", "give_back_memory"]

PAGE: Final = 64  # positions


class Pages:
    """Counts the pages that are promised to sequences, and gives out slots, the lowest first.

    Args:
        budget: pages in all.
        slots: sequences at a time.
        fixed: pages for the state of a sequence, whatever its length.
        grows: whether a sequence also takes pages for its positions.

    Attributes:
        used: pages that are promised to sequences.
        stored: further pages, which hold beginnings of prompts for later ones; their sequences may
            have ended.
        shared: further pages, of rows that prompts share while they are processed. The user of this
            class sets both, and keeps ``used + stored + shared`` within the budget.
    """

    def __init__(self, budget: int, slots: int, *, fixed: int = 0, grows: bool = True) -> None:
        self.budget = budget
        self._fixed = fixed
        self._grows = grows
        self.used: int = 0
        self.stored: int = 0
        self.shared: int = 0
        self._free = list(range(slots))
        self._held: dict[int, int] = {}  # slot: pages
        self._touched: dict[int, int] = {}  # slot: the most pages that may have memory

    @staticmethod
    def of(positions: int) -> int:
        """Pages that so many positions take."""
        return -(-positions // PAGE)

    def need(self, positions: int) -> int:
        """Pages that a sequence of so many positions takes, its state included."""
        return self._fixed + (self.of(positions) if self._grows else 0)

    @property
    def slots(self) -> list[int]:
        """The slots in use, in order."""
        return sorted(self._held)

    @property
    def free_slots(self) -> list[int]:
        """The slots that are not in use."""
        return list(self._free)

    def take(self, positions: int, wanted: int | None = None) -> int | None:
        """A slot with room for a sequence of that length; None while there is none.

        All pages that the sequence may need are promised now. So a sequence that has begun never
        runs out of pages.

        Args:
            positions: the most that the sequence may have.
            wanted: a free slot; None: the lowest.
        """
        need = self.need(positions)
        if not self._free or need > self.free:
            return None
        if wanted is None:
            slot = heapq.heappop(self._free)
        else:
            slot = wanted
            self._free.remove(slot)
            heapq.heapify(self._free)
        self._hold(slot, need)
        self.used += need
        return slot

    @property
    def free(self) -> int:
        """Pages that are promised to nobody."""
        return self.budget - self.used - self.stored - self.shared

    def _hold(self, slot: int, pages: int) -> None:
        self._held[slot] = pages
        self._touched[slot] = max(pages, self._touched.get(slot, 0))

    def give_back(self, slot: int) -> None:
        """Free a slot. Its memory stays for the next sequence in that slot: see `surplus`."""
        self.used -= self._held.pop(slot)
        heapq.heappush(self._free, slot)

    def move(self, slot: int) -> int | None:
        """Exchange ``slot`` for the lowest free slot, if that is below; None if there is none."""
        if not self._free or self._free[0] > slot:
            return None
        lower = heapq.heapreplace(self._free, slot)
        self._hold(lower, self._held.pop(slot))
        return lower

    def surplus(self, *, idle: bool = False, more: int = 0) -> list[tuple[int, int]]:
        """Slots that have to give memory back, and how many positions of each keep their memory.

        The highest slots come first, because they are used least. With ``idle`` every slot gives
        back all memory beyond what it was promised. ``more`` pages are needed beside those that
        are promised.
        """
        found = []
        total = sum(self._touched.values()) + self.stored + self.shared + more
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
    """A `Decoder` whose caches take memory only where they were written.

    On a device that does not compute in host memory the caches are allocated whole. Layers with a
    window keep all positions and no ring, because pages can be given back. A sequence's state
    counts as pages, too: as many as it fills, as long as the sequence runs.

    Args:
        backend, model, weights, ctx, sequences, cache, max_graphs: as for `Decoder`.
    """

    ring = False
    graphs = 96
    saves = True

    def _allocate(self) -> object:
        self._maps: list[tuple[mmap.mmap, list[Tensor]]] = []
        self._huge: list[HugePages] = []  # for each of `_maps`
        self.form: CacheForm = CacheForm.of(self.caches)
        self._lying = _group_caches(self.caches, self._homes())
        rows = PAGE * sum(cache.nb[1] for cache, _ in self.caches.rows)
        self._page_bytes = rows or self.caches.state_bytes
        self._promised: dict[int, int] = {}  # slot: positions whose pages may be huge
        # Slots whose rows are being saved or loaded, as far as they are not known to be done.
        self._moving: deque[tuple[int, Future[Any]]] = deque()
        return [
            self._map_caches(backend, caches)
            if backend.device.caps.buffer_from_host
            else backend.alloc(caches)
            for backend, caches in self._homes()
        ]

    def _map_caches(self, backend: Backend, caches: list[Tensor]) -> Buffer:
        """Place the caches of a backend in new mapped memory."""
        # Private and anonymous: it reads as zeros, and a page takes memory once it is written.
        places = _places(caches)
        memory = mmap.mmap(-1, places[-1], flags=_FLAGS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A huge page takes 2 MB for its first row, which would break the budget. `promise`
            # allows huge pages where all of their rows are promised.
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        buffer = backend.device.buffer_from_host(memory)
        for cache, offset in zip(caches, places, strict=False):
            buffer.place(cache, offset)
        self._maps.append((memory, caches))
        self._huge.append(HugePages(memory))
        return buffer

    def _free(self) -> None:
        super()._free()
        self._lying = []  # it refers to backends, which have scratch memory

    # -- taking rows and states out, and putting them back

    def save(
        self,
        slot: int,
        first: int,
        n: int,
        *,
        states: bool = False,
        into: Sequence[Bytes] | None = None,
    ) -> Snapshot:
        """Queue reads of the keys and values of ``n`` positions of a sequence, in all layers.

        The reads come behind the steps queued so far, and before all that is queued later. So the
        slot may be written, freed or given to another sequence at once. It never waits: a
        cancellation cannot come in between. For each backend all reads are queued in one step,
        which takes 3 us for each cache, however many positions there are.

        Args:
            slot: the sequence.
            first: the first position.
            n: how many positions.
            states: whether to take the recurrent states as well, if the model has any.
            into: memory for the rows of each cache; None: new memory.

        Returns:
            The snapshot. It fails if a step that is under way and writes these positions fails.

        Raises:
            InvalidArgument: there is no such slot or position.
            InvalidState: a step that should have written these positions failed; with ``states``
                the state is at another position than ``first + n``; the model is closed.
        """
        with self.lifetime.use("PagedDecoder.save"):
            self._check_place("save", slot, first, n)
            assert self._written is not None
            waits, good = self._written.ahead(slot, first + n)
            if good < first + n:
                raise InvalidState(
                    f"[PagedDecoder.save] positions of slot {slot} from {good} on are lost, because"
                    f" a step failed, and {first + n} are asked for: process them again"
                )
            states = states and self._reached is not None
            if states:
                assert self._reached is not None
                waits += self._reached.writes_before(slot, first + n)
            rows, kept = blank(self.form, n if into is None else 0, states=states)
            into = rows if into is None else into
            copies: list[Future[Any]] = []
            for backend, caches, others in self._lying:
                reads = [
                    (cache, into[i], (slot * self.ctx + first) * row)
                    for i, cache, row in (caches if n else ())
                ]
                if kept is not None:
                    row = self.caches.state_rows.current(slot)
                    reads += [(state, kept[i], row * size) for i, state, size in others]
                if reads:
                    copies.append(backend.get_many(reads))
                    self._note_move(slot, copies[-1])
            return Snapshot(self.form, first, n, into, kept, [*waits, *copies], copies)

    def load(self, slot: int, snapshot: Snapshot) -> list[Future[None]]:
        """Queue writes of all that a snapshot holds, to its positions of a sequence.

        The writes come behind the steps queued so far, and before all that is queued later. So a
        step that goes on from there may be queued at once. It never waits: a cancellation cannot
        come in between. The slot must have been promised these positions.

        A snapshot without states leaves the slot of a model with states without one: load one that
        has them afterwards.

        Returns:
            The writes, one for each backend. If one fails, the sequence fails with it.

        Raises:
            InvalidArgument: there is no such slot or position; the snapshot is of other caches.
            InvalidState: the snapshot is not done, or has failed; the model is closed.
        """
        with self.lifetime.use("PagedDecoder.load"):
            self._check_place("load", slot, snapshot.first, snapshot.n)
            if snapshot.form != self.form:
                raise InvalidArgument(
                    f"[PagedDecoder.load] {snapshot!r} was taken from caches of "
                    f"{snapshot.form}, this model has {self.form}"
                )
            if not snapshot.good:
                raise InvalidState(
                    f"[PagedDecoder.load] {snapshot!r} cannot be used: wait until it is done"
                ) from snapshot.failed
            return self._write(slot, snapshot)

    def _write(self, slot: int, snapshot: Snapshot) -> list[Future[None]]:
        """Queue the writes of `load`; the reads of the snapshot may be queued before them."""
        with self.lifetime.use("PagedDecoder.load"):
            writes: list[Future[None]] = []
            for backend, caches, others in self._lying:
                parts = [
                    (cache, snapshot.rows[i], (slot * self.ctx + snapshot.first) * row)
                    for i, cache, row in (caches if snapshot.n else ())
                ]
                if snapshot.states is not None:
                    parts += [(x, snapshot.states[i], slot * size) for i, x, size in others]
                if parts:
                    writes.append(backend.set_many(parts))
                    self._note_move(slot, writes[-1])
            assert self._written is not None
            for future in writes:
                taken = [(slot, snapshot.first, snapshot.n)]
                self._written.note(future, lambda taken=taken: taken)  # type: ignore[misc]
            if self._reached is not None:
                self._reached.lose([slot])
                if snapshot.states is not None:
                    self._reached.record_load(slot, snapshot.end, writes)
            return writes

    def load_rows(self, row: int, snapshot: Snapshot) -> list[Future[None]]:
        """`load` of keys and values to rows that belong to no slot: position 0 is row ``row``."""
        writes = []
        with self.lifetime.use("PagedDecoder.load_rows"):
            for backend, caches, _ in self._lying:
                parts = [
                    (x, snapshot.rows[i], (row + snapshot.first) * size) for i, x, size in caches
                ]
                if parts and snapshot.n:
                    writes.append(backend.set_many(parts))
                    self._note_move(row // self.ctx, writes[-1])
        return writes

    @property
    def can_move(self) -> bool:
        """Whether `move` works: all caches lie in host memory, so that copies keep their order."""
        return all(backend.device.caps.buffer_from_host for backend, _ in self._homes())

    def move(self, source: int, target: int, n: int) -> None:
        """Queue a copy of the first ``n`` positions of a slot, and its states, to another one.

        Raises:
            InvalidState: as `save`.
        """
        snapshot = self.save(source, 0, n, states=True)
        self._write(target, snapshot)

    @property
    def is_moving(self) -> bool:
        """Whether rows are being saved or loaded: no memory of rows may be given back meanwhile."""
        moving = self._moving
        while moving and moving[0][1].done():
            moving.popleft()
        return bool(moving)

    async def wait_for_transfer(self) -> None:
        """Wait for the first of the transfers that `is_moving` tells of."""
        if self.is_moving:
            await self._moving[0][1].wait_until_done()

    def accept_rows(self) -> None:
        """Queue that all caches count as written, after a transfer or a step has failed.

        Else no later step could read any of their rows. Who failed is known: `Written`, `Reached`.
        """
        with self.lifetime.use("PagedDecoder.accept_rows"):
            for backend, caches in self._homes():
                for cache in caches:
                    backend.accept(cache)

    def savable(self, slot: int, n: int) -> int:
        """How many of the first ``n`` positions of a slot `save` would take."""
        assert self._written is not None
        return min(n, self._written.ahead(slot, n)[1])

    def state_at(self, slot: int, at: int) -> bool:
        """Whether `save` would take the states of a slot with ``at`` positions."""
        return self._reached is not None and self._reached.may_stand(slot, at)

    def _check_place(self, what: str, slot: int, first: int, n: int) -> None:
        if not 0 <= slot < self.sequences:
            raise InvalidArgument(
                f"[PagedDecoder.{what}] slot={slot}: there are {self.sequences} of them"
            )
        if first < 0 or n < 0 or first + n > self.ctx:
            raise InvalidArgument(
                f"[PagedDecoder.{what}] positions {first} to {first + n} are outside of a context "
                f"of {self.ctx}"
            )

    def _note_move(self, slot: int, future: Future[Any]) -> None:
        """Note that the device will read or write rows of a slot: they must not be given back."""
        moving = self._moving
        while moving and moving[0][1].done():
            moving.popleft()
        moving.append((slot, future))

    # -- memory

    def promise(self, slot: int, positions: int) -> None:
        """Note that the sequence in ``slot`` may grow to ``positions``, after `Pages.take`.

        Where these rows fill whole huge pages, they will lie in huge pages: attention over 32,768
        positions then takes less time. The call takes 1 to 2 us for each cache, unless the slot was
        promised as many before.
        """
        n = min(Pages.of(positions) * PAGE, self.ctx)
        if n <= self._promised.get(slot, 0):
            return
        self._promised[slot] = n
        for huge, (_, places) in zip(self._huge, self._row_maps(), strict=True):
            for cache, offset in places:
                begin = offset + slot * self.ctx * cache.nb[1]
                huge.promise(begin, begin + n * cache.nb[1])

    def forget_parts(self, slot: int, kept: int = 0) -> list[Callable[[], object]]:
        """Calls that give the memory of a slot back, except its first ``kept`` positions.

        The rows then read as zeros. The state is given back, too, unless positions are kept. No
        step may use the slot meanwhile. A call is for one cache; the system takes 0.03 ms for 100
        positions of a layer.
        """
        self._promised[slot] = min(self._promised.get(slot, 0), kept)
        found: list[Callable[[], object]] = []
        for (memory, caches), huge in zip(self._maps, self._huge, strict=True):
            for cache, offset in zip(caches, _places(caches), strict=False):
                length = self.ctx
                if any(cache is state for state in self.caches.states):
                    if kept:
                        continue
                    length = 1
                    further, n = self.caches.state_rows.further(slot)
                    begin = offset + further * cache.nb[1]
                    end = begin + n * cache.nb[1]
                    if n:
                        found.append(functools.partial(_forget, memory, huge, begin, begin, end))
                first = offset + slot * length * cache.nb[1]
                begin = first + kept * cache.nb[1]
                end = offset + (slot + 1) * length * cache.nb[1]
                found.append(functools.partial(_forget, memory, huge, first, begin, end))
        return found

    def forget_row_parts(self, first: int, n: int) -> list[Callable[[], object]]:
        """Calls that give back the memory of ``n`` rows from ``first`` on: one for each cache.

        The rows then read as zeros. No step may use them meanwhile.
        """
        return [
            functools.partial(give_back_memory, memory, at + first * row, at + (first + n) * row)
            for memory, places in self._row_maps()
            for row, at in [(cache.nb[1], offset) for cache, offset in places]
        ]  # fmt: skip

    def wipe_rows(self, first: int, n: int) -> None:
        """Fill ``n`` rows from ``first`` on with zeros, in all layers, behind the steps queued."""
        largest = max((cache.nb[1] for cache, _ in self.caches.rows), default=0) * n
        zeros = np.zeros(largest, np.uint8)
        for backend, caches in self._homes():
            for cache in caches:
                if any(cache is x for x, _ in self.caches.rows):
                    size = n * cache.nb[1]
                    backend.set(cache, zeros[:size], offset=first * cache.nb[1], size=size)

    def _row_maps(self) -> list[tuple[mmap.mmap, list[tuple[Tensor, int]]]]:
        """Each mapped memory with its caches of keys and values, and where each of them begins."""
        rows = {id(cache) for cache, _ in self.caches.rows}
        return [
            (memory, [(x, at) for x, at in zip(caches, _places(caches), strict=False)
                      if id(x) in rows])
            for memory, caches in self._maps
        ]  # fmt: skip

    @property
    def grows(self) -> bool:
        """Whether a sequence takes more pages as it grows, that is, whether any layer has keys."""
        return bool(self.caches.rows)

    @property
    def has_states(self) -> bool:
        """Whether any layer keeps a state."""
        return bool(self.caches.states)

    @property
    def widest(self) -> int | None:
        """How many tokens of a sequence a step may have that verifies drafts; None: any number."""
        return 1 + self.caches.state_rows.rewind.tokens if self.has_states else None

    @property
    def kept_as(self) -> str:
        """A name for the form of keys and values: architecture, layers and element types."""
        kinds = sorted({cache.dtype.name for cache, _ in self.caches.rows})
        return f"{self.model.architecture} {len(self.model.layers)} {' '.join(kinds)}"

    def page_bytes(self) -> int:
        """Bytes of one page, in all layers. In a model without keys a page is a whole state."""
        return self._page_bytes

    def slack(self, sequences: int) -> int:
        """Bytes that are taken beyond the pages of so many sequences.

        The system gives memory in pages of its own, so the first and the last row of a sequence may
        take more than they fill. Sequences that do not run write their state to a place that
        belongs to none.
        """
        rows = [cache.nb[1] for cache, _ in self.caches.rows]
        odd = sum(PAGE * row % mmap.PAGESIZE != 0 for row in rows)
        rewinds = self.caches.state_rows.rewind.sequences
        states = len(self.caches.states) * (sequences + 1 + rewinds)
        padding = len(rows)  # keys of padding go to a row that belongs to no page
        taken = 2 * odd * sequences + 2 * states + padding
        return taken * mmap.PAGESIZE + self.caches.state_bytes

    def pages(self, budget: int, slots: int) -> Pages:
        """A count of ``budget`` pages for ``slots`` sequences of this model."""
        each = 1 + self.caches.state_rows.rewind.tokens
        fixed = -(-self.caches.state_bytes * each // self.page_bytes())
        return Pages(budget, slots, fixed=fixed, grows=self.grows)


def _forget(memory: mmap.mmap, huge: HugePages, first: int, begin: int, end: int) -> None:
    """Give the memory of a slot of one cache back: it begins at ``first``, ``begin`` is kept."""
    huge.forget(first, begin)
    give_back_memory(memory, begin, end)


def _group_caches(
    caches: Caches, homes: Sequence[tuple[Backend, list[Tensor]]]
) -> list[tuple[Backend, list[Lying], list[Lying]]]:
    """For each backend its caches of keys and values, and its caches of states."""
    rows = {id(cache): i for i, (cache, _) in enumerate(caches.rows)}
    states = {id(state): i for i, state in enumerate(caches.states)}
    return [
        (
            backend,
            [(rows[id(x)], x, x.nb[1]) for x in held if id(x) in rows],
            [(states[id(x)], x, x.nb[1]) for x in held if id(x) in states],
        )
        for backend, held in homes
    ]


def give_back_memory(memory: mmap.mmap, begin: int, end: int) -> None:
    """Give the system's pages back that lie wholly between two offsets."""
    first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
    if hasattr(mmap, "MADV_DONTNEED") and first < last:
        span = (last - first) * mmap.PAGESIZE
        memory.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, span)


_FLAGS: Final = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def _places(caches: Sequence[Tensor]) -> list[int]:
    """Offsets at which the caches begin, and the end of the last one: multiples of a page."""
    found = [0]
    for cache in caches:
        found.append(found[-1] + -(-cache.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return found


def count_fitting(needs: Iterable[int], slots: int, pages: int) -> int:
    """How many sequences get a slot, first come, first served: none passes one that waits.

    Args:
        needs: pages of each sequence, the oldest first.
        slots: free slots.
        pages: free pages.
    """
    n = 0
    for need in needs:
        pages -= need
        if n == slots or pages < 0:
            break
        n += 1
    return n


def budget_of(memory: int, model: PagedDecoder) -> int:
    """How many pages fit in ``memory`` bytes.

    Raises:
        ModelError: they do not suffice for one sequence.
    """
    page = model.page_bytes()
    pages, least = memory // page, model.pages(0, 1).need(1)
    if pages < least:
        of = "one page" if least == 1 else "the state of a sequence and one page"
        raise ModelError(
            f"the memory for keys and values, {memory} bytes, is less than {of} needs: "
            f"{least * page} bytes"
        )
    return pages
