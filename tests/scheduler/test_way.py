"""The way of a graph through `Scheduler.submit`: see docs/house.md.

Here: the functions that are entered (tools/way.py counts them). Not here: what they do
(test_run.py), how long they take (benchmarks/).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from way import scheduled

if TYPE_CHECKING:
    from way import Way


@pytest.fixture(scope="module")
def found() -> dict[str, Way]:
    return scheduled()


@pytest.mark.parametrize("turn", ["second", "again"])
def test_a_repetition_plans_nothing_and_comes_back_twice(turn: str, found: dict[str, Way]) -> None:
    way = found[f"submit: {turn}"]
    # Two climbs: back from the checkpoint of the loop, and from the queue for a slot.
    assert [(a.room, b.room) for a, b in way.climbs] == [("stream", "scheduler")] * 2
    assert {call.room for call in way.calls}.isdisjoint({"memory", "plan", "graph", "ops"})
    assert len(way.calls) <= 28


def test_the_first_time_climbs_no_more_than_it_did(found: dict[str, Way]) -> None:
    # 91 on Python 3.11; fewer on 3.14, where a comprehension is no function call
    assert 0 < len(found["submit: first"].climbs) <= 91
