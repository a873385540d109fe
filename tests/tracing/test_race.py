"""The race checker finds each missing event, and reports nothing if the order is complete.

Streams are held while operations are enqueued, so that the result does not depend on timing.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import numpy as np
import pytest
from scheduler.test_pipelines import Chain
from support import N, holding, placed, ramp, sum_graph

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import AnyDevice

Backend = aggml.Backend


class Pair:
    """Two backends of one device, placed tensors, a graph that both can run."""

    def __init__(self, device: AnyDevice) -> None:
        self.a, self.b = device.backend(), device.backend()
        self.t = holding(self.a, ramp(), "t")
        self.u = holding(self.a, ramp(), "u")
        self.s = sum_graph()
        self.memory = aggml.GraphAllocator(device.buffer_type)
        self.a.alloc([self.s.a, self.s.b, self.s.y])
        for x in (self.s.a, self.s.b):
            assert self.a.set(x, ramp()).wait(60)
        self.memory.alloc_graph(self.s.graph)
        self.view = ops.view_1d(self.t, N // 2, 4 * (N // 2))
        self.low = ops.view_1d(self.t, N // 2, 0)
        self.event = device.event()
        self.h = np.zeros(N + 1, np.float32)  # an array in host memory


#: (first step, last step, report): a race unless an event orders the steps.
PLANTED: dict[str, tuple[Callable[[Pair], Any], Callable[[Pair], Any], str]] = {
    "read after set": (lambda p: p.a.set(p.t, ramp()), lambda p: p.b.get(p.t), "a read after"),
    "set after read": (lambda p: p.a.get(p.t), lambda p: p.b.set(p.t, ramp()), "a write after"),
    "set from an array that a get fills": (
        lambda p: p.a.get(p.t, out=p.h[:N]),
        lambda p: p.b.set(p.u, p.h[:N]),
        "a read after",
    ),
    "get into an array that a set reads": (
        lambda p: p.a.set(p.t, p.h[:N]),
        lambda p: p.b.get(p.u, out=p.h[:N]),
        "a write after",
    ),
    "two gets into overlapping arrays": (
        lambda p: p.a.get(p.t, out=p.h[:N]),
        lambda p: p.b.get(p.u, out=p.h[N:0:-1]),
        "two writes",
    ),
    "two gets of bytes into one array": (
        lambda p: p.a.get(p.t, out=p.h[:N].view(np.uint8), offset=0, size=4 * N),
        lambda p: p.b.get(p.u, out=p.h[:N]),
        "two writes",
    ),
    "two sets": (lambda p: p.a.set(p.t, ramp()), lambda p: p.b.set(p.t, ramp()), "two writes"),
    "read after memset": (lambda p: p.a.memset(p.t, 0), lambda p: p.b.get(p.t), "a read after"),
    "copy from what is set": (
        lambda p: p.a.set(p.t, ramp()),
        lambda p: p.b.copy(p.t, p.u),
        "a read after",
    ),
    "copy onto what is read": (
        lambda p: p.a.get(p.u),
        lambda p: p.b.copy(p.t, p.u),
        "a write after",
    ),
    "compute over what is set": (
        lambda p: p.a.set(p.s.a, ramp()),
        lambda p: p.b.graph_compute(p.s.graph),
        "a read after",
    ),
    "set what is computed over": (
        lambda p: p.a.graph_compute(p.s.graph),
        lambda p: p.b.set(p.s.b, ramp()),
        "a write after",
    ),
    "read what is computed": (
        lambda p: p.a.graph_compute(p.s.graph),
        lambda p: p.b.get(p.s.y),
        "a read after",
    ),
    "two computations": (
        lambda p: p.a.graph_compute(p.s.graph),
        lambda p: p.b.graph_compute(p.s.graph),
        "two writes",
    ),
    "set of a part that a view shows": (
        lambda p: p.a.set(p.t, ramp(N // 2), offset=2 * N, size=2 * N),
        lambda p: p.b.get(p.view),
        "a read after",
    ),
    "view of what is set": (
        lambda p: p.a.set(p.t, ramp()),
        lambda p: p.b.get(p.view),
        "a read after",
    ),
    "event recorded too early": (
        lambda p: (p.a.record(p.event), p.a.set(p.t, ramp())),
        lambda p: (p.b.wait(p.event), p.b.get(p.t)),
        "a read after",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_missing_event_is_found(device: AnyDevice, name: str) -> None:
    first, second, kind = PLANTED[name]
    pair = Pair(device)
    with aggml.check_races(raises=False) as found:
        first(pair)
        second(pair)
    assert found.races
    race = found.races[0]
    assert race.kind.startswith(kind)
    text = str(race)
    assert race.first in text
    assert race.second in text
    assert "Missing: an event recorded on" in text
    pair.a.synchronize().wait(60)
    pair.b.synchronize().wait(60)


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_found_with_the_event(device: AnyDevice, name: str) -> None:
    first, second, _ = PLANTED[name]
    pair = Pair(device)
    with aggml.check_races():
        first(pair)
        pair.a.record(pair.event)
        pair.b.wait(pair.event)
        second(pair)
    pair.b.synchronize().wait(60)


def test_an_error_at_the_end_names_them_all(device: AnyDevice) -> None:
    pair = Pair(device)

    def careless() -> None:
        with aggml.check_races():
            pair.a.set(pair.t, ramp())
            pair.b.get(pair.t)

    with pytest.raises(aggml.RaceError, match="1 found") as caught:
        careless()
    assert "set (number" in str(caught.value)
    pair.b.synchronize().wait(60)


def test_streams_and_tensors_are_told_apart_by_name(device: AnyDevice) -> None:
    pair = Pair(device)
    with aggml.check_races(raises=False) as found:
        pair.a.set(pair.t, ramp(N // 2), offset=2 * N, size=2 * N)
        pair.b.get(pair.t)
        pair.a.get(pair.u, out=pair.h[:N])
        pair.b.set(pair.u, pair.h[:N])
    name = pair.a.stream.native.name
    assert {(r.first_stream, r.second_stream) for r in found.races} == {(name, f"{name} #2")}
    texts = list(map(str, found.races))
    assert f"bytes {2 * N} to {4 * N} of <Tensor t f32 [{N}]" in texts[0]
    assert any("an array <f4" in text and "of the host" in text for text in texts)
    assert any("of <Tensor u f32" in text for text in texts)
    assert not any("0x" in text for text in texts)
    pair.b.synchronize().wait(60)


async def test_an_array_where_memory_of_tensors_was_is_no_race(device: AnyDevice) -> None:
    """A host array may get the address of a buffer that was freed."""
    a, b = device.backend(), device.backend()
    with aggml.check_races() as checker:
        t = placed(a, 4096)
        u = placed(b, 4096)
        assert t.placement is not None
        at = t.placement.address
        a.memset(t, 0)
        while a.stream.native.completed < a.stream.native.submitted:
            await anyio.lowlevel.checkpoint()  # it completes, but the program sees no Future done
        del t
        a.stream.native.release_finished()
        gc.collect()
        b.memset(u, 0)
        assert not [x for x in checker._accesses if x.start < at + 4 * 4096 and at < x.end]
    await b.synchronize()


async def test_what_the_program_saw_done_is_in_order(device: AnyDevice) -> None:
    pair = Pair(device)
    with aggml.check_races():
        await pair.a.set(pair.t, ramp())
        await pair.b.get(pair.t)
        assert pair.a.memset(pair.t, 0).wait(60)
    # awaiting synchronize orders the set, too, whose own Future was not looked at
    with aggml.check_races(raises=False) as found:
        future = pair.a.set(pair.t, ramp())
        await pair.a.synchronize()
        pair.b.get(pair.t)
    assert future.done()
    assert found.races == []
    await pair.b.synchronize()


async def test_disjoint_bytes_are_no_race(device: AnyDevice) -> None:
    pair = Pair(device)
    with aggml.check_races():
        pair.a.set(pair.t, ramp(N // 2), offset=0, size=2 * N)
        pair.b.get(pair.view)
    await pair.b.synchronize()


async def test_arrays_that_share_no_byte_are_no_race(device: AnyDevice) -> None:
    pair = Pair(device)
    wide = np.zeros(2 * N, np.float32)
    with aggml.check_races():
        pair.a.get(pair.t, out=wide[::2])
        pair.b.get(pair.u, out=wide[1::2])
        pair.a.set(pair.t, pair.h[:N])  # two reads of one array
        pair.b.set(pair.u, pair.h[:N])
        await pair.a.synchronize()
        await pair.b.synchronize()
    assert np.array_equal(wide, np.repeat(ramp(), 2))


async def test_arrays_that_are_gone_are_no_race(device: AnyDevice) -> None:
    pair = Pair(device)
    with aggml.check_races():
        for _ in range(20):  # the allocator gives the same addresses again
            for be, t in ((pair.a, pair.t), (pair.b, pair.u)):
                be.get(t)
                stream = be.stream.native
                while stream.completed < stream.submitted:
                    await anyio.lowlevel.checkpoint()
                stream.release_finished()
        await pair.a.synchronize()
        await pair.b.synchronize()


async def test_copies_across_backends_are_in_order(device: AnyDevice) -> None:
    pair = Pair(device)
    with aggml.check_races():
        pair.a.set(pair.t, ramp())
        pair.a.copy(pair.t, pair.u, to=pair.b)
        pair.b.get(pair.u)
        pair.a.set(pair.t, ramp())
        pair.b.copy(pair.u, pair.t, to=pair.a)
        pair.a.get(pair.t)
        pair.b.set(pair.u, ramp())
    await pair.b.synchronize()


async def test_memory_used_again_is_no_race() -> None:
    device = SimDevice("S")
    a, b = device.backend(), device.backend()
    with aggml.check_races():
        for be in (a, b) * 4:
            t = placed(be, 4096)
            await be.set(t, ramp(4096))
            del t
            device.memory()
            be.stream.native.release_finished()


async def test_the_scheduler_forgets_no_event() -> None:
    for parallel in (1, 4):
        with aggml.check_races():
            chain = Chain(n=16, rows=4, parallel=parallel)
            await chain.fill()
            for _ in range(3):
                futures = [await chain.submit(seed) for seed in range(6)]
                for seed, future in enumerate(futures):
                    assert chain.right(seed, await future)
            chain.end()


async def test_the_scheduler_forgets_no_event_for_large_values_and_caches() -> None:
    with aggml.check_races():
        chain = Chain(n=128, rows=4096, parallel=True)
        cache = new_tensor("f32", ne=(128, 8), name="cache")
        chain.b.alloc([cache])
        await chain.b.memset(cache, 0)
        rows = new_tensor("f32", ne=(128, 1), name="rows").set_input()
        at = new_tensor("i64", ne=1, name="at").set_input()
        written = ops.set_rows(cache, ops.relu(rows), at)
        graph = Graph(ops.sqr(written))
        value = np.zeros((1, 128), np.float32)
        for k in range(6):
            await chain.submit(k)
            value = np.full((1, 128), k, np.float32)
            await chain.sched.submit(
                graph, {rows: value, at: np.array([k], np.int64)}, graph.ends[0]
            )
        await chain.sched.synchronize()
        chain.b.set(cache, np.zeros((8, 128), np.float32))
        await chain.sched.run(graph, {rows: value, at: np.array([1], np.int64)}, graph.ends[0])
        chain.end()


async def test_an_array_that_the_program_changes_while_it_is_queued_is_a_race(
    device: AnyDevice,
) -> None:
    pair = Pair(device)
    source = ramp()
    with aggml.check_races(raises=False) as found:
        future = pair.a.set(pair.t, source)
        source[3] = -1.0
        await future
    (race,) = found.races
    assert race.second == "the program"
    assert "set" in race.first
    assert f"an array <f4 ({N},) of the host" in race.where
    assert "copy=True" in str(race)


async def test_an_input_changed_at_the_end_of_the_block_is_a_race(device: AnyDevice) -> None:
    pair = Pair(device)
    source = ramp()
    pair.a.stream.wait(pair.event)
    with aggml.check_races(raises=False) as found:
        future = pair.a.run(pair.s.graph, {pair.s.a: source, pair.s.b: ramp()}, pair.s.y)
        source += 1  # and nobody awaits the run within the block
    (race,) = found.races
    assert "the program changed it after set" in str(race)
    await future


async def test_an_array_that_changes_when_it_may_is_no_race(device: AnyDevice) -> None:
    pair = Pair(device)
    source = ramp()
    with aggml.check_races():
        await pair.a.set(pair.t, source)
        source += 1  # its operation was seen done
        snapshot = pair.a.set(pair.t, source, copy=True)
        source += 1  # the snapshot stays as it was
        await snapshot
        pair.a.get(pair.t, out=pair.h[:N])
        pair.a.set(pair.u, pair.h[:N])  # comes after an operation that fills its source
        pair.a.get(pair.t, out=pair.h[:N])  # fills the source again, when that was read
        await pair.a.synchronize()
