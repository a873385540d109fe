"""Pages of the engine's cache: how many are promised to each slot, which memory they hold.

Not here: batching (test_engine.py).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from models.engine.running import CTX, all_of, prompts, running

import aggml
from aggml.models.kv.paging import PAGE, PagedDecoder, Pages, budget_of
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from pathlib import Path


async def test_pages_are_never_more_than_the_budget(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 5
    most = 0
    take = Pages.take

    def watched(pages: Pages, positions: int, wanted: int | None = None) -> int | None:
        nonlocal most
        slot = take(pages, positions, wanted)
        most = max(most, pages.used)
        return slot

    monkeypatch.setattr(Pages, "take", watched)
    async with running(file, budget=budget) as model, anyio.create_task_group() as tasks:
        for prompt in prompts(12, longest=150):
            tasks.start_soon(all_of, model, prompt, 8)
    assert 3 <= most <= budget


async def test_a_slot_given_back_holds_no_memory(file: Path) -> None:
    with await open_model(file) as opened:
        async with aggml.get_device("CPU").backend() as backend:
            model = await load_decoder(backend, opened, kind=PagedDecoder, ctx=CTX, sequences=2)
            assert resident(model) == 0
            for slot in (0, 1):
                await model.prefill(slot, [1] * 100)
            both = resident(model)
            assert (
                2 * 100 * model.page_bytes() // PAGE <= both < 2 * CTX * model.page_bytes() // PAGE
            )
            for give_back in model.forget_parts(0):
                give_back()
            assert resident(model) == both // 2
            before = await backend.get(model.caches.layers[0]["k"])
            assert not before[:CTX].any()
            assert before[CTX : CTX + 100].any()
            for give_back in model.forget_parts(1):
                give_back()
    # Reading released pages takes no memory: the system maps them to one page of zeros.
    assert resident(model) <= both // 2


def resident(model: PagedDecoder) -> int:
    """Bytes of a model's caches that are in memory, by mincore."""
    if not sys.platform.startswith("linux"):
        pytest.skip("mincore tells of anonymous memory on Linux only")
    ((held, _),) = model._maps
    first = ctypes.c_char.from_buffer(held)
    seen = (ctypes.c_ubyte * -(-len(held) // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(ctypes.addressof(first))
    assert libc.mincore(address, ctypes.c_size_t(len(held)), seen) == 0, ctypes.get_errno()
    return sum(x & 1 for x in seen) * mmap.PAGESIZE


async def test_a_budget_of_less_than_a_page(file: Path) -> None:
    with await open_model(file) as opened:
        async with aggml.get_device("CPU").backend() as backend:
            model = await load_decoder(backend, opened, kind=PagedDecoder, ctx=CTX, sequences=2)
            assert budget_of(10 * model.page_bytes() + 1, model) == 10
            with pytest.raises(Exception, match="less than one page needs"):
                budget_of(model.page_bytes() - 1, model)


def test_pages_count_what_is_promised() -> None:
    pages = Pages(budget=4, slots=3)
    assert [pages.take(PAGE), pages.take(2 * PAGE), pages.take(PAGE + 1)] == [0, 1, None]
    assert pages.take(1) == 2
    assert pages.take(1) is None  # no slot is free, so no page is given
    pages.give_back(0)
    assert (pages.used, pages.slots, pages.move(2), pages.slots) == (3, [1, 2], 0, [0, 1])
    assert pages.move(1) is None
    pages.give_back(0)
    pages.give_back(1)
    assert (pages.used, pages.slots) == (0, [])


def test_memory_of_free_slots_goes_when_others_need_it() -> None:
    pages = Pages(budget=6, slots=3)
    for n in (1, 2, 3):
        pages.take(n * PAGE)
    for slot in (0, 1, 2):
        pages.give_back(slot)
    # they hold 6 pages, all within the budget: kept for the sequences to come
    assert pages.surplus() == []
    assert pages.take(4 * PAGE) == 0
    assert pages.surplus() == [(2, 0)]
    assert pages.take(PAGE) == 1
    assert pages.surplus() == []
    pages.give_back(0)
    assert pages.take(2 * PAGE) == 0
    assert pages.take(3 * PAGE) == 2
    # each slot and the page from which its pages exceed its promise
    assert pages.surplus() == [(1, PAGE), (0, 2 * PAGE)]
    for slot in (0, 1, 2):
        pages.give_back(slot)
    assert pages.surplus(idle=True) == [(2, 0), (1, 0), (0, 0)]
    assert pages.surplus(idle=True) == []
