"""Placing while others place, close and allocate: threads, other tasks, code that runs in between.

Most of these tests make the interleaving themselves: the memory that a call takes is given by a
function that does what another thread could do at that moment. Not here: random interleavings
(fuzz/placing.py).
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.devices.cpu.backend import CPUBackend
from aggml.memory.buffer import Buffer
from aggml.memory.graph_memory import GraphMemory
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

N = 16


@pytest.fixture
def be() -> Iterator[Any]:
    with aggml.get_device("CPU").backend(n_threads=1) as backend:
        yield backend


def meddling(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Call ``what`` once, while the next buffer of the CPU is being allocated."""
    buffer_type = aggml.get_device("CPU").buffer_type
    alloc = type(buffer_type).alloc_buffer
    todo = [what]

    def alloc_buffer(self: Any, size: int) -> Buffer:
        made = alloc(self, size)
        if todo:
            todo.pop()()
        return made

    monkeypatch.setattr(type(buffer_type), "alloc_buffer", alloc_buffer)


def chain(length: int, x: aggml.Tensor | None = None) -> tuple[aggml.Tensor, Graph]:
    """A leaf and the graph of ``length`` additions of 1 to it."""
    leaf = aggml.new_tensor("f32", ne=(N,), name="x") if x is None else x
    y = leaf
    for _ in range(length):
        y = ops.scale_bias(y, 1.0, 1.0)
    return leaf, Graph(y)


def test_an_arena_never_shrinks_whoever_takes_one_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = GraphMemory(aggml.get_device("CPU").buffer_type)
    taken: list[Any] = []
    meddling(monkeypatch, lambda: taken.append(memory.arena(1 << 20)))
    small = memory.arena(1 << 10)
    assert taken[0].size == 1 << 20
    assert memory.block is taken[0]
    assert small is taken[0]


def test_prepared_runs_stay_within_the_arena_of_threads_that_place(be: Any) -> None:
    # Each thread places a graph whose scratch has another size, and runs all graphs placed so far.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    problems: list[BaseException] = []
    start = threading.Barrier(6)

    def place(k: int) -> None:
        try:
            start.wait()
            for size in range(8):
                n = 64 << ((k + size) % 8)
                x = aggml.new_tensor("f32", ne=(n,), name="x")
                y = ops.sqr(ops.neg(ops.sqr(ops.scale(x, 2.0))))
                graph = Graph(y)
                be.alloc_graph(graph)
                value = np.full(n, k + 1, np.float32)
                for _ in range(3):
                    got = be.run(graph, {x: value}, y).get(60)
                    assert (got == (2 * value) ** 4).all()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=place, args=(k,), daemon=True) for k in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    assert not problems, problems[0]


