"""Name tests that passed only when they were run again; a name that comes twice is an error.

    python tools/second_runs.py < names    # one name on each line, as pytest prints them

Here: comparing the names with those that were written down. Not here: running the tests again.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE: Final = Path(__file__).resolve().parent.parent / ".ci" / "second-runs.md"


def known(text: str) -> set[str]:
    """The tests that the file names, without their parameters."""
    rows = (line.split("|") for line in text.splitlines() if line.startswith("| 2"))
    return {name_of(row[2]) for row in rows}


def name_of(test: str) -> str:
    """The name of a test without its parameters."""
    return test.strip().partition("[")[0]


def report(names: Iterable[str], text: str, today: str) -> tuple[list[str], bool]:
    """The lines to print, and whether a test came twice.

    Args:
        names: of the tests that needed a second run.
        text: of the file.
        today: the date.
    """
    before = known(text)
    lines: list[str] = []
    twice = False
    for name in dict.fromkeys(name_of(x) for x in names if x.strip()):
        if name in before:
            twice = True
            lines.append(f"FAILED AGAIN, and passed when it was run alone: {name}")
        else:
            lines.append("FAILED, and passed when it was run alone. Mend it, and add the cause:")
            lines.append(f"| {today} | {name} | |")
    return lines, twice


def main() -> None:
    """Read names from standard input, print the report."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines, twice = report(sys.stdin, FILE.read_text(encoding="utf-8"), today)
    print(*lines, sep="\n")
    sys.exit(twice)


if __name__ == "__main__":
    main()
