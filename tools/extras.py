"""Prints what extras of pyproject.toml ask for, one requirement a line, as pip reads them.

The package itself need not be there: its other packages are installed while it is compiled. Not
here: lowest versions (wheels/lowest.py).

    python tools/extras.py test dev
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
OWN = re.compile(r"aggml\[([^]]+)\]$")  # extras that an extra includes


def requirements(extra: str, optional: Mapping[str, list[str]]) -> Iterator[str]:
    """The requirements of an extra and of those that it includes, in that order.

    Raises:
        KeyError: pyproject.toml has no such extra.
    """
    for requirement in optional[extra]:
        if match := OWN.match(requirement):
            for included in match[1].split(","):
                yield from requirements(included.strip(), optional)
        else:
            yield requirement


def main(extras: list[str]) -> None:
    """Print them, each once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (r for extra in extras for r in requirements(extra, project["optional-dependencies"]))
    print(*dict.fromkeys(found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
