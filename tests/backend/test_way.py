"""The way of a graph through `Backend.run` goes down through the rooms: see docs/house.md.

Here: the functions that are entered (tools/way.py counts them). Not here: what they do
(test_compute.py), how long they take (benchmarks/awaits.py).
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from way import way_of, ways

if TYPE_CHECKING:
    from way import Way

ASKED = ("run", "run, a list, another shape", "run, x as before", "graph_compute")


@pytest.fixture(scope="module")
def found() -> dict[str, Way]:
    return ways()


@pytest.mark.parametrize("name", ASKED)
def test_what_was_asked_for_before_never_climbs(name: str, found: dict[str, Way]) -> None:
    way = found[f"{name}: again"]
    assert way.climbs == []
    rooms = [room for room, _ in groupby(call.room for call in way.calls)]
    assert rooms == ["backend", "memory", "stream"]
    assert len(way.calls) <= 7  # 12 to 68 before the prepared run held all facts that it needs


@pytest.mark.parametrize(("name", "most"), [*zip(ASKED, (40, 21, 13, 7), strict=True)])
def test_the_first_time_climbs_no_more_than_it_did(
    name: str, most: int, found: dict[str, Way]
) -> None:
    assert 0 < len(found[f"{name}: first"].climbs) <= most


def test_a_climb_is_seen() -> None:
    from aggml.backend.inputs import run_key
    from aggml.tensor.checking import integer

    way = way_of(lambda: (integer(1, "n", "test"), run_key((), None)))
    assert [(a.room, b.room) for a, b in way.climbs] == [("tensor", "backend")]
