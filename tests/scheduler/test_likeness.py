"""An equivalent new graph is not planned again; a graph with any relevant difference is.

Not here: the same graph again (test_replay.py).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice
from aggml.scheduler import planner
from aggml.scheduler.deciding.program import build_split_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array = np.ndarray[Any, Any]
N = 8


class Model:
    """y = tail(w x + b), w on the device; each call of `step` builds the graph anew."""

    def __init__(self) -> None:
        self.device = SimDevice("A")
        self.sim, self.cpu = self.device.backend(), aggml.get_device("CPU").backend(n_threads=1)
        self.sched = Scheduler([self.sim, self.cpu], parallel=True)
        self.w = new_tensor("f32", ne=(N, N), name="w")
        self.bias = new_tensor("f32", ne=N, name="b")
        self.sim.alloc([self.w], usage="weights")
        self.cpu.alloc([self.bias], usage="weights")
        rng = np.random.default_rng(0)
        self.wv = rng.standard_normal((N, N), np.float32)
        self.bv = rng.standard_normal(N, np.float32)
        assert self.sim.set(self.w, self.wv).wait(60)
        assert self.cpu.set(self.bias, self.bv).wait(60)
        self.planned = 0

    def step(
        self,
        *,
        rows: int = 2,
        factor: float = 2.0,
        shift: int = 0,
        w: aggml.Tensor | None = None,
        name: str = "y",
        pin: bool = False,
        swap: bool = False,
        out: bool = False,
        dtype: str = "f32",
    ) -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
        x = new_tensor("f32", ne=(N, rows), name="x").set_input()
        h = ops.mul_mat(self.w if w is None else w, x)
        h = ops.add(h, self.bias)
        if out:
            h.set_output()
        if dtype != "f32":
            h = ops.cast(ops.cast(h, dtype), "f32")
        part = ops.view_2d(h, N // 2, rows, 4 * N, 4 * shift)
        other = ops.scale(ops.cont(part), factor)
        a, b = ops.relu(other), ops.neg(other)
        y = ops.sub(*((b, a) if swap else (a, b))).set_name(name)
        if pin:
            self.sched.set_tensor_backend(y, self.cpu)
        return Graph(y), x, y

    def expected(self, x: Array, w: Array, factor: float = 2.0, shift: int = 0) -> Array:
        h = (x @ w.T + self.bv)[:, shift : shift + N // 2] * np.float32(factor)
        result: Array = np.maximum(h, 0) + h
        return result

    async def run(self, **changes: Any) -> Array:
        graph, x, y = self.step(**changes)
        value = np.random.default_rng(1).standard_normal((x.ne[1], N), np.float32)
        got = await self.sched.run(graph, {x: value}, y)
        w = changes.get("w")
        if w is None and not {"swap", "dtype"} & set(changes):
            kept = {k: v for k, v in changes.items() if k in ("factor", "shift")}
            assert np.allclose(got, self.expected(value, self.wv, **kept), atol=1e-4)
        return got


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    found = Model()

    def counted(*args: Any, **named: Any) -> Any:
        found.planned += 1
        return build_split_graph(*args, **named)

    monkeypatch.setattr(planner, "build_split_graph", counted)
    yield found
    found.sched.close()


async def test_a_graph_built_anew_is_not_planned_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model.run()
    size = model.sched.buffer_size(model.sim)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("placed again")

    monkeypatch.setattr(planner, "lay_out", never)
    for _ in range(5):
        await model.run()
        gc.collect()  # the earlier graphs may go: nothing needs them
    assert model.planned == 1
    assert model.sched.buffer_size(model.sim) == size
    graph, x, y = model.step()
    await model.sched.prepare(graph)
    assert model.planned == 1
    assert model.sched.get_tensor_backend(x) is model.cpu
    assert model.sched.get_tensor_backend(graph.nodes[0]) is model.sim
    assert model.sched.get_tensor_backend(y) is not None
    text = str(model.sched.plan(graph))  # a printed plan is made for this graph itself
    assert model.planned == 2
    assert "mul_mat" in text


async def test_many_in_flight_of_graphs_built_anew(model: Model) -> None:
    for _ in range(3):
        futures = []
        for k in range(8):
            graph, x, y = model.step()
            value = np.full((2, N), k, np.float32)
            futures.append((value, await model.sched.submit(graph, {x: value}, [y])))
        for value, future in futures:
            (got,) = await future
            assert np.allclose(got, model.expected(value, model.wv), atol=1e-4)
    assert model.planned == 1


CHANGES: dict[str, dict[str, Any]] = {
    "a shape": {"rows": 3},
    "a parameter": {"factor": 3.0},
    "an offset of a view": {"shift": 1},
    "the order of sources": {"swap": True},
    "a flag": {"out": True},
    "a name": {"name": "z"},
    "a pin": {"pin": True},
    "a type": {"dtype": "f16"},
}


@pytest.mark.parametrize("what", CHANGES)
async def test_what_differs_in_one_thing_is_planned_again(model: Model, what: str) -> None:
    change = CHANGES[what]
    first = await model.run()
    assert model.planned == 1
    await model.run(**change)
    assert model.planned == 2
    await model.run(**change)
    assert model.planned == 2
    assert np.array_equal(await model.run(), first)
    assert model.planned == 2


async def test_other_types_of_one_shape_are_no_likeness(model: Model) -> None:
    half = await model.run(dtype="f16")
    brain = await model.run(dtype="bf16")
    assert model.planned == 2
    assert not np.array_equal(half, brain)


async def test_other_placements_are_planned_again(model: Model) -> None:
    await model.run()
    w = new_tensor("f32", ne=(N, N), name="w")
    buffer = model.sim.alloc([w])
    buffer.usage = aggml.BufferUsage.WEIGHTS
    await model.sim.set(w, -model.wv)
    got = await model.run(w=w)
    assert model.planned == 2
    value = np.random.default_rng(1).standard_normal((2, N), np.float32)
    assert np.allclose(got, model.expected(value, -model.wv), atol=1e-4)
    buffer.usage = aggml.BufferUsage.ANY
    await model.run(w=w)
    assert model.planned == 3
    buffer.close()
    model.cpu.alloc([w], usage="weights")
    await model.cpu.set(w, model.wv)
    got = await model.run(w=w)
    assert model.planned == 4
    assert np.allclose(got, model.expected(value, model.wv), atol=1e-4)


async def test_other_leafs_brought_are_planned_again(model: Model) -> None:
    def build() -> tuple[Graph, aggml.Tensor, aggml.Tensor, aggml.Tensor]:
        x, c = (new_tensor("f32", ne=N, name=n).set_input() for n in "xc")
        y = ops.add(x, c)
        return Graph(y), x, c, y

    one = np.ones(N, np.float32)
    graph, x, c, y = build()
    assert (await model.sched.run(graph, {x: one, c: one}, y) == 2).all()
    graph, x, c, y = build()
    assert (await model.sched.run(graph, {x: one, c: 2 * one}, y) == 3).all()
    assert model.planned == 1
    graph, x, c, y = build()
    model.cpu.alloc([c])
    await model.cpu.set(c, 5 * one)
    assert (await model.sched.run(graph, {x: one}, y) == 6).all()
    assert model.planned == 2
    graph, x, c, y = build()
    await model.sched.run(graph, {x: one, c: one}, y)
    with pytest.raises(aggml.NotAllocated):  # c was brought by the run before, but not by this one
        await model.sched.run(graph, {x: one}, y)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_graph_placed_meanwhile_is_left_alone(model: Model, which: int) -> None:
    steps = [model.step(), model.step()]
    value = np.ones((2, N), np.float32)
    for graph, x, y in steps:
        await model.sched.run(graph, {x: value}, y)
    assert model.planned == 1
    graph, x, y = steps[which]
    model.cpu.alloc([y])  # a result of the graph lies in memory of the user
    mark = np.full((2, N // 2), 7, np.float32)
    await model.cpu.set(y, mark)
    graph, x, other = steps[1 - which]
    for _ in range(3):
        futures = [await model.sched.submit(graph, {x: value}, other) for _ in range(5)]
        for future in futures:
            assert np.allclose(await future, model.expected(value, model.wv), atol=1e-4)
    assert np.array_equal(await model.cpu.get(y), mark)


async def test_functions_of_the_user_are_told_apart(model: Model) -> None:
    def build(function: Callable[..., None]) -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
        x = new_tensor("f32", ne=N, name="x").set_input()
        y = ops.map_custom1(x, function, n_tasks=1, userdata=None)
        return Graph(y), x, y

    def double(dst: Array, a: Array, *_: object) -> None:
        dst[...] = 2 * a

    def treble(dst: Array, a: Array, *_: object) -> None:
        dst[...] = 3 * a

    one = np.ones(N, np.float32)
    for function, factor in ((double, 2), (treble, 3), (double, 2)):
        graph, x, y = build(function)
        assert (await model.sched.run(graph, {x: one}, y) == factor).all()


async def test_only_the_last_are_remembered(model: Model) -> None:
    for rows in range(1, 22):
        await model.run(rows=rows)
    gc.collect()
    assert len(model.sched._planner._remembered) == 16
    model.sched.reset()
    assert not model.sched._planner._remembered
