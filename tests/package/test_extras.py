"""What an extra asks for, as tools/extras.py reads it, is what the installed package declares."""

from __future__ import annotations

import tomllib
from importlib.metadata import metadata, requires

import extras
import pytest
from packaging.requirements import Requirement

OPTIONAL = tomllib.loads((extras.ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def declared(extra: str) -> set[tuple[str, str]]:
    """Names with their own extras, and versions, of all that pip would install here for an extra.

    The package itself declares it; what it needs without extras is left out.
    """
    found = set()
    for each in map(Requirement, requires("aggml") or ()):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            continue
        if not each.marker.evaluate({"extra": extra}):
            continue
        if each.name == "aggml":
            found |= set[tuple[str, str]]().union(*map(declared, each.extras))
        else:
            found.add((f"{each.name}{sorted(each.extras)}", str(each.specifier)))
    return found


@pytest.mark.parametrize("extra", sorted(OPTIONAL))
def test_an_extra_asks_for_what_the_package_declares(extra: str) -> None:
    given = map(Requirement, extras.requirements(extra, OPTIONAL))
    found = {
        (f"{each.name}{sorted(each.extras)}", str(each.specifier))
        for each in given
        if each.marker is None or each.marker.evaluate()
    }
    assert found
    assert found == declared(extra)


def test_every_extra_is_declared() -> None:
    assert set(metadata("aggml").get_all("Provides-Extra") or ()) == set(OPTIONAL)
