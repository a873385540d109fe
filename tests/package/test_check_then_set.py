"""State that several threads may look at and then set: under a lock, or listed here with a reason.

The finder reads the sources of all rooms below the models. It finds a test of an attribute or a
global (``is None``, ``not in``) whose branch sets the same one, and an empty container that is
published first and filled afterwards. Not here: programs with several threads (fuzz/placing.py).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aggml

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aggml.__file__).parent
ABOVE = {"cli", "models", "pipeline", "ray", "serve", "testing"}

BUILT_ANEW = "each thread makes the same value from what never changes; the last one stays"
ONE_CALL = "the object belongs to one call, which no other thread sees"
ONE_LOOP = "only tasks of one event loop come here, and nothing is awaited in between"
OF_THREAD = "a batch belongs to one thread, and so does its entry in the table"
OBSERVER = "observers are called under the lock of stream/observe.py"

#: (file, function, what is set): why no lock is needed.
REVIEWED = {
    ("backend/backend.py", "_unit", "batch.counted"): OF_THREAD,
    ("backend/inputs.py", "_input_leafs", "graph.expected"): BUILT_ANEW,
    ("devices/cpu/roofline.py", "_data", "self._memory"): BUILT_ANEW,
    ("graph.py", "_make_index", "self._index"): BUILT_ANEW,
    ("graph.py", "find", "self._names"): BUILT_ANEW,
    ("graph.py", "members", "self._members"): BUILT_ANEW,
    ("graph.py", "use_count", "self._uses"): BUILT_ANEW,
    ("scheduler/deciding/assign.py", "supports", "self._forms"): ONE_CALL,
    ("scheduler/deciding/program.py", "build_split_graph", "found.backend"): ONE_CALL,
    ("scheduler/layout/script.py", "copy", "self._fetched"): ONE_CALL,
    ("scheduler/layout/rewrite.py", "_twin", "self.twins"): ONE_CALL,
    ("scheduler/running/evaluate.py", "__anext__", "self._begun"): ONE_LOOP,
    ("scheduler/running/evaluate.py", "next", "self._nodes"): ONE_LOOP,
    ("scheduler/running/submitter.py", "_enqueue", "known.brought"): BUILT_ANEW,
    ("scheduler/running/unit.py", "share", "stream.open_batches"): OF_THREAD,
    ("stream/completions.py", "__anext__", "self._parker"): ONE_LOOP,
    ("tensor/checking.py", "spec_of", "tensor._array"): BUILT_ANEW,
    ("tracing/race.py", "after", "self._lines"): OBSERVER,
}


def _names(node: ast.AST) -> str:
    return ast.unparse(node)


def _is_shared(node: ast.AST, shared: set[str]) -> bool:
    return isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in shared)


def _checked(test: ast.expr, shared: set[str]) -> set[str]:
    """The attributes and globals that a condition finds to be missing."""
    found = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            op, right = node.ops[0], node.comparators[0]
            if isinstance(op, ast.Is) and isinstance(right, ast.Constant) and right.value is None:
                found |= {_names(node.left)} if _is_shared(node.left, shared) else set()
            if isinstance(op, ast.NotIn) and _is_shared(right, shared):
                found.add(_names(right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found |= {_names(node.operand)} if _is_shared(node.operand, shared) else set()
    return found


def _looked_up(function: ast.AST, shared: set[str]) -> dict[str, str]:
    """Local names whose value was read from an attribute, a global, or a table that is one."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name):
                if _is_shared(value, shared):
                    found[target.id] = _names(value)
                elif (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Attribute)
                    and value.func.attr == "get"
                    and _is_shared(value.func.value, shared)
                ):
                    found[target.id] = _names(value.func.value)
    return found


def _set(body: list[ast.stmt], shared: set[str]) -> set[str]:
    """The attributes, globals, and tables of these, that statements set."""
    found = set()
    for statement in body:
        for node in _unlocked(statement):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if _is_shared(one, shared):
                        found.add(_names(one))
                    elif isinstance(one, ast.Subscript) and _is_shared(one.value, shared):
                        found.add(_names(one.value))
    return found


def _unlocked(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but for what is in the block of a lock."""
    yield node
    if isinstance(node, ast.With | ast.AsyncWith) and _locked(node):
        return
    for child in ast.iter_child_nodes(node):
        yield from _unlocked(child)


def _locked(node: ast.With | ast.AsyncWith) -> bool:
    """Whether a ``with`` takes a lock: these are called so, or for what they guard ("...ing")."""
    for item in node.items:
        taken = _names(item.context_expr).split("(")[0].rpartition(".")[2]
        if "lock" in taken or taken.endswith("ing") or taken in ("plans", "turn"):
            return True
    return False


def problems(source: str) -> set[tuple[str, str]]:
    """(function, what it sets) of all places of a module that check and then set without a lock."""
    found: set[tuple[str, str]] = set()
    tree = ast.parse(source)

    def visit(node: ast.AST, function: str, shared: set[str], read: dict[str, str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
            shared = {n for g in ast.walk(node) if isinstance(g, ast.Global) for n in g.names}
            read = _looked_up(node, shared)
            if function in ("__init__", "__new__"):
                return
            _published(node, function, shared)
        if isinstance(node, ast.With | ast.AsyncWith) and _locked(node):
            return
        if isinstance(node, ast.If):
            missing = _checked(node.test, shared)
            for one in ast.walk(node.test):
                if isinstance(one, ast.Name) and one.id in read:
                    missing.add(read[one.id])
            found.update((function, target) for target in missing & _set(node.body, shared))
        for child in ast.iter_child_nodes(node):
            visit(child, function, shared, read)

    def _published(node: ast.AST, function: str, shared: set[str]) -> None:
        """``names = self._names = {}``, filled through the local name afterwards."""
        for one in _unlocked(node):
            if isinstance(one, ast.Assign) and len(one.targets) == 2:
                kept = [t for t in one.targets if _is_shared(t, shared)]
                if kept and isinstance(one.value, ast.Dict | ast.List | ast.Set):
                    found.update((function, _names(t)) for t in kept)

    visit(tree, "", set(), {})
    return found


def rooms() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [f for f in files if f.relative_to(PACKAGE).parts[0] not in ABOVE]


@pytest.mark.long
def test_what_threads_check_and_set_is_locked_or_reviewed() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), *problem)
        for path in rooms()
        for problem in problems(path.read_text())
    }
    assert sorted(found - REVIEWED.keys()) == []
    assert sorted(REVIEWED.keys() - found) == [], "these are no longer there"


@pytest.mark.parametrize(
    "body",
    [
        "if self.a is None:\n            self.a = make()",
        "if self.a is None or self.a.old:\n            self.a = make()",
        "have = self.a\n        if have is None:\n            self.a = make()",
        "have = self.a\n        if size > have.size:\n            self.a = make()",
        "if k not in self.a:\n            self.a[k] = make()",
        "if not self.a:\n            self.a = True",
        "have = self.a.get(k)\n        if have is None:\n            have = self.a[k] = make()",
        "names = self.a\n        if names is None:\n            names = self.a = {}",
    ],
)
def test_the_finder_sees_a_check_and_a_set(body: str) -> None:
    source = "class C:\n    def f(self, k, size):\n        {}\n"
    assert problems(source.format(body)) == {("f", "self.a")}
    inner = body.replace("\n", "\n    ")
    locked = source.format(f"with self._lock:\n            {inner}")
    assert problems(locked) == set()


def test_the_finder_sees_a_global() -> None:
    source = "a = None\ndef f():\n    global a\n    if a is None:\n        a = make()\n"
    assert problems(source) == {("f", "a")}
