"""Bad options, closed backends and impossible placements: refused by name, at once.

Not here: transfers of arrays that do not fit (test_bad_input.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import ml_dtypes
import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_graph, sum_on, vector

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import AnyDevice

    from aggml.devices.cpu import CPUBackend, CPUDevice
    from aggml.devices.sim import SimBackend


def test_every_error_is_an_aggml_error_and_a_builtin() -> None:
    builtin = {
        aggml.InvalidHandle: TypeError,
        aggml.InvalidArgument: ValueError,
        aggml.OutOfBounds: IndexError,
        aggml.LayoutMismatch: ValueError,
        aggml.Unsupported: NotImplementedError,
        aggml.AllocFailed: MemoryError,
        aggml.NotAllocated: RuntimeError,
        aggml.InvalidState: RuntimeError,
        aggml.Aborted: RuntimeError,
        aggml.DeviceError: RuntimeError,
    }
    for error, base in builtin.items():
        assert issubclass(error, aggml.AggmlError)
        assert issubclass(error, base)


CLOSED: dict[str, Callable[[aggml.Backend, Any], object]] = {
    "set": lambda be, s: be.set(s.a, ramp()),
    "get": lambda be, s: be.get(s.a),
    "memset": lambda be, s: be.memset(s.a, 0),
    "copy": lambda be, s: be.copy(s.a, s.b),
    "accept": lambda be, s: be.accept(s.a),
    "alloc": lambda be, s: be.alloc([vector()]),
    "alloc_graph": lambda be, s: be.alloc_graph(sum_graph().graph),
    "graph_plan": lambda be, s: be.graph_plan(s.graph),
    "graph_compute": lambda be, s: be.graph_compute(s.graph),
    "run": lambda be, s: s.run(be, ramp(), ramp()),
    "record": lambda be, s: be.record(be.device.event()),
    "wait": lambda be, s: be.wait(be.device.event()),
    "batch": lambda be, s: be.batch(),
}


@pytest.mark.parametrize("what", CLOSED)
def test_a_closed_backend_says_so(be: aggml.Backend, what: str) -> None:
    s = sum_on(be)
    be.close()
    with pytest.raises(aggml.InvalidState, match=f"{be.device.name}.*closed"):
        CLOSED[what](be, s)


async def test_a_closed_backend_says_so_to_those_who_await(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    s = sum_on(be)
    mine = placed(other)
    await be.aclose()
    with pytest.raises(aggml.InvalidState, match="closed"):
        await be.prepare(s.graph)
    with pytest.raises(aggml.InvalidState, match="closed"):
        await be.reserve(10)
    with pytest.raises(aggml.InvalidState, match="closed"):
        other.copy(mine, s.a, to=be)
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.copy(s.a, mine, to=other)
    assert other.pending == 0
    await other.get(mine)


@pytest.mark.parametrize("bad", [-1, 1.5, "x", None])
async def test_reserve_of_what_is_no_size(be: aggml.Backend, bad: Any) -> None:
    with pytest.raises(aggml.AggmlError, match=str(bad)):
        await be.reserve(bad)


async def test_prepare_of_what_is_no_graph(be: aggml.Backend) -> None:
    for bad in (None, 3, vector(name="leaf")):
        with pytest.raises(aggml.InvalidHandle, match="no Graph"):
            await be.prepare(bad)  # type: ignore[arg-type]


def test_an_unsupported_node_is_named(sim: SimBackend) -> None:
    device = SimDevice("PICKY", unsupported=["add"])
    s = sum_graph()
    with device.backend() as be:
        assert not device.supports_op(s.y)
        be.alloc_graph(s.graph)
        for call in (
            lambda: be.graph_compute(s.graph),
            lambda: s.run(be, ramp(), ramp()),
            lambda: be.graph_plan(s.graph),
        ):
            with pytest.raises(aggml.Unsupported, match=r"PICKY.*add"):
                call()
        assert be.pending == 0
        assert np.array_equal(_now(be.get(holding(be, ramp()))), ramp())


def _now(future: aggml.Future[Any]) -> Any:
    assert future.wait(60)
    return future.result()


@pytest.mark.parametrize(
    "options",
    [
        {"n_threads": 0},
        {"n_threads": -3},
        {"n_threads": 513},
        {"max_queued": 0},
        {"isa": "pentium"},
    ],
    ids=str,
)
def test_bad_options_of_a_backend(cpu_device: CPUDevice, options: dict[str, Any]) -> None:
    (value,) = options.values()
    with pytest.raises((aggml.InvalidArgument, ValueError), match=str(value)):
        cpu_device.backend(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"alignment": 3},
        {"alignment": 0},
        {"memory": -1},
        {"latency": -1},
        {"bandwidth": 0},
        {"speed": -5},
    ],
    ids=str,
)
def test_bad_options_of_a_simulated_device(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(aggml.InvalidArgument, match=f"{name}={value}"):
        SimDevice("BAD", **options)


def test_read_only_memory(cpu_device: CPUDevice, cpu: CPUBackend) -> None:
    memory = np.zeros(4 * N + 64, np.uint8)
    start = -memory.ctypes.data % 64
    frozen = memory[start : start + 4 * N]
    frozen.flags.writeable = False
    buffer = cpu_device.buffer_from_host(frozen)
    a = vector(name="frozen")
    buffer.place(a, 0)
    assert not _now(cpu.get(a)).any()
    other = placed(cpu)
    graph = Graph(ops.cpy(other, a))
    cpu.alloc_graph(graph)
    for call in (
        lambda: cpu.set(a, ramp()),
        lambda: cpu.memset(a, 0),
        lambda: cpu.copy(other, a),
        lambda: cpu.run(graph, {a: ramp()}, other),
        lambda: cpu.graph_compute(graph),
    ):
        with pytest.raises(aggml.InvalidArgument, match=r"(?s)frozen.*read-only"):
            call()
    assert not memory.any()


@pytest.mark.parametrize(
    "bad", [3, "text", None, object(), np.zeros((8, 8))[:, ::2]], ids=lambda b: type(b).__name__
)
def test_buffer_from_what_is_no_memory(cpu_device: CPUDevice, bad: object) -> None:
    with pytest.raises(aggml.InvalidHandle):
        cpu_device.buffer_from_host(bad)


def test_buffer_from_misaligned_memory(cpu_device: CPUDevice) -> None:
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % 64 + 1
    with pytest.raises(aggml.Misaligned, match="0x"):
        cpu_device.buffer_from_host(memory[start : start + 64])


def test_places_in_a_buffer(be: aggml.Backend, device: AnyDevice) -> None:
    buffer = device.buffer_type.alloc_buffer(1024)
    for offset, error in (
        (-128, aggml.OutOfBounds),
        (1024, aggml.OutOfBounds),
        (1 << 70, aggml.OutOfBounds),
        (1, aggml.Misaligned),
    ):
        with pytest.raises(error, match=str(offset)):
            buffer.place(vector(name="t"), offset)
    a = vector(name="placed")
    buffer.place(a, 0)
    with pytest.raises(aggml.AlreadyAllocated, match="placed"):
        buffer.place(a, 128)
    with pytest.raises(aggml.InvalidArgument, match="view"):
        buffer.place(ops.view_1d(a, 4, 0), 128)
    buffer.close()
    with pytest.raises(aggml.InvalidState, match="closed"):
        buffer.place(vector(), 0)
    with pytest.raises(aggml.NotAllocated):
        be.get(a)


@pytest.mark.parametrize(
    "asked", [{"name": "TPU9"}, {"type": "quantum"}, {}, {"type": "accel"}], ids=str
)
def test_devices_that_are_not_there(asked: dict[str, str]) -> None:
    with pytest.raises(aggml.InvalidArgument):
        aggml.get_device(**asked)


def test_futures_of_what_was_refused_do_not_exist(be: aggml.Backend) -> None:
    """Misuse is not a failure of the stream, so synchronize does not report it."""
    a = placed(be)
    for _ in range(5):
        with pytest.raises(aggml.LayoutMismatch):
            be.set(a, ramp(3))
    assert _now(be.synchronize()) is None


async def test_misuse_in_one_task_leaves_others_alone(be: aggml.Backend) -> None:
    s = sum_on(be)
    right = 0

    async def good(i: int) -> None:
        nonlocal right
        assert np.array_equal(await s.run(be, ramp(start=i), ramp()), 2 * ramp() + i)
        right += 1

    async def bad() -> None:
        with pytest.raises(aggml.LayoutMismatch):
            await be.run(s.graph, {s.a: ramp(), s.b: np.zeros(3)}, s.y)

    async with anyio.create_task_group() as tasks:
        for i in range(20):
            tasks.start_soon(good, i)
            tasks.start_soon(bad)
    assert right == 20


def test_bf16_takes_both_forms(be: aggml.Backend) -> None:
    a = placed(be, N, "bf16", "bf16")
    x = ramp().astype(ml_dtypes.bfloat16)
    for form in (x, x.view(np.uint16)):
        assert be.set(a, form).wait(60)
        got = _now(be.get(a))
        assert got.dtype == ml_dtypes.bfloat16
        assert np.array_equal(got.view(np.uint16), x.view(np.uint16))
