"""The memory of a model is freed when the model is closed, or when its last reference is dropped.

Python's collector is off meanwhile: in a service it may run late or never. Not here: the memory of
a graph (tests/memory), pages of caches (engine/test_pages.py).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models
from support import without_collector

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small
from aggml.native._native import release_finished

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

WEIGHTS = 12 << 20  # bytes of the small model's weights, at least
REST = 1 << 20  # bytes that a backend may keep for the next graph


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    with without_collector():
        yield


@pytest.fixture
async def sim() -> AsyncGenerator[tuple[SimDevice, aggml.Backend]]:
    device = SimDevice("SIM", memory=64 << 20)
    async with device.backend() as backend:
        yield device, backend


def used(device: SimDevice) -> int:
    free, total = device.memory()
    return total - free


async def freed(*devices: SimDevice, most: int = REST) -> None:
    """Wait until ``most`` bytes are in use at most: plans keep memory until streams are idle."""
    with anyio.fail_after(30):
        while max(map(used, devices)) > most:
            release_finished()  # a worker has this done before it sleeps
            await anyio.lowlevel.checkpoint()


async def told(model: aggml.models.Model) -> list[int]:
    """Generate four tokens, so that graphs of several shapes are prepared and run."""
    return [token.id async for token in model.generate([5, 6, 7], max_tokens=4)]


@pytest.mark.long(cases=1)
async def test_a_closed_model(small: Path, sim: tuple[SimDevice, aggml.Backend]) -> None:
    device, backend = sim
    found = []
    for _ in range(5):  # 64 MB have room for four models
        model = await aggml.models.load(small, backend, ctx=256)
        found.append(await told(model))
        assert used(device) > WEIGHTS
        await model.aclose()
        await freed(device)
        await model.aclose()  # closing twice does no harm
    assert found == [found[0]] * 5


async def test_a_dropped_model(small: Path, sim: tuple[SimDevice, aggml.Backend]) -> None:
    device, backend = sim
    model = await aggml.models.load(small, backend, ctx=256)
    await told(model)
    assert used(device) > WEIGHTS
    del model
    await freed(device)


async def test_a_closed_encoder(tmp_path: Path, sim: tuple[SimDevice, aggml.Backend]) -> None:
    device, backend = sim
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    for _ in range(3):
        before = used(device)
        model = await aggml.models.load(path, backend)
        weights = used(device) - before
        await model.embed_ids(random_models.texts())
        full = used(device)
        await model.aclose()
        await freed(device, most=full - weights)  # the backend keeps its scratch
        with pytest.raises(aggml.InvalidState, match="closed"):
            await model.embed_ids(random_models.texts())


async def test_a_model_on_several_devices(small: Path) -> None:
    first, second = (SimDevice(f"S{i}", memory=10 << 20) for i in range(2))
    async with (
        first.backend() as a,
        second.backend() as b,
        aggml.get_device("CPU").backend(n_threads=1) as cpu,
        aggml.Scheduler([a, b, cpu], parallel=1) as scheduler,
    ):
        for _ in range(3):
            model = await aggml.models.load(small, scheduler, ctx=256)
            await told(model)
            assert used(first) > WEIGHTS / 4
            assert used(second) > WEIGHTS / 4
            await model.aclose()
            await freed(first, second)


async def test_a_generation_under_way_ends_with_an_error(
    small: Path, sim: tuple[SimDevice, aggml.Backend]
) -> None:
    device, backend = sim
    model = await aggml.models.load(small, backend, ctx=256)
    async with aclosing(model.generate([5, 6, 7], max_tokens=100)) as tokens:
        await anext(tokens)
        await model.aclose()
        with pytest.raises(aggml.InvalidState, match="the model is closed"):
            [token async for token in tokens]
    await freed(device)
    # The caller's backend still works.
    x = aggml.new_tensor("f32", ne=(4,))
    y = aggml.ops.scale(x, 2.0)
    graph = aggml.Graph(y)
    backend.alloc_graph(graph)
    assert (await backend.run(graph, {x: np.ones(4, np.float32)}, y)).tolist() == [2.0] * 4


@pytest.mark.long(cases=1)
async def test_a_model_that_several_tasks_used(
    small: Path, sim: tuple[SimDevice, aggml.Backend]
) -> None:
    device, backend = sim
    for _ in range(3):
        async with aggml.models.load(small, backend, ctx=256, slots=2) as model:
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(told, model)
            assert used(device) > WEIGHTS
        await freed(device)
