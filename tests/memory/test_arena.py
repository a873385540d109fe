"""Holes in memory: the smallest that fits, merged with their neighbours, never given twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aggml.memory.allocator.arena import Arena, ArenaChunk


def test_an_arena_takes_the_smallest_hole_that_fits() -> None:
    arena = ArenaChunk()
    a, b, c, d, e = (arena.take(size) for size in (64, 32, 32, 32, 32))
    arena.give(a, 64)
    arena.give(c, 32)
    assert arena.take(32) == c
    assert arena.take(32) == a
    assert arena.take(32) == a + 32
    assert arena.take(64) == e + 32
    assert arena.high == 256
    assert (b, d) == (64, 128)


def test_holes_merge_with_both_neighbours_and_with_the_top() -> None:
    arena = ArenaChunk()
    a, b, c, d = (arena.take(32) for _ in range(4))
    arena.give(a, 32)
    arena.give(c, 32)
    arena.give(b, 32)
    assert arena.free == [(96, 0)]
    arena.give(d, 32)
    assert (arena.free, arena.top, arena.high) == ([], 0, 128)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_an_arena_never_gives_a_byte_twice(steps: list[tuple[bool, int]]) -> None:
    arena: ArenaChunk = ArenaChunk()
    held: list[tuple[int, int]] = []
    for give, number in steps:
        if give and held:
            arena.give(*held.pop(number % len(held)))
        elif not give:
            size = 32 * (number + 1)
            held.append((arena.take(size), size))
        taken = sorted(held)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
        assert all(start + size <= arena.high for start, size in held)
        # All that lies below the top and is not held is a hole, and no two holes touch.
        assert sum(size for size, _ in arena.free) + sum(n for _, n in held) == arena.top
        holes = sorted((start, size) for size, start in arena.free)
        assert all(a + n < b for (a, n), (b, _) in pairwise(holes))


def test_an_arena_of_chunks_opens_a_new_one_only_if_none_has_room() -> None:
    arena = Arena(100)
    first = arena.take(64)
    second = arena.take(64)
    third = arena.take(32)
    large = arena.take(1000)
    assert [chunk.high for chunk in arena.chunks] == [96, 64, 1000]
    assert len({first, second, third, large}) == 4
    arena.give(large, 1000)
    assert arena.take(500) == large
