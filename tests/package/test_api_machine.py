"""The public API driven at random: calls in any order raise nothing but typed errors.

Calls are drawn at random, whether they make sense or not. AGGML_LONG=1 in the environment lengthens
a run from seconds to a minute or two; run it so under a sanitizer.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support import ramp, sum_on

import aggml
from aggml import Graph, GraphAllocator, HeapAllocator, MultiBuffer, TensorAllocator, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = bool(os.environ.get("AGGML_LONG"))

small = st.integers(-1, 5)
pick = st.integers(0, 1 << 16)
extents = st.lists(small, min_size=1, max_size=5)
dtypes = st.sampled_from(["f32", "f32", "f32", "f16", "bf16", "i32", "q8_0", "q4_K", "f99"])
numbers = st.sampled_from([0, 1, 4, 8, 31, 32, 64, 256, -1, 1 << 31, 1 << 63, 1 << 70, 1.5, "4"])
BINARY = ["add", "mul", "mul_mat", "cpy", "get_rows", "concat"]
UNARY = ["neg", "sqr", "cont", "transpose", "relu", "soft_max", "cont", "sqrt"]


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Accept the package's own exceptions; any other one fails the test."""
    try:
        yield
    except aggml.AggmlError:
        pass
    except ExceptionGroup as group:
        if group.split(aggml.AggmlError)[1] is not None:
            raise


