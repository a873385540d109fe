"""``python -m benchmarks.many_machines``: what a pipeline on Ray costs.

Parts: ``overhead``, a token's time beyond what one backend takes, for each stage; ``efficiency``,
the share of the time in which the busiest of simulated stages computes; ``replicas``, tokens per
second of 1 to 16 simulated pipelines of one stage. All stages are on this machine; with ``--nodes
4`` on four of Ray's nodes, which are processes of this machine. Not here: failures
(many_kills.py), the tests (tests/ray).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import ray
from ray.cluster_utils import Cluster

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small
from aggml.ray import pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLACE = {"CPU": 0.01}
PROMPT = list(range(40, 60))
TOKENS = 100
SPEED = 2e8  # operations/s of simulated stages: two layers take about 16 ms a token
PARTS = ("overhead", "efficiency", "replicas")


def simulated() -> aggml.Backend:
    """The simulated backend of a stage: it takes time, but uses no core."""
    return SimDevice("SIM", memory=1 << 30, speed=SPEED).backend()


async def taken(model: Any, tokens: int = TOKENS) -> list[int]:
    return [token.id async for token in model.generate(PROMPT, max_tokens=tokens, stop_ids=[])]


async def pace(model: Any) -> float:
    """The median of the seconds from token to token."""
    await taken(model, 8)
    tokens = model.generate(PROMPT, max_tokens=TOKENS, stop_ids=[])
    times = [time.perf_counter() async for _ in tokens]
    return statistics.median(b - a for a, b in itertools.pairwise(times))


async def together(model: Any, n: int, tokens: int) -> float:
    """The seconds that n generations take at the same time."""
    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(n):
            tasks.start_soon(taken, model, tokens)
    return time.perf_counter() - begin


async def overhead(path: Path) -> dict[str, float]:
    found = {}
    backend = aggml.get_device("CPU").backend(n_threads=1)
    async with backend, await aggml.models.load(path, backend, ctx=256) as alone:
        base = await pace(alone)
    for stages in (1, 2, 4):
        model = await pipeline(path, stages, ctx=256, slots=1, resources=PLACE)
        async with model:
            nodes = len({x.node for x in model.stages})
            took = await pace(model)
        name = f"{stages} stages on {nodes} nodes: ms a token and stage"
        found[name] = 1e3 * (took - base) / stages
    return found


async def efficiency(path: Path) -> dict[str, float]:
    found = {}
    for stages in (2, 4):
        for slots in (1, stages, 2 * stages, 8 * stages):
            model = await pipeline(
                path, stages, ctx=256, slots=slots, resources=PLACE, backend=simulated,
                costs=[1.0] * 4, micro_batches=min(slots, 3 * stages),
            )  # fmt: skip
            async with model:
                await together(model, slots, 4)
                before = await model.busy()
                took = await together(model, slots, 24)
                busy = [b - a for a, b in zip(before, await model.busy(), strict=True)]
            found[f"{stages} stages, {slots} generations: busiest stage"] = max(busy) / took
    return found


async def replicas(path: Path) -> dict[str, float]:
    found = {}
    for n in (1, 2, 4, 8, 16):
        models = [
            await pipeline(path, 1, ctx=256, slots=1, resources=PLACE, backend=simulated)
            for _ in range(n)
        ]
        for model in models:
            await taken(model, 4)
        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for model in models:
                tasks.start_soon(taken, model, 32)
        found[f"{n} replicas: tokens/s"] = n * 32 / (time.perf_counter() - begin)
        for model in models:
            await model.aclose()
    return found


async def run(parts: list[str]) -> dict[str, dict[str, float]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_small(Path(folder) / "small.gguf")
        for part in parts:
            which: Callable[[Path], Any] = globals()[part]
            found[part] = await which(path)
            for name, value in found[part].items():
                print(f"{part}: {name} {value:.3g}", flush=True)
    return found


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A Ray cluster on this machine, with this process as its driver."""
    node: Any = {"num_cpus": 8, "object_store_memory": 128 << 20, "include_dashboard": False}
    made: Any = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=8, object_store_memory=128 << 20)
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=PARTS, choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "trio"])
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--nodes", type=int, default=1, help="of the cluster")
    given = parser.parse_args()
    with cluster(given.nodes):
        found = anyio.run(run, given.parts, backend=given.loop)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
