"""Traces of several nodes, in the time of one clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import random_models
from ray_cluster import cluster

import aggml
from aggml.ray import pipeline
from aggml.ray.clocks import Clock, Trip, reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aggml.ray.traces import PipelineTrace

times = st.floats(0, 1e-2)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(times, times), min_size=1, max_size=9))
def test_an_estimate_is_wrong_by_no_more_than_it_says(
    ahead: float, delays: list[tuple[float, float]]
) -> None:
    trips = []
    for i, (there, back) in enumerate(delays):  # the delays of the two ways are independent
        trips.append(Trip(i, i + there + ahead, i + there + back))
    found = reading(trips)
    assert found.bound == pytest.approx(min(a + b for a, b in delays) / 2, abs=1e-9)
    assert abs(found.ahead - ahead) <= found.bound + 1e-6


@given(st.floats(-1e3, 1e3), st.floats(-1e-4, 1e-4), st.floats(0.1, 100), st.floats(0, 1))
def test_a_clock_that_drifts_is_followed(
    ahead: float, drift: float, lasts: float, share: float
) -> None:
    def there(t: float) -> float:
        return t + ahead + drift * t

    first, last = (reading([Trip(t - 1e-4, there(t), t + 1e-4)]) for t in (0.0, lasts))
    clock = Clock(first, last)
    assert clock.bound == pytest.approx(1e-4)
    assert clock.here(there(share * lasts)) == pytest.approx(share * lasts, abs=1e-6)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("traces"))


def _within(trace: PipelineTrace) -> None:
    """Each computation lies between the arrival and the departure of its step at that stage."""
    for stage in trace.stages:
        computed = [x for x in stage.events if x.operation == "graph_compute"]
        assert len(computed) >= len(stage.steps) > 0
        for x in computed:
            assert x.submitted <= x.started <= x.done
            assert any(y.came <= x.submitted and x.done <= y.went for y in stage.steps)


def _one_after_the_other(trace: PipelineTrace) -> None:
    """A step passes the stages one after the other, within the known errors of their clocks."""
    places = [{x.number: x for x in stage.steps} for stage in trace.stages]
    bounds = [stage.clock.bound for stage in trace.stages]
    for step in trace.steps:
        before, unsure = step.came, 0.0
        for place, bound in zip(places, bounds, strict=True):
            assert before <= place[step.number].came + unsure + bound
            before, unsure = place[step.number].went, bound
        assert before <= step.went + unsure


@pytest.mark.slow
async def test_a_trace_shows_all_nodes_by_one_clock(nodes: Any, tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    place = {"CPU": 0.5}
    async with await pipeline(path, 2, ctx=256, slots=2, resources=place) as model:
        assert len({x.node for x in model.stages}) == 2
        async with model.trace() as trace:
            with pytest.raises(aggml.InvalidState, match="another trace"):
                await model.trace().__aenter__()
            tokens = [x.id async for x in model.generate(random_models.prompt(20), max_tokens=12)]
        async with model.trace() as empty:
            pass
    assert len(tokens) == 12
    assert len(trace.steps) >= 12
    assert [len(stage.steps) for stage in trace.stages] == [len(trace.steps)] * 2
    for stage in trace.stages:  # both nodes are this machine, so their clock is that of the driver
        assert abs(stage.clock.last.ahead) <= stage.clock.bound < 0.05
    _within(trace)
    _one_after_the_other(trace)
    trace.save(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    names = [x["args"]["name"] for x in written["traceEvents"] if x["name"] == "process_name"]
    assert names[0] == "driver"
    assert names[1].startswith("stage 0: layers 0 to ")
    assert len(names) == 3
    assert all(x["ts"] >= 0 for x in written["traceEvents"] if "ts" in x)
    assert {"stage 0", "stage 1"} == set(written["otherData"]["clocks"])
    assert [stage.steps for stage in empty.stages] == [[], []]
