"""No assignment looks an array up before the call that may replace the array.

``self.array[self.place_of(x)] = y`` reads ``self.array`` first. If ``place_of`` replaces it by a
longer one, the value goes to the old one, or IndexError is raised. So the index is computed before.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def wrong_lines(source: str) -> list[int]:
    """Lines that assign to, or delete, an element of ``self.X`` whose index calls ``self.Y()``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Subscript) or isinstance(node.ctx, ast.Load):
            continue
        owner = node.value
        while isinstance(owner, ast.Attribute | ast.Subscript):
            owner = owner.value
        calls = [
            x.func.value for x in ast.walk(node.slice)
            if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute)
        ]  # fmt: skip
        names = [x.id for x in calls if isinstance(x, ast.Name)]
        if isinstance(owner, ast.Name) and owner is not node.value and owner.id in names:
            found.append(node.lineno)
    return found


@pytest.mark.long
def test_the_index_of_an_assignment_is_computed_before_the_array_is_looked_up() -> None:
    files = sorted((ROOT / "aggml").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
    assert len(files) > 300
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if (lines := wrong_lines(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("self.a[self.of(t)] = 1", True),
        ("self.a[0, self.of(t)] += 1", True),
        ("self.a.b[self.of(t)] = 1", True),
        ("del self.a[self.of(t)]", True),
        ("x = self.a[self.of(t)]", False),
        ("self.a[at] = self.of(t)", False),
        ("self.a[other.of(t)] = 1", False),
        ("a[self.of(t)] = 1", False),
    ],
)
def test_what_counts_as_such_an_assignment(source: str, wrong: bool) -> None:
    assert bool(wrong_lines(source)) is wrong
