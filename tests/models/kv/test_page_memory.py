"""PageMemory: a page is given to one taker, in runs, and its memory goes back when it is free."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from models.kv.test_prefixes import Read

from aggml.models.kv.page_memory import PageMemory
from aggml.models.kv.snapshots import CacheForm

FORM = CacheForm((("f32", 64), ("f32", 128)), ())  # pages of 4096 and 8192 bytes


@settings(max_examples=200)
@given(
    pages=st.integers(0, 12),
    acts=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 12)), max_size=30),
)
def test_pages_are_taken_once_and_in_runs(pages: int, acts: list[tuple[bool, int, int]]) -> None:
    memory, free = PageMemory(FORM, pages), {*range(pages)}
    for takes, n, other in acts:
        if takes:
            after = other if other not in free else None
            runs = memory.take(n, after)
            taken = [page for first, count in runs for page in range(first, first + count)]
            assert len(taken) == len({*taken}) == min(n, len(free))
            assert {*taken} <= free
            if taken and after is not None and after + 1 in free:
                assert taken[0] == after + 1
            free -= {*taken}
        elif other < pages and other not in free:
            memory.give_back(other)
            free.add(other)
        assert memory.free == len(free)


def test_the_whole_memory_is_one_run_again_when_all_is_given_back() -> None:
    memory = PageMemory(FORM, 9)
    for _ in range(9):
        memory.take(1)
    for page in (4, 0, 8, 2, 1, 6, 7, 3, 5):
        memory.give_back(page)
    assert memory.take(9) == [(0, 9)]


def test_free_pages_give_their_memory_back_unless_a_transfer_uses_them() -> None:
    memory, read = PageMemory(FORM, 4), Read()
    assert memory.take(4) == [(0, 4)]
    for piece in memory.rows(0, 4):
        piece[:] = 7
    transfers: Any = [read]
    memory.note(1, 1, transfers)
    for page in (1, 2):
        memory.give_back(page)
    memory.trim()
    assert [int(piece[0]) for page in range(4) for piece in memory.rows(page, 1)] == [
        7, 7, 7, 7, 0, 0, 7, 7,
    ]  # fmt: skip
    read.over = True
    memory.trim()
    assert not any(np.any(piece) for piece in memory.rows(1, 2))
    assert all(np.all(piece == 7) for page in (0, 3) for piece in memory.rows(page, 1))


def test_pages_that_were_taken_again_keep_their_memory() -> None:
    memory = PageMemory(FORM, 2)
    memory.take(2)
    memory.give_back(0)
    memory.take(1)
    memory.rows(0, 1)[0][:] = 5
    memory.trim()
    assert (memory.rows(0, 1)[0] == 5).all()
