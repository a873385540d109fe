"""The scheduler over a CUDA device and the CPU: what the device cannot run goes to the CPU.

Not here: the scheduler's own rules (tests/plan/, tests/runtime/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import aggml
from aggml import Graph, Scheduler, ops

if TYPE_CHECKING:
    from cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice


async def test_what_the_device_cannot_run_goes_to_the_cpu(
    device: CUDADevice, simple: SimpleKernels, fake: Fake
) -> None:
    x = aggml.new_tensor("f32", ne=(16, 4), name="x")
    w = aggml.new_tensor("f32", ne=(16, 4), name="w")
    y = ops.mul(x, w)
    z = ops.soft_max(y)  # not among those few kernels
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
