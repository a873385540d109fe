"""A huge page is used only if all of it was promised to slots, and goes when the promise ends.

Not here: how much is promised to each slot (test_pages.py).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import re
from pathlib import Path

import pytest
from models import random_models
from models.engine.test_pages import resident

import aggml
from aggml.models.kv.huge import HugePages, huge_size
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

SMAPS = Path("/proc/self/smaps")

pytestmark = pytest.mark.skipif(
    not huge_size() or not SMAPS.exists(), reason="the system gives no huge pages on demand"
)


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def asked(memory: mmap.mmap) -> list[tuple[int, int]]:
    """The offsets of ``memory`` that are marked for huge pages."""
    first = address_of(memory)
    found: list[tuple[int, int]] = []
    begin = end = 0
    for line in SMAPS.read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(x, 16) - first for x in head.groups())
        elif line.startswith("VmFlags") and "hg" in line.split() and 0 <= begin < len(memory):
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
    return found


@pytest.fixture
def memory() -> mmap.mmap:
    made = mmap.mmap(-1, 9 * huge_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made.madvise(mmap.MADV_NOHUGEPAGE)
    return made


def test_pages_are_huge_where_they_lie_whole_in_a_promise(memory: mmap.mmap) -> None:
    size, page = huge_size(), mmap.PAGESIZE
    skew = -address_of(memory) % size
    huge = HugePages(memory)
    # from the second small page of a huge one to the end of the next huge one
    huge.promise(skew + page, skew + 2 * size)
    assert asked(memory) == [(skew + size, skew + 2 * size)]
    huge.promise(skew + 3 * size + page, skew + 4 * size)  # no huge page lies whole in this promise
    huge.promise(skew + 5 * size, skew + 7 * size - page)
    one, other = (skew + size, skew + 2 * size), (skew + 5 * size, skew + 6 * size)
    assert asked(memory) == [one, other]
    huge.promise(skew + page, skew + size + page)  # a smaller promise changes nothing
    huge.promise(skew + 5 * size, skew + 7 * size)
    assert asked(memory) == [one, (other[0], other[1] + size)]


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("kept", [0, 1, 300, 511, 512, 513, 900, 1024])
def test_what_is_kept_stays_and_the_rest_has_no_memory(memory: mmap.mmap, kept: int) -> None:
    size, page = huge_size(), mmap.PAGESIZE
    begin = -address_of(memory) % size + size
    end, cut = begin + 2 * size, begin + kept * size // 512
    huge = HugePages(memory)
    huge.promise(begin, end)
    for i in range(begin, end, page):
        memory[i : i + 2] = bytes([i // page % 251, 7])
    huge.forget(begin, cut)
    memory.madvise(mmap.MADV_DONTNEED, cut, begin + 4 * size - cut)
    seen = (ctypes.c_ubyte * (len(memory) // page))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert (
        libc.mincore(ctypes.c_void_p(address_of(memory)), ctypes.c_size_t(len(memory)), seen) == 0
    )
    assert sum(x & 1 for x in seen) == (cut - begin) // page
    for i in range(begin, end, page):
        assert memory[i : i + 2] == (bytes([i // page % 251, 7]) if i < cut else bytes(2))
    whole = begin + (cut - begin) // size * size
    assert asked(memory) == ([(begin, whole)] if whole > begin else [])
    huge.promise(begin, end)  # the promise to the next sequence
    assert asked(memory) == [(begin, end)]
    assert memory[begin : begin + 2] == (bytes([begin // page % 251, 7]) if kept else bytes(2))


class Refusing(mmap.mmap):
    """Memory for which the system accepts no advice about huge pages, once `refuses` is set."""

    refuses = False

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        if self.refuses and option in (mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE):
            raise OSError(errno.ENOMEM, "too many ranges")
        super().madvise(option, start, len(self) if length is None else length)


@pytest.mark.parametrize("promised", [False, True])
def test_a_system_that_takes_no_more_advice_breaks_nothing(promised: bool) -> None:
    size = huge_size()
    memory = Refusing(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    begin = -address_of(memory) % size
    huge = HugePages(memory)
    memory.refuses = not promised
    huge.promise(begin, begin + 2 * size)
    assert bool(asked(memory)) == promised
    memory.refuses = True
    memory[begin : begin + 2 * size] = bytes([5]) * (2 * size)
    huge.forget(begin, begin + size + 7)
    assert memory[begin : begin + size + 7] == bytes([5]) * (size + 7)
    # without a promise nothing was huge, so nothing is released
    rest = bytes(size - 7) if promised else bytes([5]) * (size - 7)
    assert memory[begin + size + 7 : begin + 2 * size] == rest


async def test_a_slot_has_them_for_its_promise_alone(tmp_path: Path) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama-wide-heads")
    async with aggml.get_device("CPU").backend() as backend:
        with await open_model(file) as opened:
            small = await load_decoder(backend, opened, kind=PagedDecoder, ctx=PAGE, sequences=1)
            row = min(cache.nb[1] for cache, _ in small.caches.rows)
        ctx = -(-4 * huge_size() // row // PAGE) * PAGE
        with await open_model(file) as opened:
            model = await load_decoder(backend, opened, kind=PagedDecoder, ctx=ctx, sequences=2)
            ((memory, _),) = model._maps
            model.promise(1, 10)
            assert asked(memory) == []
            model.promise(1, ctx * 3 // 4)
            spans = asked(memory)
            caches = len(model.caches.rows)
            assert len(spans) == caches  # slot 1 has the second half of each cache
            assert all(huge_size() <= end - begin <= 3 * huge_size() for begin, end in spans)
            assert resident(model) == 0
            await model.prefill(1, [1] * 100)
            assert 0 < resident(model) <= caches * 3 * huge_size()
            for give_back in model.forget_parts(1):
                give_back()
            assert asked(memory) == []
            assert resident(model) == 0
