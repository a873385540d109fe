"""Inputs: none left out, none of another graph, none left over from another request; names.

On one backend and on schedulers. Not here: what an array must look like (test_bad_input.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Array, N, ramp

import aggml
from aggml import Graph, new_tensor, ops

NOT_ALLOCATED, BAD = aggml.NotAllocated, aggml.InvalidArgument


class Service:
    """y = (x + bias) * scale: x and scale are inputs, bias keeps its value."""

    def __init__(self) -> None:
        self.x = new_tensor("f32", ne=N, name="x").set_input()
        self.scale = new_tensor("f32", ne=N, name="scale").set_input()
        self.bias = new_tensor("f32", ne=N, name="bias")
        self.sum = ops.add(self.x, self.bias).set_name("sum")
        self.y = ops.mul(self.sum, self.scale).set_name("y")
        self.graph = Graph(self.y)
        self.ones = np.ones(N, np.float32)

    def inputs(self, start: float) -> dict[aggml.Tensor, Array]:
        return {self.x: ramp(start=start), self.scale: self.ones}


@pytest.fixture
def s(be: aggml.Backend) -> Service:
    made = Service()
    be.alloc_graph(made.graph)
    be.set(made.bias, made.ones)
    return made


async def test_an_input_that_was_never_written_is_named(be: aggml.Backend, s: Service) -> None:
    for given in ({}, None, {s.scale: s.ones}):
        with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*never written"):
            be.run(s.graph, given, s.y)
    with pytest.raises(NOT_ALLOCATED, match=r"scale.*never written"):
        be.run(s.graph, {s.x: ramp()}, s.y)
    with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*never written"):
        be.graph_compute(s.graph)
    with pytest.raises(NOT_ALLOCATED, match="never written"):
        be.run(s.graph, {s.x: ramp()}, s.y, reuse=[s.scale])
    assert np.array_equal(await be.run(s.graph, s.inputs(0), s.y), ramp() + 1)


async def test_a_request_does_not_see_that_of_another(be: aggml.Backend, s: Service) -> None:
    for _ in range(3):  # the first run, then prepared runs
        assert np.array_equal(await be.run(s.graph, s.inputs(5), s.y), ramp() + 6)
        for given in ({}, {s.scale: s.ones}):
            with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*earlier run.*reuse"):
                be.run(s.graph, given, s.y)
    with pytest.raises(NOT_ALLOCATED, match=r"scale.*earlier run"):
        be.run(s.graph, {"x": ramp()}, s.y, reuse=["x"])


async def test_reuse_is_said_in_the_call(be: aggml.Backend, s: Service) -> None:
    await be.run(s.graph, s.inputs(5), s.y)
    for reuse in (["x"], [s.x], (s.x, "bias")):
        for _ in range(2):
            given = {s.scale: 2 * s.ones}
            assert np.array_equal(await be.run(s.graph, given, s.y, reuse=reuse), 2 * (ramp() + 6))
    for wrong in ("x", s.x, 3, None):
        with pytest.raises(aggml.InvalidHandle, match="reuse"):
            be.run(s.graph, s.inputs(0), s.y, reuse=wrong)  # type: ignore[arg-type]
    with pytest.raises(NOT_ALLOCATED, match=r"sum.*no leaf"):
        be.run(s.graph, s.inputs(0), s.y, reuse=[s.sum])


async def test_what_was_set_lasts_until_a_run_brings_more(be: aggml.Backend, s: Service) -> None:
    be.set(s.x, ramp(start=3))
    be.memset(s.scale, 0)
    be.set(s.scale, s.ones)
    for _ in range(2):
        assert np.array_equal(await be.run(s.graph, {}, s.y), ramp() + 4)
        await be.graph_compute(s.graph)
    await be.run(s.graph, {s.x: ramp()}, s.y)
    await be.graph_compute(s.graph)  # graph_compute uses the values that are there
    with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*earlier run"):
        be.run(s.graph, {}, s.y)
    be.set(s.x, ramp()[:4], offset=0, size=16)
    assert (await be.run(s.graph, {}, s.y))[0] == 1


async def test_copies_other_graphs_and_views_write_inputs(be: aggml.Backend) -> None:
    x = new_tensor("f32", ne=N, name="x").set_input()
    given = new_tensor("f32", ne=N, name="given").set_input()
    reader, writer = Graph(ops.neg(x)), Graph(ops.cpy(given, x))
    y = reader.ends[0]
    memory = be.alloc([x, given])
    be.alloc_graph(reader)
    be.alloc_graph(writer)
    for write in (
        lambda: be.run(writer, {given: ramp()}, ()),
        lambda: (be.set(given, ramp()), be.graph_compute(writer))[-1],
        lambda: (be.set(given, ramp()), be.copy(given, x))[-1],
        lambda: be.set(ops.view_1d(x, N, 0), ramp()),
    ):
        await be.clear(memory)
        await be.run(reader, {x: ramp()}, y)
        with pytest.raises(NOT_ALLOCATED, match="earlier run"):
            be.run(reader, {}, y)
        await write()
        assert np.array_equal(await be.run(reader, {}, y), -ramp())


async def test_a_cache_that_the_graph_writes_is_not_asked_for(be: aggml.Backend) -> None:
    cache = new_tensor("f32", ne=(4, 8), name="cache").set_input()
    row = new_tensor("f32", ne=(4, 1), name="row").set_input()
    at = new_tensor("i64", ne=1, name="at").set_input()
    written = ops.set_rows(cache, row, at)
    y = ops.sum_rows(ops.cont(written)).set_name("y")
    graph = Graph(written, y)
    be.alloc_graph(graph)
    for i in range(3):
        value = np.full((1, 4), i + 1, np.float32)
        out = await be.run(graph, {row: value, at: np.array([i], np.int64)}, y)
        assert out.ravel()[i] == 4 * (i + 1)


async def test_an_input_has_to_be_a_leaf_of_the_graph(be: aggml.Backend, s: Service) -> None:
    other = Service()
    be.alloc_graph(other.graph)
    with pytest.raises(BAD, match=r"\bx\b.*is no leaf of <Graph.*reads"):
        be.run(s.graph, {**s.inputs(0), other.x: ramp()}, s.y)
    with pytest.raises(BAD, match=r"\by\b.*computes"):
        be.run(s.graph, {**s.inputs(0), s.y: ramp()}, s.y)
    with pytest.raises(NOT_ALLOCATED, match=r"sum.*computes"):
        be.run(s.graph, {s.x: ramp(), s.scale: s.ones, "sum": ramp()}, s.y)
    with pytest.raises(BAD, match=r"\bx\b.*twice"):
        be.run(s.graph, {s.x: ramp(), "x": ramp(), s.scale: s.ones}, s.y)


async def test_memory_of_the_caller_has_a_value(cpu: aggml.Backend) -> None:
    whole = np.zeros(4 * N + 64, np.uint8)
    start = -whole.__array_interface__["data"][0] % 64
    array = whole[start : start + 4 * N].view(np.float32)
    x = aggml.from_dlpack(array, name="x", device=cpu.device).set_input()
    y = ops.neg(x)
    graph = Graph(y)
    cpu.alloc_graph(graph)
    array[:] = ramp()
    assert np.array_equal(await cpu.run(graph, {}, y), -ramp())


async def test_tensors_by_name(be: aggml.Backend, s: Service) -> None:
    given: dict[str, Any] = {"x": ramp(start=2), "scale": s.ones}
    for _ in range(2):
        assert np.array_equal(await be.run(s.graph, given, "y"), ramp() + 3)
        (out,) = await be.run(s.graph, given, ["y"])
        assert np.array_equal(out, ramp() + 3)
        mixed: dict[aggml.Tensor | str, Any] = {s.x: ramp(), "scale": s.ones}
        assert np.array_equal(await be.run(s.graph, mixed, s.y), ramp() + 1)
    assert s.graph.find("bias") is s.bias
    with pytest.raises(BAD, match=r"'scael'.*scale"):
        be.run(s.graph, {"x": ramp(), "scael": s.ones}, "y")
    with pytest.raises(BAD, match="'z'"):
        be.run(s.graph, given, "z")
    with pytest.raises(aggml.InvalidHandle):
        be.run(s.graph, {3: ramp()}, "y")


async def test_a_name_that_several_tensors_have(be: aggml.Backend) -> None:
    a, b = (new_tensor("f32", ne=n, name="x").set_input() for n in (N, 1))
    y = ops.add(a, b).set_name("y")
    graph = Graph(y)
    be.alloc_graph(graph)
    with pytest.raises(BAD, match=r"2 tensors.*'x'.*x f32 \[16\].*x f32 \[1\]"):
        be.run(graph, {"x": ramp()}, "y")
    with pytest.raises(aggml.InvalidHandle):
        graph.find(3)  # type: ignore[arg-type]


@pytest.fixture
def sched(be: aggml.Backend, cpu: aggml.Backend) -> aggml.Scheduler:
    return aggml.Scheduler([cpu] if be.device is cpu.device else [be, cpu], parallel=True)


async def test_a_scheduler_asks_for_the_same(sched: aggml.Scheduler) -> None:
    s = Service()
    sched.backends[-1].alloc([s.bias])
    sched.backends[-1].set(s.bias, s.ones)
    with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*never written"):
        await sched.run(s.graph, {s.scale: s.ones}, s.y)
    with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*never written"):
        sched.graph_compute(s.graph)
    for i in range(3):
        named: dict[str, Any] = {"x": ramp(start=i), "scale": s.ones}
        assert np.array_equal(await sched.run(s.graph, named, "y"), ramp() + 1 + i)
        assert np.array_equal(await sched.run(s.graph, s.inputs(i), s.y), ramp() + 1 + i)
        with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*earlier run"):
            await sched.run(s.graph, {"scale": s.ones}, s.y)
    with pytest.raises(NOT_ALLOCATED, match="computes"):
        await sched.run(s.graph, {**s.inputs(0), s.y: ramp()}, s.y)
    with pytest.raises(NOT_ALLOCATED, match="no leaf"):
        await sched.run(s.graph, {**s.inputs(0), Service().x: ramp()}, s.y)
    with pytest.raises(BAD, match="'z'"):
        await sched.run(s.graph, s.inputs(0), "z")


async def test_a_scheduler_reuses_what_has_memory(sched: aggml.Scheduler) -> None:
    s, home = Service(), sched.backends[-1]
    home.alloc([s.bias, s.x, s.scale])
    home.set(s.bias, s.ones)
    home.set(s.scale, s.ones)
    with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*never written"):
        await sched.run(s.graph, {}, s.y)
    for i in range(3):
        assert np.array_equal(await sched.run(s.graph, {"x": ramp(start=i)}, "y"), ramp() + 1 + i)
        with pytest.raises(NOT_ALLOCATED, match=r"\bx\b.*earlier run"):
            await sched.run(s.graph, {}, s.y)
        assert np.array_equal(await sched.run(s.graph, {}, s.y, reuse=["x"]), ramp() + 1 + i)
