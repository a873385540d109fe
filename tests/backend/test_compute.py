"""Graphs on every device: run, graph_compute, plans, what is supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import assert_checkpoint, ramp, sum_on, vector

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUDevice


async def test_synchronize_waits_for_all(be: aggml.Backend) -> None:
    s = sum_on(be)
    be.stream.delay(0.005)
    run = s.run(be, ramp(), ramp())
    with assert_checkpoint():
        await be.synchronize()
    assert run.done()
    assert be.pending == 0


@pytest.mark.parametrize("n_threads", [1, 2, 3])
async def test_results_do_not_depend_on_the_number_of_threads(
    cpu_device: CPUDevice, rng: np.random.Generator, n_threads: int
) -> None:
    w = aggml.new_tensor("f32", ne=(96, 64), name="w")
    x = aggml.new_tensor("f32", ne=(96, 33), name="x")
    y = ops.soft_max(ops.mul_mat(w, x))
    graph = Graph(y)
    values = {
        w: rng.standard_normal((64, 96)).astype(np.float32),
        x: rng.standard_normal((33, 96)).astype(np.float32),
    }
    results = []
    for n in (1, n_threads):
        async with cpu_device.backend(n_threads=n) as be:
            assert be.n_threads == n
            mem = be.alloc_graph(graph)
            results.append(await be.run(graph, values, y))
            mem.close()
    assert np.array_equal(results[0], results[1])


async def test_use_ref_agrees(cpu_device: CPUDevice, rng: np.random.Generator) -> None:
    w, x = aggml.new_tensor("f32", ne=(64, 8), name="w"), vector(64, "x")
    y = ops.mul_mat(w, x)
    graph = Graph(y)
    values = {
        w: rng.standard_normal((8, 64)).astype(np.float32),
        x: rng.standard_normal(64).astype(np.float32),
    }
    for use_ref in (True, False):
        async with cpu_device.backend(use_ref=use_ref) as be:
            mem = be.alloc_graph(graph)
            got = await be.run(graph, values, y)
            assert np.allclose(got.reshape(-1), values[w] @ values[x], atol=1e-4)
            mem.close()
