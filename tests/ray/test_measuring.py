"""Costs of layers, measured where they are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from models import random_models
from ray_cluster import cluster

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.catalogue import describe
from aggml.models.description import Description
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.small import write_small
from aggml.models.weights import open_model
from aggml.ray import pipeline
from aggml.ray.measuring import kinds, samples, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("llama", [0, 0, 0, 0]),
        ("gemma3", None),  # the windows of layers differ: at least two sorts of layers
        ("qwen3next", None),  # a layer has a state or attention
    ],
)
async def test_layers_of_one_kind_are_alike(
    tmp_path: Path, layout: str, wanted: list[int] | None
) -> None:
    path = random_models.write(tmp_path / f"{layout}.gguf", layout)
    with await open_model(path) as file:
        model = describe(Hyperparameters(file.metadata))
        assert isinstance(model, Description)
        found = kinds(model, file)
    assert len(found) == len(model.layers)
    if wanted is None:
        assert max(found) >= 1
    else:
        assert found == wanted
    for i, a in enumerate(found):
        for j, b in enumerate(found):
            assert model.layers[i] == model.layers[j] or a != b


def test_each_kind_is_measured_once_and_inside_if_it_can_be() -> None:
    assert samples([0, 0, 1, 0]).layers == (1, 2)
    assert samples([0, 1, 1, 2]).layers == (0, 1, 3)
    assert samples([0]).layers == (0,)


def test_the_output_costs_what_the_last_layer_takes_longer() -> None:
    assert spread(samples([0, 0, 1, 0]), [2.0, 5.0, 3.5]) == ([2.0, 2.0, 5.0, 2.0], 1.5)
    # No other layer is like the last one, so its time includes the output.
    assert spread(samples([0, 1, 1, 2]), [1.0, 2.0, 7.0, 7.0]) == ([1.0, 2.0, 2.0, 7.0], 0.0)
    assert spread(samples([0, 0, 0]), [2.0, 1.9]) == ([2.0] * 3, 0.0)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("measuring"))


def _simulated(speed: float, memory: int = 1 << 30) -> Callable[[], aggml.Backend]:
    return lambda: SimDevice("SIM", memory=memory, speed=speed).backend()


@pytest.mark.slow
async def test_a_faster_device_gets_more_layers(nodes: Any, tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    # a layer takes 80 ms on the slow one, 20 ms on the fast one
    slow, fast = _simulated(2e7), _simulated(8e7)
    for backends, wanted in (
        ((slow, fast), [(0, 1), (1, 4)]),
        ((fast, slow), [(0, 3), (3, 4)]),
    ):
        async with await pipeline(path, 2, ctx=256, backend=backends) as model:
            assert [x.layers for x in model.stages] == wanted
            kept = model.costs
            assert len([token async for token in model.generate([5, 6], max_tokens=3)]) == 3
        # The measured costs can be passed to the next pipeline.
        async with await pipeline(path, 2, ctx=256, backend=backends, costs=kept) as model:
            assert [x.layers for x in model.stages] == wanted
    async with await pipeline(path, 2, ctx=256, backend=(slow, fast), costs="bytes") as model:
        assert [x.layers for x in model.stages] == [(0, 2), (2, 4)]


@pytest.mark.slow
async def test_a_small_device_gets_no_more_than_it_has_room_for(nodes: Any, tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")  # 3.1 MB for each layer
    small, large = _simulated(8e7, 6 << 20), _simulated(2e7)
    async with await pipeline(path, 2, ctx=256, backend=(small, large)) as model:
        assert [x.layers for x in model.stages] == [(0, 1), (1, 4)]
    with pytest.raises(aggml.InvalidArgument, match="do not fit"):
        await pipeline(path, 2, ctx=256, backend=(small, small))
    with pytest.raises(aggml.InvalidArgument, match="costs is 'quickly'"):
        await pipeline(path, 2, costs="quickly")  # type: ignore[arg-type]
