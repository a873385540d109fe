"""A model in stages gives the results of one machine, even while stages die.

On a cluster of two nodes, which are processes here. Not here: the cut (test_cutting.py).
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models
from ray_cluster import cluster, store_in_use

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small
from aggml.ray import StageLost, pipeline, result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PLACE = {"CPU": 0.5}
MANY = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[Any]:
    yield from cluster(folder)


@pytest.fixture
def path(folder: Path, nodes: Any) -> Path:
    return random_models.write(folder / "llama.gguf", "llama")


async def _generated(model: aggml.models.Model, ids: list[int], **options: Any) -> list[int]:
    return [token.id async for token in model.generate(ids, max_tokens=MANY, **options)]


def _same(path: Path, cache: Path) -> bool:
    """Whether the cache holds one copy, of this file."""
    copies = [x.read_bytes() for x in cache.iterdir() if x.suffix == ".gguf"]
    return copies == [path.read_bytes()]


async def _for_ever(model: aggml.models.Model) -> None:
    """Generate until it fails: processes notice with a delay that their node is gone."""
    while True:
        await _generated(model, random_models.prompt(12))


async def _pid(model: Any, stage: int) -> int:
    found: int = await result(model._decoder.stages.actors[stage].pid.remote())
    return found


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("layout", ["llama-tied", "qwen3moe", "gemma3"])
async def test_stages_give_what_one_machine_gives(
    folder: Path, nodes: Any, layout: str, stages: int
) -> None:
    path = random_models.write(folder / f"{layout}.gguf", layout)
    # One machine fills a prompt up to one of few sizes, stages compute it as long as it is. So the
    # lengths are such sizes: with AVX-512 products of 17 to 31 columns add up in another order than
    # those of 32, and keys in f16 make differences of 1e-3 of that.
    ids = random_models.prompt(32)
    long = random_models.prompt(704)  # two pieces, which are under way at the same time
    async with await aggml.models.load(path, ctx=1024) as whole:
        wanted = await whole.logits(ids), await whole.logits(long), await whole.embed_ids([ids])
        tokens = await _generated(whole, ids)
    place = PLACE
    async with await pipeline(path, stages=stages, ctx=1024, slots=2, resources=place) as model:
        assert len(model.stages) == stages
        assert await _generated(model, ids) == tokens
        got = await model.logits(ids), await model.logits(long), await model.embed_ids([ids])
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


async def test_generations_at_once_do_not_mix(path: Path) -> None:
    prompts = [random_models.prompt(40)[i : i + 9 + i] for i in range(6)]
    options = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "seed": 4, "top_k": 5}]
    async with await aggml.models.load(path, ctx=256, slots=1) as whole:
        wanted = [await _generated(whole, x, **options[i % 3]) for i, x in enumerate(prompts)]
    got: dict[int, list[int]] = {}
    async with await pipeline(path, ctx=256, slots=4, resources=PLACE) as model:

        async def one(i: int) -> None:
            got[i] = await _generated(model, prompts[i], **options[i % 3])

        async with anyio.create_task_group() as tasks:
            for i in range(len(prompts)):
                tasks.start_soon(one, i)
    assert [got[i] for i in range(len(prompts))] == wanted


@pytest.mark.parametrize(("layout", "nodes_used"), [("llama", 1), ("llama", 2), ("mamba2", 2)])
async def test_stages_that_die_come_back_and_no_token_is_lost_or_repeated(
    folder: Path, nodes: Any, layout: str, nodes_used: int
) -> None:
    path = random_models.write(folder / f"{layout}.gguf", layout)
    prompts = [random_models.prompt(40)[i : i + 12] for i in range(3)]
    async with await aggml.models.load(path, ctx=256) as whole:
        wanted = [await _generated(whole, x, temperature=0.9, seed=7) for x in prompts]
    got: dict[int, list[int]] = {i: [] for i in range(3)}
    place = PLACE if nodes_used == 2 else PLACE | {"head": 1.0}
    async with await pipeline(path, ctx=256, slots=3, resources=place) as model:
        assert len({x.node for x in model.stages}) == nodes_used

        async def one(i: int) -> None:
            tokens = model.generate(prompts[i], max_tokens=MANY, temperature=0.9, seed=7)
            async for token in tokens:
                got[i].append(token.id)
                if i == 0 and len(got[0]) in (5, 14):  # kill each stage once
                    os.kill(await _pid(model, int(len(got[0]) == 14)), signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            for i in range(3):
                tasks.start_soon(one, i)
        assert model.losses == 2
    assert [got[i] for i in range(3)] == wanted


async def test_connections_that_break_are_made_anew(path: Path) -> None:
    ids = random_models.prompt(12)
    async with await aggml.models.load(path, ctx=256) as whole:
        wanted = await _generated(whole, ids)
    got = []
    async with await pipeline(path, stages=3, ctx=256, slots=1, resources=PLACE) as model:
        async for token in model.generate(ids, max_tokens=MANY):
            got.append(token.id)
            if len(got) % 8 == 0:  # break the driver's connection
                wire = model._decoder.stages.wire
                assert wire is not None
                wire.drop()
        assert model.losses == 2  # the third time there is no token left to wait for
    assert got == wanted


async def test_a_node_that_dies_is_replaced_by_another(path: Path, nodes: Any) -> None:
    fresh: Any = None
    doomed = nodes.add_node(num_cpus=4, object_store_memory=128 << 20, resources={"doomed": 1})
    ids = random_models.prompt(12)
    async with await aggml.models.load(path, ctx=256) as whole:
        wanted = await _generated(whole, ids)
    async with await pipeline(
        path, stages=3, ctx=256, slots=1, resources={"CPU": 1.0}, strategy="STRICT_SPREAD"
    ) as model:
        where = {x.node for x in model.stages}
        assert len(where) == 3  # every node of the cluster
        got = []
        async for token in model.generate(ids, max_tokens=MANY):
            got.append(token.id)
            if len(got) == 6:
                nodes.remove_node(doomed, allow_graceful=False)
                fresh = nodes.add_node(num_cpus=4, object_store_memory=128 << 20)
        assert got == wanted
        with anyio.fail_after(300):  # the processes of a node outlive its daemon for a moment
            while {x.node for x in model.stages} == where:
                assert await _generated(model, ids) == wanted
    nodes.remove_node(fresh)  # so that the next run begins with the same number of nodes


async def test_a_stage_that_does_not_come_back_is_named(path: Path, nodes: Any) -> None:
    only = nodes.add_node(num_cpus=1, object_store_memory=128 << 20, resources={"only": 1})
    async with await pipeline(
        path, stages=1, ctx=256, slots=1, resources={"CPU": 0.5, "only": 0.5}, patience=15
    ) as model:
        await _generated(model, random_models.prompt(12))
        nodes.remove_node(only, allow_graceful=False)
        with pytest.raises(StageLost, match=r"stage 0 on node .* within 15 s") as lost:
            await _for_ever(model)
        assert lost.value.stage == 0
        assert lost.value.node


async def test_a_cancelled_generation_frees_its_slot_and_hurts_nobody(path: Path) -> None:
    ids = random_models.prompt(30)
    async with await aggml.models.load(path, ctx=256) as whole:
        wanted = await _generated(whole, ids)
    async with await pipeline(path, ctx=256, slots=1, resources=PLACE) as model:
        for n in range(4):
            with anyio.CancelScope() as scope:
                made = 0
                async for _ in model.generate(ids[n:], max_tokens=MANY):
                    made += 1
                    if made == n:
                        scope.cancel()
            with anyio.move_on_after(0.02 * n):  # cancelled during the prompt
                await model.logits(ids)
        assert await _generated(model, ids) == wanted


async def test_a_step_that_nobody_waits_for_is_aborted_where_it_is(
    folder: Path, nodes: Any
) -> None:
    path = write_small(folder / "small.gguf")

    def slow() -> aggml.Backend:  # 512 tokens take two layers some 20 s
        return SimDevice("SIM", memory=1 << 30, speed=9e7).backend()

    async with (
        await pipeline(
            path, ctx=2048, slots=1, resources=PLACE, backend=slow, costs="bytes"
        ) as model,
        model.trace() as trace,
    ):
        flights = model._decoder._dispatcher._flights
        async with anyio.create_task_group() as tasks:
            # four pieces, of which three may be under way at a time
            tasks.start_soon(model.logits, [5] * 2000)
            while len(flights) < 3:
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.5)  # long enough to compute the first piece; less would do as well
            tasks.cancel_scope.cancel()
        assert len(await _generated(model, [5, 6], stop_ids=[])) == MANY
    sent = {x.number for x in trace.steps}
    pieces = sorted(sent)[:3]
    for stage in trace.stages:  # each stage has skipped at least one of the cancelled pieces
        assert not {*pieces} <= {x.number for x in stage.steps}
    assert {x.number for x in trace.stages[1].steps} >= sent - {*pieces}


async def test_a_node_without_the_file_fetches_it_once(path: Path, folder: Path) -> None:
    ids = random_models.prompt(12)
    told: list[tuple[int, int]] = []
    async with await aggml.models.load(path, ctx=256) as whole:
        wanted = await _generated(whole, ids)
    async with await pipeline(
        path, ctx=256, slots=1, resources=PLACE, shared=False,
        progress=lambda done, whole: told.append((done, whole)),
    ) as model:  # fmt: skip
        assert await _generated(model, ids) == wanted
    assert _same(path, folder / "cache")
    assert all(done <= whole for done, whole in told)
    # Weights do not go through the object store, which is nearly empty.
    assert store_in_use() < 1 << 20


async def test_what_cannot_be_is_said_at_once(path: Path, folder: Path) -> None:
    with pytest.raises(aggml.InvalidArgument, match="4 layers cannot be cut into 5 stages"):
        await pipeline(path, stages=5)
    with pytest.raises(aggml.InvalidArgument, match="1 functions in backend for 2 stages"):
        await pipeline(path, backend=[lambda: aggml.get_device("CPU").backend()])
    with pytest.raises(aggml.AllocFailed, match=r"no place for .*'CPU': 99"):
        await pipeline(path, resources={"CPU": 99}, patience=2)
    with pytest.raises(aggml.models.ModelError, match="cannot open"):
        await pipeline(folder / "nothing.gguf")
    encoder = random_models.write(folder / "bert.gguf", "bert")
    with pytest.raises(aggml.Unsupported, match="bert does not continue text"):
        await pipeline(encoder)
