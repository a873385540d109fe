"""Words of docs/house.md have one meaning: `kind` names no type, a `Plan` is of a graph.

A variable for an element type is called dtype or element, for a type of buffers buffer_type, for an
exception error. The test looks at annotations and at assigned values. Not here: comments and
messages, where the word has its English meaning.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "aggml").rglob("*.py"))
#: An annotation or a value that shows that a variable holds a type.
TYPES = re.compile(
    r"\b(?:BufferType|BaseException|Exception|DeviceType|DType)\b"
    r"|\.(?:dtype|buffer_type)$|\.buffer\.type$"
)


def names_of_types(tree: ast.AST) -> list[int]:
    """The lines where a variable `kind` or `kinds` holds a type."""
    found = []
    for node in ast.walk(tree):
        pairs: list[tuple[ast.AST | None, ast.AST | None]] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            named = node.target if isinstance(node, ast.AnnAssign) else ast.Name(node.arg)
            pairs.append((named, node.annotation))
        elif isinstance(node, ast.Assign):
            pairs += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs.append((node.target, node.iter))
        for target, told in pairs:
            name = target.attr if isinstance(target, ast.Attribute) else None
            name = target.id if isinstance(target, ast.Name) else name
            if name in {"kind", "kinds"} and told is not None and TYPES.search(ast.unparse(told)):
                found.append(getattr(node, "lineno", getattr(target, "lineno", 0)))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "def f(kind: DType) -> None: ...",
        "kind = DType.parse(x)",
        "self.kind = kind = x.dtype",
        "kind = placement.buffer.type",
        "kind: type[BaseException] | None = None",
        "names = [kind.name for kind in DType]",
    ],
)
def test_a_type_called_kind_is_found(source: str) -> None:
    assert names_of_types(ast.parse(source))


@pytest.mark.parametrize("source", ["kind = x.dtype.kind", "def f(kind: str) -> None: ..."])
def test_the_english_word_is_free(source: str) -> None:
    assert not names_of_types(ast.parse(source))


def test_no_type_is_called_kind() -> None:
    root = SOURCES[0].parents[1]
    wrong = [
        f"{path.relative_to(root)}:{line}"
        for path in SOURCES
        for line in names_of_types(ast.parse(path.read_text()))
    ]
    assert wrong == []


def test_only_graphs_have_plans() -> None:
    """Rooms above the face define no Plan: what they would call so is no compiled graph."""
    above = {"cli", "gguf", "models", "ray", "serve"}
    wrong = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in SOURCES
        if path.parts[path.parts.index("aggml") + 1] in above
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and re.search(r"Plan(?:$|[A-Z])", node.name)
    ]
    assert wrong == []
