"""Docstrings have the parts that the style requires, as far as a program can check.

The docstring of a builder names its ggml function, every parameter, the result and the errors, or
refers to another builder that does. Operations that return a Future say what a cancelled await
leaves behind. Not here: whether a sentence can be understood.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import aggml
from aggml import ops

BUILDERS = sorted(name for name in ops.__all__ if inspect.isfunction(getattr(ops, name)))
AWAITED = [
    pytest.param(cls, name, id=f"{cls.__name__}.{name}")
    for cls in (aggml.Backend, aggml.Scheduler, aggml.GraphPlan)
    for name, found in inspect.getmembers(cls, inspect.isfunction)
    if not name.startswith("_")
    and (
        inspect.iscoroutinefunction(found)
        or "Future[" in str(inspect.signature(found).return_annotation)
    )
]


def doc(found: object) -> str:
    return inspect.getdoc(found) or ""


def texts(name: str, seen: tuple[str, ...] = ()) -> str:
    """The docstring of a builder, and those of the builders that it names."""
    text = doc(getattr(ops, name))
    named = [found for found in re.findall(r"`(\w+)`", text) if found in BUILDERS]
    others = [texts(other, (*seen, name)) for other in named if other not in (*seen, name)]
    return "\n".join([text, *others])


def listed(text: str, head: str) -> list[str]:
    """The names before the colons in a section such as "Raises"."""
    sections = re.findall(rf"^{head}:\n((?: {{4}}.*\n|\n)*)", text + "\n", re.MULTILINE)
    return [
        name.strip()
        for section in sections
        for names in re.findall(r"^ {4}([A-Z]\w+(?:, [A-Z]\w+)*):", section, re.MULTILINE)
        for name in names.split(",")
    ]


#: Builders that ggml does not have.
OURS = {"flash_attn_ext_set_shared", "sample", "penalize"}


def test_builders_name_their_functions_of_ggml() -> None:
    named = {x for x in BUILDERS if re.search(r"``ggml_\w+``", doc(getattr(ops, x)))}
    assert {*BUILDERS} - named == OURS


def test_builders_name_their_parameters() -> None:
    for name in BUILDERS:
        text = re.sub(r"``p0`` to ``p3``", "p0 p1 p2 p3", texts(name))
        parameters = inspect.signature(getattr(ops, name)).parameters
        assert [p for p in parameters if not re.search(rf"\b{p}\b", text)] == [], name


def test_builders_say_what_they_return_and_raise() -> None:
    for name in BUILDERS:
        text = texts(name)
        assert "Returns:" in text, name
        raised = listed(text, "Raises")
        assert raised, name
        assert [error for error in raised if not hasattr(aggml, error)] == [], name


@pytest.mark.parametrize(("cls", "name"), AWAITED)
def test_what_is_awaited_says_what_a_cancelled_await_leaves(cls: Any, name: str) -> None:
    assert "ancel" in doc(getattr(cls, name))


def test_every_public_name_says_what_it_is() -> None:
    for name in sorted({*aggml.__all__, *aggml._LATER_BY_NAME}):
        found = getattr(aggml, name)
        if inspect.isclass(found) or inspect.isfunction(found) or inspect.ismodule(found):
            first = doc(found).splitlines()[0]
            assert first.endswith((".", ":")), (name, first)
