"""Any graph over any backends gives what one backend gives, bit for bit, under the race checker.

Graphs have views, nodes in place, writes through views; pins and missing ops are drawn.
"""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory.random_graphs import graphs

import aggml
from aggml import Graph, Scheduler
from aggml.devices.sim import SimDevice

Array = np.ndarray[Any, Any]


def values(graph: Graph, seed: int) -> dict[aggml.Tensor, Array]:
    rng = np.random.default_rng(seed)
    return {leaf: rng.random(leaf.shape, np.float32) for leaf in graph.leafs}


def readable(graph: Graph) -> list[aggml.Tensor]:
    flagged = [n for n in graph.nodes if n.flags & aggml.TensorFlag.OUTPUT]
    return list(dict.fromkeys([*graph.ends, *flagged]))


async def expected(graph: Graph, outs: list[aggml.Tensor], seed: int) -> list[Array]:
    cpu = aggml.get_device("CPU").backend(n_threads=1, use_ref=True)
    memory = cpu.alloc_graph(graph)
    found = await cpu.run(graph, values(graph, seed), outs)
    memory.close()
    return found


async def scheduled(
    graph: Graph, outs: list[aggml.Tensor], pins: dict[aggml.Tensor, int], unsupported: set[str]
) -> list[list[Array]] | None:
    sims = [SimDevice("A", unsupported=unsupported), SimDevice("B", reads_host=True)]
    backends = [s.backend(use_ref=True) for s in sims]
    cpu = aggml.get_device("CPU").backend(n_threads=1, use_ref=True)
    async with Scheduler([*backends, cpu], parallel=3) as sched:
        for tensor, b in pins.items():
            sched.set_tensor_backend(tensor, sched.backend(b))
        try:
            sched.split_graph(graph)
        # an in-place op on a device that lacks it, or one whose storage is pinned to another
        except aggml.NoBackendForOp:
            return None
        with aggml.check_races():
            futures = [await sched.submit(graph, values(graph, k), outs) for k in range(5)]
            return [await future for future in futures]


@pytest.mark.long
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(graphs(), st.data())
def test_a_schedule_gives_what_one_backend_gives(graph: Graph, data: st.DataObject) -> None:
    unsupported = data.draw(st.sets(st.sampled_from(["relu", "soft_max", "mul_mat", "add"])))
    plain = [n for n in graph.nodes if n.view_src is None]
    pinned = data.draw(st.lists(st.sampled_from(plain), max_size=5)) if plain else []
    pins = {n: data.draw(st.integers(1, 2)) for n in pinned}
    outs = readable(graph)

    async def both() -> None:
        found = await scheduled(graph, outs, pins, unsupported)
        if found is None:
            return
        for k, results in enumerate(found):
            for a, b in zip(await expected(graph, outs, k), results, strict=True):
                assert np.array_equal(a, b, equal_nan=True)

    anyio.run(both)
