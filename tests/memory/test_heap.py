"""HeapAllocator: tensors placed and released in any order, and measured before."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aggml
from aggml import HeapAllocator, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = aggml.get_device("CPU").buffer_type


def leaf(n: int, name: str = "t") -> aggml.Tensor:
    return new_tensor("f32", ne=(n,), name=name)


@pytest.mark.feature("AL-15")
def test_what_is_released_is_given_again() -> None:
    heap = HeapAllocator(HOST.alloc_buffer(1024))
    a, b, c = leaf(64, "a"), leaf(64, "b"), leaf(64, "c")
    assert heap.alloc(a) is a
    heap.alloc(b)
    first = a.address
    heap.free(a)
    assert a.address is None
    heap.alloc(c)
    assert c.address == first
    assert heap.max_size == 512
    heap.reset()
    assert (b.address, c.address, heap.max_size) == (None, None, 0)


@pytest.mark.feature("AL-15")
def test_measuring_places_nothing_and_tells_what_is_needed() -> None:
    def use(heap: HeapAllocator) -> None:
        tensors = [leaf(n) for n in (100, 3, 50, 8)]
        for t in tensors:
            heap.alloc(t)
            assert (t.address is None) == heap.measures
        heap.free(tensors[1])
        heap.free(tensors[0])
        heap.alloc(leaf(102))

    measuring = HeapAllocator(HOST)
    use(measuring)
    size = measuring.max_size
    use(HeapAllocator(HOST.alloc_buffer(size)))
    with pytest.raises(aggml.CapacityExceeded):
        use(HeapAllocator(HOST.alloc_buffer(size - 32)))


@pytest.mark.feature("AL-15")
def test_what_does_not_fit_changes_nothing() -> None:
    heap = HeapAllocator(HOST.alloc_buffer(512))
    a, large = leaf(64, "a"), leaf(65, "large")
    heap.alloc(a)
    for _ in range(3):
        with pytest.raises(aggml.CapacityExceeded, match="large"):
            heap.alloc(large)
    assert heap.max_size == 256
    heap.alloc(leaf(64, "b"))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda h, t: h.alloc(t), aggml.AlreadyAllocated),
        (lambda h, t: h.alloc(ops.view_1d(t, 1, 0)), aggml.InvalidArgument),
        (lambda h, t: h.alloc("t"), aggml.InvalidHandle),
        (lambda h, t: h.free(leaf(1)), aggml.InvalidArgument),
        (lambda h, t: h.free(None), aggml.InvalidArgument),
        (lambda h, t: HeapAllocator("CPU"), aggml.InvalidHandle),  # type: ignore[arg-type]
    ],
    ids=["twice", "a view", "no tensor", "a stranger", "nothing", "no buffer"],
)
@pytest.mark.parametrize("measure", [False, True])
def test_misuse(
    call: Callable[[HeapAllocator, aggml.Tensor], object], error: type[Exception], measure: bool
) -> None:
    heap = HeapAllocator(HOST if measure else HOST.alloc_buffer(1024))
    t = heap.alloc(leaf(4))
    with pytest.raises(error):
        call(heap, t)
    heap.free(t)
    with pytest.raises(aggml.InvalidArgument):
        heap.free(t)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60))
def test_tensors_never_overlap(steps: list[tuple[bool, int]]) -> None:
    heap = HeapAllocator(HOST.alloc_buffer(1 << 16))
    held: list[aggml.Tensor] = []
    for give, number in steps:
        if give and held:
            heap.free(held.pop(number % len(held)))
        elif not give:
            held.append(heap.alloc(leaf(number)))
        ranges = sorted((t.address or 0, t.nbytes) for t in held if t.nbytes)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(ranges))
        assert all((t.address or 0) % 32 == 0 for t in held)
