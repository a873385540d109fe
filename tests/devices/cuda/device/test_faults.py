"""Every driver call fails once; devices run out of memory, and are lost.

On the fake driver only. Not here: how failures poison tensors in general (aggml.testing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import AggmlError, Graph, ops
from aggml.errors import AllocFailed, DeviceError, InvalidState, OutOfBounds
from aggml.native import _native

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice

#: Calls whose failure has no effect: they release something that is no longer used, or only give
#: information.
SILENT = {
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceCanAccessPeer",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuStreamDestroy",
    "cuEventDestroy",
    "cuLibraryUnload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
}
ENTRIES = sorted(set(_native.cuda_entries()) - SILENT)
ILLEGAL_ADDRESS, OUT_OF_MEMORY, INVALID_VALUE = 700, 2, 1


def ramp(n: int, start: float = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def vector(name: str, n: int = 16) -> aggml.Tensor:
    return aggml.new_tensor("f32", ne=(n,), name=name)


def work(device: CUDADevice) -> list[AggmlError]:
    """Do a bit of everything. Returns the failures. What did not fail must be right."""
    failures: list[AggmlError] = []
    a, b = vector("a"), vector("b")
    y = ops.mul(ops.add(a, b), b).set_name("y")
    graph = Graph(y)
    try:
        be = device.backend()
        be.alloc_graph(graph)
        strided = aggml.new_tensor("f32", ne=(8, 4), name="strided")
        be.alloc([strided])
        pinned = aggml.new_tensor("f32", ne=(16,), name="pinned")
        host = device.host_buffer_type
        assert host is not None
        buffer = host.alloc_tensors([pinned])
    except AggmlError as error:
        return [error]
    futures: list[tuple[aggml.Future[object], object]] = []
    for i in range(4):
        expected = (ramp(16, i) + ramp(16)) * ramp(16)
        inputs = {a: ramp(16, i), b: ramp(16)}
        try:
            futures.append((be.run(graph, inputs, y), expected))
        except AggmlError as error:  # no memory for scratch
            failures.append(error)
    be.memset(strided, 0)
    rows = np.zeros((4, 4), np.float32)
    view = ops.view_2d(strided, 4, 4, strided.nb[1], 0)
    be.set(view, rows)
    futures.append((be.get(view), rows))
    futures.append((be.synchronize(), None))
    for future, value in futures:
        assert future.wait(60), future
        problem = future.exception()
        if problem is None and value is not None:
            assert (future.result() == value).all()  # type: ignore[attr-defined]
        elif isinstance(problem, AggmlError):
            failures.append(problem)
        elif isinstance(problem, ExceptionGroup):
            assert all(isinstance(e, AggmlError) for e in problem.exceptions)
            failures += [e for e in problem.exceptions if isinstance(e, AggmlError)]
    be.close()
    buffer.close()
    return failures


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("entry", ENTRIES)
def test_each_driver_call_may_fail(device: CUDADevice, fake: Fake, entry: str, after: int) -> None:
    fake.fail(entry, INVALID_VALUE, after=after)
    failures = work(device)
    assert all(str(error) for error in failures)
    fake.heal()
    assert work(device) == []
    assert fake.counter("wild") == 0


@pytest.mark.parametrize("entry", ["cuMemcpyHtoDAsync", "cuLaunchKernel", "cuGraphLaunch"])
def test_a_failure_names_device_operation_tensor_and_call(
    device: CUDADevice, fake: Fake, entry: str
) -> None:
    fake.fail(entry, INVALID_VALUE, after=1)
    failures = work(device)
    assert any(entry in str(e) and "CUDA_ERROR_INVALID_VALUE (1)" in str(e) for e in failures)
    first = next(e for e in failures if entry in str(e))
    assert isinstance(first, DeviceError)
    assert first.device == "CUDA0"
    assert first.operation in ("set", "graph_compute")
    assert first.tensor


def test_out_of_memory_is_told_at_the_call(device: CUDADevice, fake: Fake) -> None:
    be = device.backend()
    huge = aggml.new_tensor("f32", ne=(1 << 20, 1 << 12), name="huge")
    with pytest.raises(AllocFailed, match="CUDA_ERROR_OUT_OF_MEMORY"):
        be.alloc([huge])
    assert work(device) == []
    be.close()


def test_out_of_memory_in_the_stream_fails_its_future(device: CUDADevice, fake: Fake) -> None:
    t = vector("t")
    be = device.backend()
    be.alloc([t])
    fake.fail("cuMemHostAlloc", OUT_OF_MEMORY)
    failing = be.set(t, ramp(16))
    assert failing.wait(60)
    assert isinstance(failing.exception(), AllocFailed)
    assert be.set(t, ramp(16)).wait(60)
    be.close()


async def test_an_illegal_address_loses_the_device(
    device: CUDADevice, simple: SimpleKernels, fake: Fake
) -> None:
    a, b = vector("a"), vector("b")
    y = ops.add(a, b).set_name("y")
    simple.crashing.add("y")
    be, second = device.backend(), device.backend()
    be.alloc_graph(graph := Graph(y))
    t = vector("t")
    second.alloc([t])
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        await be.run(graph, {a: ramp(16), b: ramp(16)}, y)
    assert caught.value.device == "CUDA0"
    for refused in (lambda: be.get(y), lambda: second.set(t, ramp(16))):
        with pytest.raises(InvalidState, match="lost"):
            refused()
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        device.backend()
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        second.alloc([vector("u")])
    assert device.memory() == (0, 0)
    await be.aclose()
    await second.aclose()


async def test_all_that_is_under_way_on_a_lost_device_fails(device: CUDADevice, fake: Fake) -> None:
    t = vector("t")
    be, second = device.backend(), device.backend()
    be.alloc([t])
    u = vector("u")
    second.alloc([u])
    with fake.held():
        futures = [be.set(t, ramp(16)), be.get(t), second.set(u, ramp(16)), second.get(u)]
        fake.break_device(ILLEGAL_ADDRESS)
    for future in futures[:4]:
        with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
            await future
    await be.aclose()
    await second.aclose()


async def test_a_row_out_of_range_fails_its_graph_and_no_other(
    device: CUDADevice, fake: Fake, simple: SimpleKernels
) -> None:
    table = aggml.new_tensor("f32", ne=(4, 6), name="table")
    ids = aggml.new_tensor("i32", ne=(3,), name="ids")
    cache = aggml.new_tensor("f32", ne=(4, 6), name="cache")
    other = aggml.new_tensor("f32", ne=(4, 6), name="other")
    where = aggml.new_tensor("i64", ne=(3,), name="where")
    rows = ops.get_rows(table, ids).set_name("rows")
    stored = ops.set_rows(cache, rows, where).set_name("stored")
    graph = Graph(stored)
    async with device.backend() as be:
        be.alloc([table, cache, other])
        be.alloc_graph(graph)
        values = ramp(24).reshape(6, 4)
        for leaf in (table, cache, other):
            await be.set(leaf, values)
        good, at = np.array([1, 2, 5], np.int32), np.array([0, 1, 2], np.int64)
        bad = np.array([1, 6, 2], np.int32)
        await be.run(graph, {ids: good, where: at}, [])
        with pytest.raises(OutOfBounds, match=r"index 6 at position 1 is outside 0\.\.5") as caught:
            await be.run(graph, {ids: bad, where: at}, [])
        assert caught.value.tensor == "rows"
        with pytest.raises(OutOfBounds):  # set_rows stored rows that get_rows had not read
            await be.get(cache)
        assert (await be.get(other) == values).all()
        await be.set(cache, values)
        # A node that fails its check writes nothing: its own target is unchanged.
        with pytest.raises(OutOfBounds):
            await be.run(graph, {ids: good, where: at + 4}, [])
        assert (await be.get(cache) == values).all()


async def test_a_module_that_does_not_compile_fails_its_graph(
    device: CUDADevice, simple: SimpleKernels, fake: Fake
) -> None:
    a, b = vector("a"), vector("b")
    y = ops.add(a, b).set_name("y")
    simple.broken = True
    async with device.backend() as be:
        be.alloc_graph(graph := Graph(y))
        with pytest.raises(AggmlError, match="the compiler broke down"):
            await be.run(graph, {a: ramp(16), b: ramp(16)}, y)
        simple.broken = False
        out = await be.run(graph, {a: ramp(16), b: ramp(16)}, y)
        assert (out == 2 * ramp(16)).all()
