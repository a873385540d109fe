"""Words of the glossary in docs/house.md mean one thing: `kind` is no type, a `Plan` is of a graph.

A type of elements is called dtype or element, one of buffers buffer_type, an exception error. The
test looks at annotations and at what a name is given. Not here: comments and messages, where the
word has its English meaning.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "aggml").rglob("*.py"))
#: An annotation or a value that makes a name the name of a type.
TYPES = re.compile(
    r"\b(?:BufferType|BaseException|Exception|DeviceType|DType)\b"
    r"|\.(?:dtype|buffer_type)$|\.buffer\.type$"
)


def names_of_types(tree: ast.AST) -> list[int]:
    """The lines where `kind` or `kinds` is the name of a type."""
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
    """No room above the face defines a Plan: what it would plan is no compiled graph."""
    above = {"cli", "gguf", "models", "ray", "serve"}
    wrong = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in SOURCES
        if path.parts[path.parts.index("aggml") + 1] in above
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and re.search(r"Plan(?:$|[A-Z])", node.name)
    ]
    assert wrong == []