def test_a_leaf_that_another_graph_places_first_is_not_placed_twice(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, first = chain(2)
    _, second = chain(3, x)
    meddling(monkeypatch, lambda: be.alloc_graph(second))
    be.alloc_graph(first)  # its layout had a place for x, which has one now
    value = np.arange(N, dtype=np.float32)
    assert (be.run(first, {x: value}, first.ends[0]).get(60) == value + 2).all()
    assert (be.run(second, None, second.ends[0]).get(60) == value + 3).all()


def test_a_graph_that_another_thread_places_first_is_refused_and_stays_whole(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, graph = chain(2)
    meddling(monkeypatch, lambda: be.alloc_graph(graph))
    with pytest.raises(aggml.AlreadyAllocated, match="has been placed"):
        be.alloc_graph(graph)
    value = np.arange(N, dtype=np.float32)
    assert (be.run(graph, {x: value}, graph.ends[0]).get(60) == value + 2).all()


def test_a_leaf_that_lost_its_memory_meanwhile_gets_some_with_the_graph(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, graph = chain(2)
    own = be.alloc([x])
    meddling(monkeypatch, own.close)
    be.alloc_graph(graph)
    value = np.arange(N, dtype=np.float32)
    assert (be.run(graph, {x: value}, graph.ends[0]).get(60) == value + 2).all()


def test_a_graph_that_cannot_be_placed_leaves_no_tensor_placed(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = aggml.new_tensor("f32", ne=(N,), name="a")
    b = aggml.new_tensor("f32", ne=(N,), name="b")
    graph = Graph(ops.add(a, b))
    init = Buffer.init_tensor

    def refuse_b(self: Any, tensor: aggml.Tensor) -> None:
        if tensor is b:
            raise aggml.DeviceError("drawn")
        init(self, tensor)

    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "init_tensor", refuse_b)
        with pytest.raises(aggml.DeviceError):
            be.alloc_graph(graph)
    assert a.placement is None
    be.alloc_graph(graph)


def test_tensor_allocators_of_threads_give_each_tensor_a_place_of_its_own() -> None:
    buffer = aggml.get_device("CPU").buffer_type.alloc_buffer(1 << 20)
    allocator = aggml.TensorAllocator(buffer)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    tensors = [[aggml.new_tensor("f32", ne=(N,)) for _ in range(200)] for _ in range(4)]

    def place(mine: list[aggml.Tensor]) -> None:
        for tensor in mine:
            allocator.alloc(tensor)

    threads = [threading.Thread(target=place, args=(mine,)) for mine in tensors]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    offsets = [t.placement.offset for mine in tensors for t in mine if t.placement is not None]
    assert len(set(offsets)) == 800


def test_one_name_is_found_by_all_threads_that_ask_first() -> None:
    _, graph = chain(200)
    asked = graph.nodes[-1].name
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    problems: list[BaseException] = []

    def find(graph: Graph, start: threading.Barrier) -> None:
        try:
            start.wait()
            assert graph.find(asked) is graph.nodes[-1]
        except BaseException as error:
            problems.append(error)

    try:
        for _ in range(50):
            again = Graph(*graph.ends)
            start = threading.Barrier(4)
            threads = [threading.Thread(target=find, args=(again, start)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not problems, problems[0]


# -- a leaf moves while its graph is compiled


def moving_while_compiling(
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[], object],
    times: int = 1,
    *,
    late: bool = False,
) -> list[int]:
    """Call ``move`` within each of the first compilations; returns how many began."""
    compile_, begun = CPUBackend._compile, [0]

    def compiling(self: Any, graph: Graph, memory: Any) -> Any:
        begun[0] += 1
        steps = compile_(self, graph, memory)
        if late:
            plan = yield from steps
            if begun[0] <= times:
                move()
            return plan
        for i in range(3):
            try:
                yield next(steps)
            except StopIteration as end:
                return end.value
            if i == 2 and begun[0] <= times:
                move()
        return (yield from steps)

    monkeypatch.setattr(CPUBackend, "_compile", compiling)
    return begun


class Mover:
    """Gives a leaf new memory, with new contents, and fills the old memory with 99."""

    def __init__(self, be: Any, leaf: aggml.Tensor) -> None:
        self.be, self.leaf, self.value = be, leaf, 0.0
        self.buffer: Any = None

    def __call__(self) -> None:
        old = self.buffer
        if old is not None:
            self.be.set(self.leaf, np.full(N, 99, np.float32)).wait(60)
            old.close()
        self.buffer = self.be.alloc([self.leaf])
        self.value += 1
        self.be.set(self.leaf, np.full(N, self.value, np.float32)).wait(60)


@pytest.mark.parametrize("times", [1, 3, 9])
async def test_prepare_compiles_again_if_a_leaf_moves_meanwhile(
    be: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    x, graph = chain(40)
    move = Mover(be, x)
    move()
    begun = moving_while_compiling(monkeypatch, move, times)
    await be.prepare(graph)
    assert begun == [times + 1]
    assert (await be.run(graph, None, graph.ends[0]) == move.value + 40).all()


def test_a_first_run_compiles_again_if_a_leaf_moves_meanwhile(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, graph = chain(40)
    move = Mover(be, x)
    move()
    be.alloc_graph(graph)
    moving_while_compiling(monkeypatch, move)
    assert (be.run(graph, None, graph.ends[0]).get(60) == move.value + 40).all()
    assert (be.run(graph, None, graph.ends[0]).get(60) == move.value + 40).all()


def test_a_leaf_that_never_rests_is_refused(be: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, graph = chain(40)
    move = Mover(be, x)
    move()
    be.alloc_graph(graph)
    moving_while_compiling(monkeypatch, move, 1000)
    with pytest.raises(aggml.InvalidState, match="placed elsewhere"):
        be.run(graph, None, graph.ends[0])


async def test_a_leaf_that_another_task_moves_while_a_graph_is_prepared_is_read_where_it_is(
    be: Any,
) -> None:
    x, graph = chain(3000)
    move = Mover(be, x)
    move()
    stop = anyio.Event()

    async def keep_moving() -> None:
        for _ in range(20):
            if stop.is_set():
                return
            move()
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_moving)
        await be.prepare(graph)
        stop.set()
    assert (await be.run(graph, None, graph.ends[0]) == move.value + 3000).all()


async def test_a_graph_that_is_closed_and_placed_again_meanwhile_has_one_layout(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, graph = chain(40)
    be.alloc_graph(graph)

    def again() -> None:
        assert graph.memory is not None
        graph.memory.close()
        be.alloc_graph(graph)

    moving_while_compiling(monkeypatch, again)
    await be.prepare(graph)
    value = np.arange(N, dtype=np.float32)
    assert (await be.run(graph, {x: value}, graph.ends[0]) == value + 40).all()


async def test_prepare_refuses_a_backend_that_was_closed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be = aggml.get_device("CPU").backend()
    _, graph = chain(40)
    be.alloc_graph(graph)
    moving_while_compiling(monkeypatch, be.close)
    with pytest.raises(aggml.InvalidState, match="closed"):
        await be.prepare(graph)


async def test_weights_that_become_something_else_meanwhile_are_not_packed(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = aggml.new_tensor("f32", ne=(32, 32), name="w")
    x = aggml.new_tensor("f32", ne=(32, 4), name="x")
    y = ops.mul_mat(w, x)
    for _ in range(6):
        y = ops.scale_bias(y, 1.0, 1.0)
    graph = Graph(y)
    weights = be.alloc([w])
    weights.usage = aggml.BufferUsage.WEIGHTS
    be.alloc_graph(graph)
    epoch = PlacementEpoch.value

    def change() -> None:
        weights.usage = aggml.BufferUsage.ANY

    begun = moving_while_compiling(monkeypatch, change, late=True)
    await be.prepare(graph)
    assert epoch < PlacementEpoch.value
    assert begun == [2]
