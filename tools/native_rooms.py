"""The rooms of aggml/native, the arrows between them, and the file that a kernel's name leads to.

    python tools/native_rooms.py                        # every room and the rooms it uses
    python tools/native_rooms.py agk_norm_rms_f32_avx2  # where this function is defined
    python tools/native_rooms.py --objects build/c      # calls as well, read from a build

Arrows between rooms are read from the #includes. Within a room files use each other one way, too:
a file uses those whose functions it names, and there is no circle. Exits with 1 if a room uses one
above it, or if files form a circle. Not here: the rooms of the Python package (rooms.py).
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "aggml" / "native"

#: From the lowest up: a room may use the rooms before it.
ROOMS = {
    "table": "ops, types, features, variants of kernels; the choice",
    "formats": "element types: their blocks, plain conversions, quantizers",
    "kernels": "inner functions, a folder for each instruction set",
    "lower": "from a node to steps, a file for each group of ops",
    "runtime": "streams, threads, plans",
    "cuda": "the driver's side",
    "ggml": "libraries of ggml",
    "binding": "Python",
}
ORDER = list(ROOMS)
SOURCES = {".c", ".h", ".cpp", ".def"}
#: This file alone names every variant, so it calls functions of rooms above its own: not counted.
NAMES_ALL = "table/dispatch.c"

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_VARIANT = re.compile(r"\bAGK_VARIANT\(\s*(\w+)\s*,\s*(\w+)\s*,")
_TYPE = re.compile(r"^AGK_TYPE\(\w+, \d+, (\w+),", re.MULTILINE)
_ISA = re.compile(r"^AGK_ISA\((\w+),", re.MULTILINE)


def room_of(path: Path) -> str:
    """The folder of aggml/native that a file lies in."""
    return path.relative_to(NATIVE).parts[0]


def sources() -> list[Path]:
    """Every file that includes or is included."""
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in SOURCES)


def included(path: Path) -> list[Path]:
    """The files of aggml/native that a file includes, sought in its folder, then in the root."""
    found = []
    for name in _INCLUDE.findall(path.read_text()):
        for folder in (path.parent, NATIVE):
            target = (folder / name).resolve()
            if target.is_file() and NATIVE in target.parents:
                found.append(target)
                break
        else:
            raise FileNotFoundError(f"{path.relative_to(NATIVE)} includes {name}")
    return found


def arrows() -> dict[tuple[str, str], list[str]]:
    """For each pair of rooms of which one includes the other: the includes."""
    out: dict[tuple[str, str], list[str]] = {}
    for path in sources():
        for target in included(path):
            pair = (room_of(path), room_of(target))
            line = f"{path.relative_to(NATIVE)} -> {target.relative_to(NATIVE)}"
            if pair[0] != pair[1]:
                out.setdefault(pair, []).append(line)
    return out


def upward(found: dict[tuple[str, str], list[str]]) -> list[str]:
    """The arrows that go up."""
    lines = [
        line
        for (source, target), names in found.items()
        if ORDER.index(target) > ORDER.index(source)
        for line in names
    ]
    return sorted(lines)


# -- calls, as the linker sees them


def symbols(build: Path) -> dict[str, tuple[set[str], set[str]]]:
    """For each object of a build, by its source: symbols it defines, undefined symbols it uses."""
    out: dict[str, tuple[set[str], set[str]]] = {}
    for path in build.rglob("*.o"):
        _, found, name = str(path).partition("aggml/native/")
        if not found:
            continue
        listing = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True)
        defined: set[str] = set()
        wanted: set[str] = set()
        for line in listing.stdout.splitlines():
            *_, kind, symbol = line.split()
            (wanted if kind == "U" else defined).add(symbol)
        source = name.removesuffix(".o")
        if (NATIVE / source).exists():  # a build may still have objects of deleted files
            out[source] = (defined, wanted)
    return out


def calls(build: Path) -> dict[tuple[str, str], list[str]]:
    """For each pair of rooms of which one calls the other: the names of the functions."""
    objects = symbols(build)
    home = {name: source for source, (defined, _) in objects.items() for name in defined}
    out: dict[tuple[str, str], list[str]] = {}
    for source, (_, wanted) in objects.items():
        for name in wanted:
            target = home.get(name)
            if target is None or source == NAMES_ALL:
                continue
            pair = (source.split("/")[0], target.split("/")[0])
            if pair[0] != pair[1]:
                out.setdefault(pair, []).append(f"{source} -> {target}: {name}")
    return out


# -- circles of files

_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DEFINED = re.compile(
    r"^(?!static\b|typedef\b)[a-zA-Z_][\w *]*?\b(agk?_\w+)\((?:[^;{}]*)\)\n\{", re.MULTILINE
)
_GLOBAL = re.compile(
    r"^(?!static\b|extern\b|typedef\b)[a-z_][\w() *]*?\b(ag_\w+)(?:\[\w*\])* =", re.MULTILINE
)


def uses() -> dict[str, dict[str, set[str]]]:
    """For each C file the files whose functions and variables it names, and these names.

    Read from the sources, so that code for other systems counts as well. Not seen are names that
    macros put together, and C++, where a name may mean several things: a build tells (`calls_of`).
    """
    texts = {
        str(path.relative_to(NATIVE)): _COMMENT.sub(" ", path.read_text())
        for path in sources()
        if path.suffix == ".c"
    }
    home = {
        name: file
        for file, text in texts.items()
        for name in [*_DEFINED.findall(text), *_GLOBAL.findall(text)]
    }
    out: dict[str, dict[str, set[str]]] = {}
    for file, text in texts.items():
        for name in set(re.findall(r"\w+", text)):
            target = home.get(name, file)
            if target != file and file != NAMES_ALL:
                out.setdefault(file, {}).setdefault(target, set()).add(name)
    return out


def calls_of(build: Path) -> dict[str, dict[str, set[str]]]:
    """The same as the linker sees it; C++ included, if the build has it."""
    objects = symbols(build)
    home = {name: source for source, (defined, _) in objects.items() for name in defined}
    out: dict[str, dict[str, set[str]]] = {}
    for source, (_, wanted) in objects.items():
        for name in wanted:
            target = home.get(name, source)
            if target != source and source != NAMES_ALL:
                out.setdefault(source, {}).setdefault(target, set()).add(name)
    return out


def include_graph() -> dict[str, dict[str, set[str]]]:
    """For each file the files that it includes."""
    return {
        str(path.relative_to(NATIVE)): {
            str(target.relative_to(NATIVE)): {"#include"} for target in included(path)
        }
        for path in sources()
    }


def circles(graph: dict[str, dict[str, set[str]]]) -> list[list[str]]:
    """The groups of files in which each one leads to all others, largest first."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        found: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            file = ahead.pop()
            if file not in found:
                found.add(file)
                ahead += graph.get(file, ())
        reach[start] = found
    groups = {
        tuple(sorted(other for other in reach[file] if file in reach.get(other, ())))
        for file in graph
    }
    return sorted(
        (list(group) for group in groups if group), key=lambda group: (-len(group), group)
    )


