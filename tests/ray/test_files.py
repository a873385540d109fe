"""Nodes with disks of their own, and no model file on them: each fetches it once.

Not here: what the pipeline then computes (test_pipeline.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import ray
from models import random_models
from ray_cluster import STORE, cluster

import aggml.models
from aggml.models.small import write_small
from aggml.ray import files, pipeline, result, stages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
NODES = 2
STAGES = 4
SEEDS = itertools.count(1)  # numbers of files that no earlier test has fetched


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """The cache folders of two nodes that have room for stages."""
    folder = tmp_path_factory.mktemp("nodes")
    for made in cluster(folder, nodes=1):
        found = [folder / f"disk{i}" for i in range(NODES)]
        for disk in found:
            made.add_node(
                num_cpus=4, object_store_memory=STORE, resources={"away": STAGES // NODES},
                env_vars={"AGGML_RAY_CACHE": str(disk)},
            )  # fmt: skip
        yield found


async def test_each_node_fetches_the_file_once_and_says_how_far_it_is(
    caches: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_small(tmp_path / "small.gguf", seed=next(SEEDS))
    pieces = -(-path.stat().st_size // files.PIECE)
    ids = random_models.prompt(12)

    class Gate:  # a local class is sent to workers by value, as they cannot import the tests
        """Counts pieces; half of them have to wait until the driver has seen progress."""

        def __init__(self) -> None:
            self.asked: list[int] = []
            self.open = anyio.Event()

        async def enter(self, offset: int, after: int) -> None:
            self.asked.append(offset)
            if offset >= after:
                await self.open.wait()

        async def let_in(self) -> None:
            self.open.set()

        async def all(self) -> list[int]:
            return self.asked

    remote: Any = ray.remote(Gate)
    gate = remote.options(max_concurrency=200).remote()
    half = path.stat().st_size // 2

    class Counted(files.FileServer):
        async def read(self, offset: int) -> bytes:
            await gate.enter.remote(offset, half)
            return await super().read(offset)

    told: list[tuple[int, int]] = []

    def progress(done: int, whole: int) -> None:
        told.append((done, whole))
        if 0 < done < whole:
            gate.let_in.remote()

    monkeypatch.setattr(stages, "FileServer", Counted)
    async with await aggml.models.load(path, ctx=256) as alone:
        wanted = [x.id async for x in alone.generate(ids, max_tokens=8)]
    async with await pipeline(
        path, STAGES, ctx=256, slots=1, resources={"CPU": 0.5, "away": 1.0}, shared=False,
        progress=progress,
    ) as model:  # fmt: skip
        assert [x.id async for x in model.generate(ids, max_tokens=8)] == wanted
        assert len({x.node for x in model.stages}) == NODES
    assert sorted(await result(gate.all.remote())) == sorted(
        [i * files.PIECE for i in range(pieces)] * NODES
    )
    for disk in caches:
        copies = [x for x in disk.glob("*.gguf") if x.read_bytes() == path.read_bytes()]
        assert len(copies) == 1
    assert any(0 < done < whole for done, whole in told)
    assert all(done <= whole for done, whole in told)
