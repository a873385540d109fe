"""Tests that needed a second run are named, and fail the run if they are known already."""

from __future__ import annotations

from second_runs import FILE, known, report

TEXT = """
| date | test | cause |
| --- | --- | --- |
| 2026-11-28 | tests/a.py::test_one | a race |
"""


def test_a_new_name_gives_the_line_for_the_file() -> None:
    lines, twice = report(
        ["tests/b.py::test_two[trio]\n", "tests/b.py::test_two"], TEXT, "2026-12-01"
    )
    assert lines[1:] == ["| 2026-12-01 | tests/b.py::test_two | |"]
    assert not twice


def test_a_known_name_fails_the_run_whatever_its_parameters() -> None:
    lines, twice = report(["tests/a.py::test_one[asyncio]\n"], TEXT, "2026-12-01")
    assert lines == ["FAILED AGAIN, and passed when it was run alone: tests/a.py::test_one"]
    assert twice


def test_no_names_are_no_lines() -> None:
    assert report(["\n"], TEXT, "2026-12-01") == ([], False)


def test_the_file_can_be_read() -> None:
    assert known(FILE.read_text(encoding="utf-8"))
