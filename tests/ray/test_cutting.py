"""Cutting layers into stages, compared with all possible cuts; a model that cannot be cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing
from hypothesis import given
from hypothesis import strategies as st
from models import random_models

import aggml
from aggml.ray import pipeline
from aggml.ray.cutting import cut
from aggml.ray.stages import Stages

if TYPE_CHECKING:
    from pathlib import Path


def _slowest(
    costs: list[float], edges: tuple[int, ...], speeds: list[float], begin: float, end: float
) -> float:
    bounds = [0, *edges, len(costs)]
    times = [sum(costs[a:b]) for a, b in itertools.pairwise(bounds)]
    times[0] += begin
    times[-1] += end
    return max(time / speed for time, speed in zip(times, speeds, strict=True))


@given(st.data())
def test_no_cut_has_a_faster_slowest_stage(data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(1, 9).map(float), min_size=1, max_size=8))
    stages = data.draw(st.integers(1, len(costs)))
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=stages, max_size=stages))
    begin, end = (float(data.draw(st.integers(0, 5))) for _ in range(2))
    found = cut(costs, stages, speeds=speeds, begin=begin, end=end)
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == len(costs)
    assert all(a < b for a, b in found)
    inner = range(1, len(costs))
    every = itertools.combinations(inner, stages - 1)
    best = min(_slowest(costs, edges, speeds, begin, end) for edges in every)
    edges = tuple(b for _, b in found[:-1])
    assert _slowest(costs, edges, speeds, begin, end) == pytest.approx(best)


def test_a_stage_gets_no_more_than_it_has_room_for() -> None:
    # By their equal costs 6 layers would be cut into 3 and 3, but the first stage has room for one.
    assert cut([1.0] * 6, 2, sizes=[10.0] * 6, limits=[15.0, 100.0]) == [(0, 1), (1, 6)]
    with pytest.raises(aggml.InvalidArgument, match="do not fit"):
        cut([1.0] * 6, 2, sizes=[10.0] * 6, limits=[15.0, 40.0])


@pytest.mark.parametrize(("layers", "stages"), [(0, 1), (3, 4), (3, 0)])
def test_more_stages_than_layers_are_refused(layers: int, stages: int) -> None:
    with pytest.raises(aggml.InvalidArgument, match="cannot be cut"):
        cut([1.0] * layers, stages)


def test_a_stage_may_be_faster_at_some_layers_than_at_others() -> None:
    slow, fast = [3.0, 3.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0]
    assert cut([slow, fast], 2) == [(0, 1), (1, 4)]
    assert cut([fast, slow], 2) == [(0, 3), (3, 4)]
    assert cut([fast, slow], 2, end=[0.0, 9.0]) == [(0, 3), (3, 4)]
    assert cut([fast, fast], 2, end=[9.0, 2.0]) == [(0, 3), (3, 4)]
    with pytest.raises(aggml.InvalidArgument, match="costs has 1 lists for 2 stages"):
        cut([slow], 2)


def test_speeds_are_as_many_as_stages() -> None:
    with pytest.raises(aggml.InvalidArgument, match="3 speeds for 2 stages"):
        cut([1.0] * 4, 2, speeds=[1.0, 1.0, 1.0])


@pytest.mark.parametrize("costs", ["measured", "bytes"])
async def test_a_model_that_cannot_be_cut_is_refused_before_a_stage_is_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: str
) -> None:
    async def place(_: Stages) -> None:
        pytest.fail("the stages are placed")

    monkeypatch.setattr(Stages, "place", place)
    path = random_models.write(tmp_path / "model.gguf", "rwkv7")
    with pytest.raises(aggml.Unsupported, match="rwkv7 cannot be cut into stages"):
        await pipeline(path, stages=2, costs=costs)  # type: ignore[arg-type]
