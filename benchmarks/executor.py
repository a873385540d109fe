"""The cost of the executor and the builders for each node, if the nodes themselves are tiny.

The same is measured for ggml, with the libggml of llama-cpp-python. Not here: large nodes.
"""

from __future__ import annotations

import time

import aggml
import aggml.models
from aggml import Graph, ops
from aggml.models.encoder.graph import build
from aggml.models.encoder.packing import PackingShape
from benchmarks import ggml
from benchmarks.models import embed
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Budget, Row, absolute, computed_in, median, versus

PART = "executor"
NODES = 2000


async def measure(*, quick: bool, missing: list[str]) -> list[Row]:
    """Time per tiny node on one thread; time to build and to prepare a node.

    Args:
        quick: few repetitions.
        missing: gets a line if ggml cannot be measured.
    """
    rounds = 20 if quick else 200
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        x = aggml.new_tensor("f32", ne=(4,), name="x").set_input()
        builds = []
        for _ in range(9):  # a full garbage collection falls into one or two of them
            start = time.perf_counter()
            chain(x)
            builds.append((time.perf_counter() - start) / NODES)
        graph = Graph(chain(x))
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
    try:
        theirs = ggml.tiny_nodes(NODES, rounds)
    except MissingPeerError as error:
        missing.append(f"ggml's executor: {error}")
        theirs = {}
    return [
        _beside("run a node of 4 elements, one thread", median(spans), theirs.get("run"), None),
        _beside("build a node", median(builds), theirs.get("build"), 5),
        _beside("prepare a node (ggml: allocate)", prepared, theirs.get("allocate"), 10),
        *bert,
    ]


def chain(x: aggml.Tensor) -> aggml.Tensor:
    """The end of a chain of `NODES` scalings of ``x``."""
    y = x
    for _ in range(NODES):
        y = ops.scale(y, 1.0)
    return y


def _beside(what: str, seconds: float, theirs: float | None, limit_us: float | None) -> Row:
    """A row whose budget is ``limit_us``; without that, 1.5 times ggml's figure."""
    us = seconds * 1e6
    if theirs is None:
        return absolute(PART, what, us, "us", None if limit_us is None else ("<=", limit_us))
    if limit_us is None:
        return versus(PART, what, us, "us", "ggml", theirs * 1e6, ("<=", 1.5))
    return Row(PART, what, us, "us", {"ggml": theirs * 1e6}, budgets=(Budget("", "<=", limit_us),))


async def _bert(be: aggml.Backend) -> list[Row]:
    built, prepared = [], []
    model = await aggml.models.load(embed.model_folder(), be)
    assert isinstance(model, aggml.models.EncoderModel)
    encoder = model._encoder
    for rows in range(1, 12):
        start = time.perf_counter()
        shape = PackingShape(rows, 32, 4, masked=True)
        program = await build(encoder.model, encoder.weights, shape)
        built.append(time.perf_counter() - start)
        start = time.perf_counter()
        await be.prepare(program.graph)
        prepared.append(time.perf_counter() - start)
    await model.aclose()
    return [
        absolute(PART, "build the MiniLM graph for a new shape", median(built) * 1e3, "ms"),
        absolute(PART, "prepare it, awaited", median(prepared) * 1e3, "ms"),
    ]
