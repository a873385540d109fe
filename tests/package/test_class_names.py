"""A public class name is used once in the package, so that a name says which class is meant.

Not here: names of functions and variables.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import aggml

PACKAGE = Path(aggml.__file__).parent


def homes(folder: Path) -> dict[str, list[str]]:
    """Where each public class at the top of a module is defined."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(folder).as_posix())
    return found


def test_a_public_class_name_is_used_once() -> None:
    twice = {name: paths for name, paths in homes(PACKAGE).items() if len(paths) > 1}
    assert twice == {}


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("class Batch:\n    ...\nclass _Own:\n    ...\n")
    assert homes(tmp_path) == {"Batch": ["one.py", "two.py"]}