class Machine(RuleBasedStateMachine):
    """Two devices, and the objects made on them. Indices are taken modulo the number of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.sim_device = SimDevice("SIM", memory=1 << 16)
        self.devices: list[Any] = [aggml.get_device("CPU"), self.sim_device]
        self.backends: list[Any] = [d.backend(max_queued=2) for d in self.devices]
        self.backends.append(self.sim_device.backend())
        self.tensors: list[Any] = [aggml.new_tensor("f32", ne=(4, 4), name="first"), None]
        self.buffers: list[Any] = [None]
        self.graphs: list[Any] = [None]
        self.futures: list[Any] = []
        self.events: list[Any] = [d.event() for d in self.devices]
        self.galloc = GraphAllocator(aggml.get_device("CPU").buffer_type)

    def one(self, things: list[Any], i: int) -> Any:
        return things[i % len(things)]

    def later(self, future: Any) -> None:
        self.futures = [*self.futures[-20:], future]

    # -- making tensors and graphs

    @rule(dtype=dtypes, ne=extents)
    def leaf(self, dtype: str, ne: list[int]) -> None:
        with typed():
            self.tensors.append(aggml.new_tensor(dtype, ne))

    @rule(i=pick, op=st.sampled_from(UNARY))
    def unary(self, i: int, op: str) -> None:
        with typed():
            self.tensors.append(getattr(ops, op)(self.one(self.tensors, i)))

    @rule(i=pick, j=pick, op=st.sampled_from(BINARY))
    def binary(self, i: int, j: int, op: str) -> None:
        with typed():
            more = (0,) if op == "concat" else ()
            self.tensors.append(
                getattr(ops, op)(self.one(self.tensors, i), self.one(self.tensors, j), *more)
            )

    @rule(i=pick, ne0=numbers, ne1=small, nb1=numbers, offset=numbers)
    def view(self, i: int, ne0: Any, ne1: int, nb1: Any, offset: Any) -> None:
        with typed():
            self.tensors.append(ops.view_2d(self.one(self.tensors, i), ne0, ne1, nb1, offset))

    @rule(i=pick)
    def output(self, i: int) -> None:
        if self.one(self.tensors, i) is not None:
            with typed():
                self.one(self.tensors, i).set_output()

    @rule(i=pick, j=pick)
    def graph(self, i: int, j: int) -> None:
        with typed():
            self.graphs.append(Graph(self.one(self.tensors, i), self.one(self.tensors, j)))

    @rule(i=pick, start=small, stop=small)
    def part(self, i: int, start: int, stop: int) -> None:
        graph = self.one(self.graphs, i)
        if graph is not None:
            with typed():
                self.graphs.append(graph.part(start, stop))

    # -- memory

    @rule(b=pick, picks=st.lists(pick, max_size=4))
    def alloc(self, b: int, picks: list[int]) -> None:
        with typed():
            tensors = [self.one(self.tensors, i) for i in picks]
            self.buffers.append(self.one(self.backends, b).alloc(tensors))

    @rule(b=pick, size=st.sampled_from([0, 1, 64, 4096, 1 << 40, -1]))
    def buffer(self, b: int, size: int) -> None:
        with typed():
            self.buffers.append(self.one(self.devices, b).buffer_type.alloc_buffer(size))

    @rule(i=pick, j=pick)
    def multi(self, i: int, j: int) -> None:
        with typed():
            parts = [self.one(self.buffers, i), self.one(self.buffers, j)]
            if not any(isinstance(part, MultiBuffer) for part in parts):
                self.buffers.append(MultiBuffer(parts))

    @rule(i=pick, j=pick, offset=numbers)
    def place(self, i: int, j: int, offset: Any) -> None:
        buffer = self.one(self.buffers, i)
        if buffer is not None:
            with typed():
                buffer.place(self.one(self.tensors, j), offset)

    @rule(i=pick, j=pick, what=st.sampled_from(["close", "unplace", "reset", "usage", "tensors"]))
    def change(self, i: int, j: int, what: str) -> None:
        buffer = self.one(self.buffers, i)
        if buffer is None:
            return
        with typed():
            if what == "unplace":
                buffer.unplace(self.one(self.tensors, j))
            elif what == "usage":
                buffer.usage = j % 4
            elif what == "tensors":
                assert all(t.buffer is not None for t in buffer.tensors)
            else:
                getattr(buffer, what)()

    @rule(i=pick, j=pick, kind=st.sampled_from([TensorAllocator, HeapAllocator]))
    def by_hand(self, i: int, j: int, kind: Any) -> None:
        with typed():
            kind(self.one(self.buffers, i)).alloc(self.one(self.tensors, j))

    @rule(b=pick, i=pick)
    def alloc_graph(self, b: int, i: int) -> None:
        with typed():
            self.buffers.append(self.one(self.backends, b).alloc_graph(self.one(self.graphs, i)))

    @rule(i=pick)
    def galloc_graph(self, i: int) -> None:
        graph = self.one(self.graphs, i)
        if graph is not None:
            with typed():
                self.galloc.reserve_size(graph)
                self.galloc.alloc_graph(graph)

    # -- work

    @rule(b=pick, i=pick, n=small, dtype=st.sampled_from(["f4", "u1", "f8", "i4"]), offset=numbers)
    def set(self, b: int, i: int, n: int, dtype: str, offset: Any) -> None:
        tensor, be = self.one(self.tensors, i), self.one(self.backends, b)
        with typed():
            if n < 3 and tensor is not None:
                self.later(be.set(tensor, np.ones(tensor.shape, dtype)))
            else:
                self.later(be.set(tensor, np.ones(abs(n) * 4, dtype), offset=offset, copy=n == 4))

    @rule(b=pick, i=pick, offset=st.one_of(st.none(), numbers), size=st.one_of(st.none(), numbers))
    def get(self, b: int, i: int, offset: Any, size: Any) -> None:
        with typed():
            self.later(
                self.one(self.backends, b).get(self.one(self.tensors, i), offset=offset, size=size)
            )

    @rule(b=pick, i=pick, value=numbers)
    def memset(self, b: int, i: int, value: Any) -> None:
        with typed():
            self.later(self.one(self.backends, b).memset(self.one(self.tensors, i), value))

    @rule(b=pick, i=pick, value=numbers)
    def clear(self, b: int, i: int, value: Any) -> None:
        with typed():
            self.later(self.one(self.backends, b).clear(self.one(self.buffers, i), value))

    @rule(b=pick, c=pick, i=pick, j=pick)
    def copy(self, b: int, c: int, i: int, j: int) -> None:
        with typed():
            one, two = self.one(self.backends, b), self.one(self.backends, c)
            self.later(one.copy(self.one(self.tensors, i), self.one(self.tensors, j), to=two))

    @rule(b=pick, i=pick)
    def compute(self, b: int, i: int) -> None:
        with typed():
            self.later(self.one(self.backends, b).graph_compute(self.one(self.graphs, i)))

    @rule(b=pick, i=pick, j=pick, k=pick)
    def run(self, b: int, i: int, j: int, k: int) -> None:
        with typed():
            tensor = self.one(self.tensors, j)
            shape = () if tensor is None else tensor.shape
            inputs = {tensor: np.ones(shape, np.float32)} if k % 2 else None
            out = self.one(self.tensors, k)
            self.later(self.one(self.backends, b).run(self.one(self.graphs, i), inputs, [out]))

    @rule(b=pick, i=pick, j=pick)
    def batch(self, b: int, i: int, j: int) -> None:
        be = self.one(self.backends, b)
        with typed(), be.batch():
            self.later(be.memset(self.one(self.tensors, i), 1))
            self.later(be.get(self.one(self.tensors, j)))

    @rule(b=pick, i=pick, what=st.sampled_from(["record", "wait"]))
    def event(self, b: int, i: int, what: str) -> None:
        with typed():
            self.later(getattr(self.one(self.backends, b), what)(self.one(self.events, i)))

    # -- failures and ends

    @rule(i=pick, what=st.sampled_from(["abort", "wait", "result", "times"]))
    def future(self, i: int, what: str) -> None:
        if self.futures:
            future = self.one(self.futures, i)
            with typed():
                if what == "wait":
                    assert future.wait(60), f"{future!r} never ends"
                elif what == "times":
                    assert future.times.submitted > 0
                else:
                    getattr(future, what)()

    @rule(k=st.integers(0, 3), kind=st.sampled_from(["alloc", "transfer", "compute"]))
    def fault(self, k: int, kind: Any) -> None:
        self.sim_device.fail_at(k, kind)

    @rule(i=pick)
    def show(self, i: int) -> None:
        tensor = self.one(self.tensors, i)
        if tensor is not None:
            assert repr(tensor)
            with typed():
                assert tensor.host_view().shape is not None
                np.from_dlpack(tensor)

    @rule(b=pick)
    def close(self, b: int) -> None:
        i = b % len(self.backends)
        self.backends[i].close()
        self.backends[i] = self.backends[i].device.backend()

    @invariant()
    def all_can_be_shown(self) -> None:
        for things in (self.backends, self.buffers[-3:], self.graphs[-3:], self.futures[-3:]):
            assert all(repr(thing) for thing in things)

    def teardown(self) -> None:
        self.sim_device._faults.clear()
        for be in self.backends:
            with typed():
                done = be.synchronize()
                assert done.wait(60), f"{be!r} has not finished its work within 60 s"
                done.result()
        with aggml.get_device("CPU").backend() as be:  # a new backend still works
            s = sum_on(be)
            run = s.run(be, ramp(), ramp())
            assert run.wait(60)
            assert np.array_equal(run.result(), 2 * ramp())
        for be in self.backends:
            be.close()


Machine.TestCase.settings = settings(
    max_examples=500 if LONG else 25,
    stateful_step_count=80 if LONG else 40,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=(
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ),
)


@pytest.mark.timeout(1200 if LONG else 300)
class TestMachine(Machine.TestCase):  # type: ignore[misc,valid-type]
    """Hypothesis draws the steps."""
