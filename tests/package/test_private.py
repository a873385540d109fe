"""A private name, ``x._name``, is used in the file that defines it.

From another file only the names listed here are reached, each for a reason. Not here: what rooms
may import (tools/rooms.py).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aggml

PACKAGE = Path(aggml.__file__).parent

#: Of classes of Python's library, whose public methods have such names.
PYTHONS = {"_asdict", "_at_fork_reinit", "_fields", "_getframe", "_make", "_replace", "_value_"}
PYTHONS |= {"_Pointer", "_SimpleCData"}
#: What a device implements: rooms that drive a device call these on its backend.
HOOKS = {"_clear", "_compile", "_compute", "_copy", "_copy_experts", "_get", "_repeats", "_set"}
HOOKS |= {"_correct_experts", "_guess_experts", "_note_experts", "_sibling", "_sums"}
MEMBERS = "a step of Backend that a backend of several devices takes on each of them"
WAITING = "who awaits a Future must not see it; what waits for several Futures needs it"
KEPT = "a slot of Tensor in which another file keeps what it has computed"
#: Everything else that is reached from another file.
REASONS = {
    "_actor_id": "Ray's own name: it has no public one",
    "_array": KEPT,
    "_check_tensor": MEMBERS,
    "_copy_to": MEMBERS,
    "_ensure_compiled": MEMBERS,
    "_enter": WAITING,
    "_leave": WAITING,
    "_op_to_await": WAITING,
    "_span": KEPT,
    "_tensors": "an allocator looks at all tensors of a buffer, without sorting them",
    "_tokenizer": "`tokenizer` raises if there is none",
    "_value": "`Backend.get` gives its Future a value; a call more would cost it a hundredth",
}


def reached(path: Path) -> set[str]:
    """The private names of other files that a file reaches, but for those of Python and hooks."""
    tree = ast.parse(path.read_text())
    defined: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr[0] == "_" and node.attr[:2] != "__":
            own = ast.unparse(node.value) in ("self", "cls", "super()")
            if own and isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
            elif not own:
                used.add(node.attr)
    return used - defined - PYTHONS - HOOKS


@pytest.mark.long
def test_private_names_are_reached_from_other_files_for_a_reason() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in reached(path):
            found.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in found.items() if name not in REASONS} == {}
    assert sorted(REASONS.keys() - found.keys()) == [], "these are no longer reached"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(x): return x._secret", {"_secret"}),
        ("class A:\n  def __init__(self): self._y = 1\ndef f(a): a._y", set()),
        ("class A:\n  def f(self): return self._inherited", set()),
        ("def f(b): b._set(1); b.__class__; b._replace()", set()),
    ],
)
def test_the_search_finds_them(text: str, names: set[str], tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(text)
    assert reached(path) == names
