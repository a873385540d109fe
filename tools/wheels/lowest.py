"""Prints the lowest versions that pyproject.toml allows, as constraints for pip (check-lowest).

Of the extras that are named, and of aggml itself if `aggml` is. If several name a package, the
highest of their lowest versions counts; the exact versions and those without a lower bound are left
as they are. Not here: which tests then run (Makefile).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?[^;]*?>=([\d.]+)")
ROOT = Path(__file__).resolve().parents[2]


def lowest(requirements: list[str]) -> dict[str, str]:
    """The version of each requirement that has a lower bound, by name."""
    found: dict[str, str] = {}
    for requirement in requirements:
        if not (match := REQUIREMENT.match(requirement)):
            continue
        name, version = match.groups()
        if order(version) > order(found.get(name, "0")):
            found[name] = version
    return found


def order(version: str) -> tuple[int, ...]:
    """By which versions are compared."""
    return tuple(map(int, version.split(".")))


def main(names: list[str]) -> None:
    """Print them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of = project["optional-dependencies"] | {project["name"]: project["dependencies"]}
    requirements = [r for name in names for r in of[name]]
    for name, version in sorted(lowest(requirements).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main(sys.argv[1:])
