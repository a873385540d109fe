"""Every public function and method with invalid arguments: typed exceptions, no crash.

There is one call for each parameter and each invalid value; the other arguments are valid. Misuse
with a message of its own is tested in test_bad_input.py.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, holding, ramp, sum_on, vector

import aggml
from aggml import Graph, GraphAllocator, HeapAllocator, MultiBuffer, TensorAllocator, ops
from aggml.devices.cpu import type_traits

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend

JUNK: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "a negative number": -7,
    "a huge number": 1 << 70,
    "a fraction": 1.5,
    "text": "junk",
    "bytes": b"junk",
    "a list": [object()],
    "an object": object(),
    "a class": int,
    "an array of objects": np.array([object()]),
}


class Things:
    """One object of each class, for a single call."""

    def __init__(self, be: CPUBackend) -> None:
        self.be = be
        self.t = holding(be, ramp(), "t")
        self.s = sum_on(be)
        self.free = vector(name="free")
        self.buffer = be.buffer_type.alloc_buffer(1024)
        self.event = be.device.event()
        self.plan = be.graph_plan(self.s.graph)


CALLS: dict[str, Callable[[Things], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "new_tensor": lambda x: (aggml.new_tensor, {"dtype": "f32", "ne": (4,), "name": "n"}),
    "Graph": lambda x: (lambda end: Graph(end), {"end": x.s.y}),
    "Graph.part": lambda x: (x.s.graph.part, {"start": 0, "stop": 1}),
    "Tensor.set_name": lambda x: (x.free.set_name, {"name": "n"}),
    "DType": lambda x: (aggml.DType.parse, {"x": "f32"}),
    "type_traits": lambda x: (type_traits, {"dtype": "f32"}),
    "convert": lambda x: (aggml.convert, {"x": ramp(), "dtype": "f16"}),
    "from_dlpack": lambda x: (aggml.from_dlpack, {"x": np.zeros((0,), np.float32)}),
    "buffer_from_host": lambda x: (x.be.device.buffer_from_host, {"memory": bytearray()}),
    "buffer_from_ptr": lambda x: (
        aggml.unsafe.buffer_from_ptr,
        {"address": x.t.address, "size": 4 * N},
    ),
    "get_device": lambda x: (aggml.get_device, {"name": "CPU"}),
    "alloc": lambda x: (x.be.alloc, {"tensors": [x.free]}),
    "alloc_graph": lambda x: (x.be.alloc_graph, {"graph": Graph(ops.neg(x.t))}),
    "alloc_tensors": lambda x: (x.be.buffer_type.alloc_tensors, {"tensors": [x.free]}),
    "tensors_size": lambda x: (x.be.buffer_type.tensors_size, {"tensors": [x.free]}),
    "alloc_buffer": lambda x: (x.be.buffer_type.alloc_buffer, {"size": 64}),
    "place": lambda x: (x.buffer.place, {"tensor": x.free, "offset": 0}),
    "MultiBuffer": lambda x: (MultiBuffer, {"parts": [x.buffer]}),
    "set": lambda x: (x.be.set, {"tensor": x.t, "x": ramp()}),
    "set bytes": lambda x: (x.be.set, {"tensor": x.t, "x": ramp(), "offset": 0, "size": 4 * N}),
    "get": lambda x: (x.be.get, {"tensor": x.t, "out": ramp(), "shape": (N,)}),
    "get bytes": lambda x: (x.be.get, {"tensor": x.t, "offset": 0, "size": 4}),
    "memset": lambda x: (x.be.memset, {"tensor": x.t, "value": 0, "offset": 0, "size": 4}),
    "clear": lambda x: (x.be.clear, {"buffer": x.buffer, "value": 0}),
    "copy": lambda x: (x.be.copy, {"src": x.t, "dst": x.s.a}),
    "accept": lambda x: (x.be.accept, {"tensor": x.t}),
    "graph_compute": lambda x: (x.be.graph_compute, {"graph": x.s.graph}),
    "run": lambda x: (x.be.run, {"graph": x.s.graph, "inputs": {}, "outputs": x.s.y}),
    "graph_plan": lambda x: (x.be.graph_plan, {"graph": x.s.graph}),
    "GraphPlan.update": lambda x: (x.plan.update, {"graph": x.s.graph}),
    "record": lambda x: (x.be.record, {"event": x.event}),
    "wait": lambda x: (x.be.wait, {"event": x.event}),
    "TensorAllocator": lambda x: (TensorAllocator, {"buffer": x.buffer}),
    "TensorAllocator.alloc": lambda x: (TensorAllocator(x.buffer).alloc, {"tensor": x.free}),
    "HeapAllocator": lambda x: (HeapAllocator, {"where": x.buffer}),
    "HeapAllocator.alloc": lambda x: (HeapAllocator(x.buffer).alloc, {"tensor": x.free}),
    "GraphAllocator": lambda x: (GraphAllocator, {"types": x.be.buffer_type}),
    "GraphAllocator.reserve": lambda x: (
        GraphAllocator(x.be.buffer_type).reserve,
        {"graph": Graph(ops.neg(x.t)), "node_ids": [0], "leaf_ids": [0]},
    ),
    "GraphAllocator.reserve_size": lambda x: (
        GraphAllocator(x.be.buffer_type).reserve_size,
        {"graph": Graph(ops.neg(x.t)), "node_ids": [0], "leaf_ids": [0]},
    ),
    "GraphAllocator.alloc_graph": lambda x: (
        GraphAllocator(x.be.buffer_type).alloc_graph,
        {"graph": Graph(ops.neg(x.t))},
    ),
    "GraphAllocator.buffer_size": lambda x: (
        GraphAllocator(x.be.buffer_type).buffer_size,
        {"buffer_id": 0},
    ),
    "compile_plan": lambda x: (aggml.compile_plan, {"graph": x.s.graph}),
}


@pytest.mark.parametrize("name", CALLS)
def test_junk_in_each_parameter(cpu: CPUBackend, name: str) -> None:
    for what, junk in JUNK.items():
        for parameter in CALLS[name](Things(cpu))[1]:
            call, good = CALLS[name](Things(cpu))
            assert not inspect.iscoroutinefunction(call)
            try:
                result = call(**good | {parameter: junk})
                if isinstance(result, aggml.Future):
                    assert result.wait(60)
            except aggml.AggmlError as problem:
                assert str(problem).startswith("["), (what, parameter)  # noqa: PT017
            except Exception as problem:
                pytest.fail(f"{name}({parameter}={what}): {problem!r} is no AggmlError")
    assert cpu.synchronize().wait(60)


@pytest.mark.parametrize("name", CALLS)
def test_good_arguments_are_good(cpu: CPUBackend, name: str) -> None:
    call, good = CALLS[name](Things(cpu))
    result = call(**good)
    if isinstance(result, aggml.Future):
        assert result.wait(60)
        result.result()


def test_nothing_that_is_assigned_reaches_an_address(cpu: CPUBackend) -> None:
    """Each of these assignments ended the process, or let it read beyond the tensor."""
    t = holding(cpu, ramp(), "t")
    view = ops.view_1d(t, 4, 16)
    assert t.placement is not None
    assert t.buffer is not None
    for thing, name, value in (
        (view, "view_offs", 1 << 40),
        (view, "ne", (1 << 20, 1, 1, 1)),
        (view, "nb", (1 << 40, 4, 4, 4)),
        (t, "placement", None),
        (t.placement, "address", 64),
        (t.placement, "offset", 1 << 40),
        (t.placement, "buffer", None),
        (t.placement, "storage", None),
        (t.buffer, "base", 64),
        (t.buffer, "size", 1 << 50),
        (t.buffer, "memory", None),
    ):
        with pytest.raises(aggml.InvalidState, match=name):
            setattr(thing, name, value)
    got = cpu.get(view)
    assert got.wait(60)
    assert np.array_equal(got.result(), ramp()[4:8])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("view_offs", 1 << 40),
        ("view_offs", -64),
        ("ne", (1 << 20, 1, 1, 1)),
        ("ne", (-4, 1, 1, 1)),
        ("nb", (1 << 62, 4, 4, 4)),
        ("nb", (-4, 4, 4, 4)),
    ],
)
def test_native_code_looks_at_bounds_itself(
    cpu: CPUBackend, field: str, value: int | tuple[int, ...]
) -> None:
    """If a tensor's fields were changed by force, native code refuses to make addresses of it."""
    t = holding(cpu, ramp(), "t")
    for use in (
        cpu.get,
        lambda v: cpu.set(v, np.zeros(v.shape, np.float32)),
        lambda v: cpu.copy(v, holding(cpu, ramp(), "u")),
        lambda v: cpu.memset(v, 0, offset=0, size=4),
        lambda v: (cpu.alloc_graph(g := Graph(ops.neg(v))), cpu.graph_compute(g)),
    ):
        view = ops.view_1d(t, 4, 16)
        object.__setattr__(view, field, value)
        with pytest.raises((aggml.AggmlError, ValueError, MemoryError)):
            use(view)
