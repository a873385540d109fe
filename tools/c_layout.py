"""Checks C for what clang-format does not: lengths of lines and functions; heads of files.

    python tools/c_layout.py [ROOT]

Fails with a line for each of: a line over 120 columns, a function over 80 lines, a file that does
not begin with a comment, a comment that names a file which does not exist. Part of make
check-layout. Not here: spaces and braces (.clang-format), which file may call which
(native_rooms.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS, OF_A_FUNCTION = 120, 80
ENDINGS = (".c", ".h", ".cpp", ".def", ".cu", ".cuh")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_FILE = re.compile(r"(?<![\w.<*-])[\w/-]+\.(?:c|h|cpp|def|cu|cuh|py|md|cmake)\b(?!\()")
#: Files of other programs and libraries, which comments may name.
ELSEWHERE = {"asm/hwcap.h", "llama.cpp"}


def files(root: Path) -> list[str]:
    """All files that git tracks, and new ones that it does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in found if name and (root / name).is_file()]


def functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The first and the last line of each function, from 1.

    As .clang-format lays them out: a brace at the beginning of a line opens and closes them.
    """
    first = 0
    for i, line in enumerate(lines):
        if line == "{":
            first = i
            while first > 0 and lines[first - 1] and lines[first - 1][-1] not in ";}/\\":
                first -= 1
        elif line == "}" and first:
            yield first + 1, i + 1
            first = 0


def faults(name: str, text: str, exists: set[str]) -> Iterator[str]:
    """The faults of one file; ``exists`` has each file of the repository, see `endings`."""
    lines = text.splitlines()
    for i, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield f"{name}:{i}: {len(line)} columns, {COLUMNS} at most"
    for first, last in functions(lines):
        if last - first + 1 > OF_A_FUNCTION:
            yield f"{name}:{first}: a function of {last - first + 1} lines, {OF_A_FUNCTION} at most"
    if not text.startswith(("/*", "//")):
        yield f"{name}:1: no comment says what is here"
    for comment in _COMMENT.finditer(text):
        for found in _FILE.finditer(comment[0]):
            # The end of a name is enough, as in `kernels/<isa>/to_f32.c`, `mul_mat.h, _bytes.h`.
            if found[0].startswith(("/", "_")):
                known = any(name.endswith(found[0]) for name in exists)
            else:
                known = found[0] in exists or found[0] in ELSEWHERE
            if not known:
                at = text.count("\n", 0, comment.start() + found.start()) + 1
                yield f"{name}:{at}: there is no {found[0]}"


def endings(names: list[str]) -> set[str]:
    """Each path, whole and without its first folders: comments name files in all these ways."""
    parts = (name.split("/") for name in names)
    return {"/".join(path[i:]) for path in parts for i in range(len(path))}


def check(root: Path) -> list[str]:
    """All faults of a checkout."""
    names = files(root)
    exists = endings(names)
    return [
        fault
        for name in names
        if name.endswith(ENDINGS)
        for fault in faults(name, (root / name).read_text(encoding="utf-8"), exists)
    ]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    print(*found, sep="\n")
    sys.exit(f"{len(found)} faults" if found else None)
