"""The charts of the documentation are those of the kept results, and show what was measured.

Not here: timelines (tests/tracing).
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from docs.pages import ROOT
from pictures import FOLDER, drawings

from benchmarks.chart import QUESTIONS, charts

SPACE = "{http://www.w3.org/2000/svg}"
RESULTS = sorted(
    path
    for path in (ROOT / "benchmarks" / "results").glob("*.json")
    if "rows" in (found := json.loads(path.read_text())) and "threads" in found
)


def bars(text: str) -> list[tuple[str, float, float]]:
    """Name, length and figure of each bar of a chart."""
    parts = list(ET.fromstring(text))
    return [
        (parts[i + 1].text or "", float(bar.get("width", "")), number(parts[i + 2].text or ""))
        for i, bar in enumerate(parts)
        if bar.tag == f"{SPACE}rect" and bar.get("height") == "13"
    ]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_drawings_of_the_pages_are_those_that_the_program_makes() -> None:
    for path, text in drawings().items():
        assert path.read_text() == text, "python tools/pictures.py writes it"
    # The icon is drawn by hand; the timelines are of runs, two of them with trained weights.
    kept = {path.name for path in FOLDER.glob("*.svg")}
    kept -= {"icon.svg", "overlap.svg", "answers.svg", "documents.svg"}
    assert kept == {path.name for path in drawings()}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_chart_has_each_program_that_was_measured_with_its_figure(path: Any) -> None:
    result = json.loads(path.read_text())
    found = charts(result)
    for question in QUESTIONS:
        rows = [
            row
            for row in result["rows"]
            if row["part"] == question.part
            and row["peers"]
            and re.fullmatch(question.rows, row["what"])
        ]
        assert bool(rows) == (question.name in found)
        if not rows:
            continue
        measured = [
            value
            for row in rows
            for value in (row["value"], *(peer["value"] for peer in row["peers"].values()))
        ]
        shown = bars(found[question.name])
        assert [figure for *_, figure in shown] == pytest.approx(measured, rel=0.01)
        assert [name for name, *_ in shown].count("aggml") == len(rows)
        longest = max(length for _, length, _ in shown)
        for (_, length, _), value in zip(shown, measured, strict=True):
            assert length == pytest.approx(max(longest * value / max(measured), 1), abs=0.2)
        less = rows[0]["unit"] in ("us", "ms")
        assert ("shorter is better" in found[question.name]) == less
        assert result["machine"]["cpu"] in found[question.name]
        assert result["machine"]["time"][:10] in found[question.name]
