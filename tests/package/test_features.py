"""The 248 features of ggml's backend interface: each has its row in docs/ggml-api.md and its test.

Each row must name something that can be imported; marks are read from the sources of the tests. Not
here: what the features do.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "ggml-api.md"

#: How many features each group has, in the order of the table.
GROUPS = {
    "BT": 8,
    "BU": 21,
    "TD": 9,
    "BE": 18,
    "EV": 5,
    "DV": 16,
    "RG": 28,
    "SC": 24,
    "AL": 15,
    "GC": 5,
    "CP": 19,
    "TP": 9,
    "FT": 27,
    "UT": 15,
    "FC": 15,
    "IF": 14,
}

IDS = [f"{group}-{i:02}" for group, n in GROUPS.items() for i in range(1, n + 1)]


class Row(NamedTuple):
    feature: str
    names: str
    here: str
    differs: str


def rows() -> list[Row]:
    """The rows of the table, in order."""
    found = []
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| [A-Z]{2}-\d\d ", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 4, line
            found.append(Row(*cells))
    return found


ROWS = {row.feature: row for row in rows()}


def test_there_are_248() -> None:
    assert len(IDS) == len(set(IDS)) == 248


def test_every_row_is_there_once_and_in_order() -> None:
    found = [row.feature for row in rows()]
    assert [x for x, n in Counter(found).items() if n > 1] == []
    assert found == IDS


def test_nothing_is_missing() -> None:
    assert list(ROWS) == IDS
    assert [x for x in IDS if x not in marks()] == []


def resolve(path: str) -> object:
    """The object that a dotted path names.

    Raises:
        AttributeError, ImportError: there is none.
    """
    parts = path.split(".")
    found: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part) and "." not in part:
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("group", GROUPS)
def test_the_counterparts_exist(group: str) -> None:
    for feature in (x for x in IDS if x.startswith(f"{group}-")):
        row = ROWS[feature]
        match = re.fullmatch(r"`([^`]+)`", row.here)
        assert match, f"{feature}: {row.here} is not one name in backquotes"
        where = match[1]
        if "::" in where:
            file, _, name = where.partition("::")
            assert name in functions_of(ROOT / file), feature
        else:
            resolve(where)
        assert row.names, feature
        assert row.differs, feature


def _marks_in(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.feature":
            for arg in call.args:
                assert isinstance(arg, ast.Constant), f"{ast.unparse(call)}: give the ID itself"
                yield str(arg.value)


@functools.cache
def marks() -> dict[str, list[str]]:
    """The names of the tests that are marked with each feature."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        for node in ast.walk(ast.parse(text)) if "mark.feature" in text else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if node.name.lower().startswith("test"):
                for decorator in node.decorator_list:
                    for feature in _marks_in(decorator):
                        found.setdefault(feature, []).append(f"{name}::{node.name}")
    return found


def test_every_probe_is_a_test_on_both_loops() -> None:
    found = set()
    for path in (ROOT / "tests").rglob("test_probes.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            # An async test runs once for each loop.
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_probe_"):
                found.add(int(node.name.split("_")[2]))
    assert found == set(range(1, 33))


def test_marks_name_features() -> None:
    assert {x: tests for x, tests in marks().items() if x not in IDS} == {}


def test_every_feature_is_exercised() -> None:
    assert [x for x in IDS if x not in marks()] == [], "no test is marked with these"
