"""The scheduler over a CUDA device and the CPU: what the device cannot run goes to the CPU.

Not here: the scheduler's own rules (tests/scheduler/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels

import aggml
from aggml import Graph, Scheduler, ops
from aggml.devices.cuda import CUDADevice, driver

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake, SimpleKernels


async def test_what_the_device_cannot_run_goes_to_the_cpu(
    device: CUDADevice, simple: SimpleKernels, fake: Fake
) -> None:
    x = aggml.new_tensor("f32", ne=(16, 4), name="x")
    w = aggml.new_tensor("f32", ne=(16, 4), name="w")
    y = ops.mul(x, w)
    z = ops.soft_max(y)  # the few kernels of the fake driver do not include it
    out = ops.add(ops.mul(z, w), y).set_name("out").set_output()
    graph = Graph(out)
    rng = np.random.default_rng(3)
    values = rng.standard_normal((4, 16)).astype(np.float32)
    weights = rng.standard_normal((4, 16)).astype(np.float32)
    cpu = aggml.get_device("CPU").backend()
    async with device.backend() as be, cpu:
        be.alloc([w])
        await be.set(w, weights)
        sched = Scheduler([be, cpu], parallel=True)
        futures = [await sched.submit(graph, {x: values + i}, [out]) for i in range(6)]
        for i, future in enumerate(futures):
            (result,) = await future
            product = (values + i) * weights
            exps = np.exp(product - product.max(axis=1, keepdims=True))
            expected = exps / exps.sum(axis=1, keepdims=True) * weights + product
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        assert sched.n_splits == 3
        assert fake.counter("kernels") > 0
    assert fake.counter("pageable") == 0
    assert fake.counter("wild") == 0


def twice(dst: Any, a: Any, ith: int, nth: int, userdata: object) -> None:
    dst[...] = 2 * a


def more(dst: Any, a: Any, b: Any, ith: int, nth: int, userdata: object) -> None:
    dst[...] = a + b


def most(dst: Any, a: Any, b: Any, c: Any, ith: int, nth: int, userdata: object) -> None:
    dst[...] = a + b * c


def filled(dst: Any, *rest: object) -> None:
    dst[...] = 7


def _graph(case: str) -> tuple[Graph, dict[aggml.Tensor, Any], str]:
    """A graph with one node that the device cannot run."""
    rng = np.random.default_rng(11)
    values: dict[aggml.Tensor, Any] = {}

    def leaf(*ne: int) -> aggml.Tensor:
        tensor = aggml.new_tensor("f32", ne=ne)
        values[tensor] = rng.standard_normal(tensor.shape).astype(np.float32)
        return tensor

    if case == "flash_attn_back":
        q, k, v = leaf(8, 4, 2), leaf(8, 6, 2), leaf(6, 8, 2)
        node = ops.flash_attn_back(ops.scale(q, 2.0), k, ops.scale(v, 0.5), ops.sqr(q), True)
    elif case == "map_custom1":
        node = ops.map_custom1(ops.sqr(leaf(16, 4)), twice, 1)
    elif case == "map_custom2":
        node = ops.map_custom2(ops.sqr(leaf(16, 4)), ops.neg(leaf(16, 4)), more, 1)
    elif case == "map_custom3":
        node = ops.map_custom3(ops.sqr(leaf(16, 4)), ops.neg(leaf(16, 4)), leaf(16, 4), most, 1)
    else:
        node = ops.custom_4d("f32", 16, 4, 1, 1, [ops.sqr(leaf(16, 4))], 1, filled, 1)
    return Graph(ops.scale(node, 3.0)), values, node.op


@pytest.fixture
def own() -> CUDADevice:
    """A device with the package's own kernels."""
    try:
        driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    return CUDADevice(driver.facts(0), all_kernels())


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "case", ["flash_attn_back", "map_custom1", "map_custom2", "map_custom3", "custom"]
)
async def test_what_has_no_kernel_runs_on_the_cpu_between_what_has(
    own: CUDADevice, case: str
) -> None:
    graph, values, op = _graph(case)
    lacking = [node.op for node in graph.nodes if not own.supports_op(node)]
    assert lacking == [op]
    cpu = aggml.get_device("CPU").backend()
    async with own.backend() as be, cpu:
        sched = Scheduler([be, cpu], parallel=True)
        # without weights nothing draws a node to the device, so it is pinned there
        for node in graph.nodes:
            if node.op != op:
                sched.set_tensor_backend(node, be)
        out = graph.ends[0]
        (result,) = await sched.run(graph, values, [out])
        (again,) = await sched.run(graph, values, [out])
        (lonely,) = (node for node in graph.nodes if node.op == op)
        assert sched.get_tensor_backend(lonely) is cpu
        assert sched.get_tensor_backend(out) is be
        assert sched.n_splits == 3
        (fresh, same, _) = _graph(case)
        cpu.alloc_graph(fresh)
        expected = await cpu.run(fresh, same, fresh.ends[0])
    assert (again == result).all()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
