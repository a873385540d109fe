"""What the executor and the builders cost per node, when the nodes themselves are tiny.

ggml's executor takes about 0.04 us for such a node on one thread. Not here: large nodes.
"""

from __future__ import annotations

import time

import aggml
from aggml import Graph, ops
from benchmarks.models import minilm
from benchmarks.timing import Row, absolute, computed_in, median

PART = "executor"
NODES = 2000


async def measure(*, quick: bool) -> list[Row]:
    """Time per tiny node on one thread; time to build and to prepare a node."""
    rounds = 20 if quick else 200
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        x = aggml.new_tensor("f32", ne=(4,), name="x").set_input()
        y = x
        start = time.perf_counter()
        for _ in range(NODES):
            y = ops.scale(y, 1.0)
        built = (time.perf_counter() - start) / NODES
        graph = Graph(y)
        start = time.perf_counter()
        await be.prepare(graph)
        prepared = (time.perf_counter() - start) / NODES
        await be.memset(x, 0)
        spans = []
        for _ in range(rounds):
            future = be.graph_compute(graph)
            await future
            spans.append(computed_in(future) / NODES)
        bert = await _bert(be)
    return [
        absolute(
            PART, "run a node of 4 elements, one thread", median(spans) * 1e6, "us", ("<=", 0.06)
        ),
        absolute(PART, "build a node", built * 1e6, "us", ("<=", 5)),
        absolute(PART, "prepare a node", prepared * 1e6, "us", ("<=", 10)),
        *bert,
    ]


async def _bert(be: aggml.Backend) -> list[Row]:
    weights = minilm.Weights(minilm.leaves_of(aggml.DType.F32))
    be.alloc(list(weights.leaf.values()))
    built, prepared = [], []
    for rows in range(1, 12):
        start = time.perf_counter()
        program = await minilm.build(weights, minilm.Shape(rows, 32, 4, masked=True))
        built.append(time.perf_counter() - start)
        start = time.perf_counter()
        await be.prepare(program.graph)
        prepared.append(time.perf_counter() - start)
    return [
        absolute(PART, "build the MiniLM graph for a new shape", median(built) * 1e3, "ms"),
        absolute(PART, "prepare it, awaited", median(prepared) * 1e3, "ms"),
    ]