def circle_lines(graph: dict[str, dict[str, set[str]]]) -> list[str]:
    """A line for each circle, and one for each arrow inside it."""
    lines = []
    for group in circles(graph):
        lines.append(f"a circle of {len(group)} files: {', '.join(group)}")
        lines += [
            f"    {file} -> {target}: {', '.join(sorted(graph[file][target]))}"
            for file in group
            for target in group
            if target in graph[file]
        ]
    return lines


# -- addresses


def preprocessed(path: Path, *folders: Path, before: Path | None = None) -> str:
    """The preprocessed text of a file after `before`, for all instruction sets at once."""
    command = [os.environ.get("CC", "cc"), "-E", "-P", "-std=c11", "-x", "c"]
    command += [f"-I{folder}" for folder in (*folders, NATIVE)]
    table = (NATIVE / "table" / "isas.def").read_text()
    command += ["-include", str(before)] if before else []
    command += [f"-DAGK_BUILD_{isa.upper()}" for isa in _ISA.findall(table)]
    return subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout


def variants() -> list[tuple[str, str]]:
    """Every kernel and instruction set of kernels.def, with all its macros expanded."""
    table = NATIVE / "table"
    lists = table / "mul_mat_types.h"  # lists of types, for the lines of products
    return _VARIANT.findall(preprocessed(table / "kernels.def", before=lists))


@functools.cache
def types() -> frozenset[str]:
    """The part of function names that stands for each type of types.def."""
    return frozenset(_TYPE.findall((NATIVE / "table" / "types.def").read_text()))


def files_of(kernel: str, isa: str) -> list[Path]:
    """The files that agk_<kernel>_<isa> may be defined in: native/README.md has the rule.

    The longest beginning of the kernel's name decides that is a file's name in the folder, or the
    beginning of one: a product of many types has a file for each group of types. A file that is
    named after one type holds only this type.
    """
    name = re.sub(r"^mm_", "mul_mat_", kernel)
    folder = NATIVE / "kernels" / isa
    if isa == "scalar" and re.search(r"_to_f32$|^f32_to_", name):
        return sorted((NATIVE / "formats").glob("*.c"))
    name = re.sub(r"^\w+_to_f32$", "to_f32", name)
    words = name.split("_")
    for n in range(len(words), 0, -1):
        stem = "_".join(words[:n])
        found = {*folder.glob(f"{stem}.c"), *folder.glob(f"{stem}_*.c")}
        others = types() - {words[-1]}
        found = {path for path in found if path.stem.removeprefix(f"{stem}_") not in others}
        if found:
            return sorted(found)
    return []


def address(symbol: str) -> list[Path]:
    """The files that a variant's function may be defined in."""
    kernel, _, isa = symbol.removeprefix("agk_").rpartition("_")
    return files_of(kernel, isa)


def main() -> int:
    """Run the command line; make check-c does, too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("symbol", nargs="*", help="agk_<kernel>_<isa>")
    parser.add_argument("--objects", type=Path, help="a build folder, whose calls are read as well")
    args = parser.parse_args()
    for symbol in args.symbol:
        print(*(path.relative_to(NATIVE.parent.parent) for path in address(symbol)))
    if args.symbol:
        return 0
    found = arrows()
    wrong = upward(found) + circle_lines(include_graph()) + circle_lines(uses())
    if args.objects:
        wrong += upward(calls(args.objects)) + circle_lines(calls_of(args.objects))
    for room in reversed(ORDER):
        below = [other for other in reversed(ORDER) if (room, other) in found]
        print(f"{room:8} {ROOMS[room]}\n         uses {', '.join(below) or 'none'}")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
