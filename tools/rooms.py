"""The rooms of the Python package and the arrows between them, drawn from the imports.

    python tools/rooms.py                       # text: every room and the rooms it uses
    python tools/rooms.py --svg docs/rooms.svg  # the drawing

An import counts wherever it stands: at the top, in a function, or for type checkers alone. Exits
with 1 if a room uses one of its own row or above, if modules import each other in a circle, or if
a room has no row. Not here: the native rooms (`make check-c`).
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

#: From the lowest up: a room may use rooms of the rows below its own, and no other of its own row.
ROWS: list[dict[str, str]] = [
    {"errors": "exceptions and status codes"},
    {"native": "the module in C", "process": "forks, signals, objects that are still alive"},
    {"dtype": "element types"},
    {"tensor": "tensors, their placement, checks of arrays against them"},
    {
        "stream": "ordered work, futures, event loops",
        "ops": "builders of nodes",
        "graph": "nodes in order",
    },
    {"memory": "buffers, allocators", "gradients": "graphs that compute gradients"},
    {
        "plan": "compiled graphs",
        "conversion": "between floats and quantized blocks",
        "tracing": "timelines, the race checker",
    },
    {"backend": "the interface of devices"},
    {
        "devices.cpu": "",
        "devices.cuda": "",
        "devices.sim": "",
        "devices.meta": "",
        "devices.ggml": "",
        "devices": "finds devices by name",
        "scheduler": "one graph over several backends",
        "registry": "finds and loads devices",
        "gguf": "model files",
    },
    {
        "compare": "compares backends",
        "dlpack": "arrays of other packages",
        "unsafe": "memory by address",
    },
    {"aggml": "the public API"},
    {"pipeline": "stages", "opt": "training"},
    {"models": "architectures"},
    {"serve": "the service", "integrations": "adapters for other libraries"},
    {"ray": "many machines"},
    {"cli": "the program", "testing": "tests that any device must pass"},
    {"__main__": "python -m aggml"},
]
ROW = {room: row for row, rooms in enumerate(ROWS) for room in rooms}


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its full name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules among ``known`` that a file imports, each as often as it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in names]
        else:
            continue
        yield from (name for name in names if name in known)


#: Modules above `aggml` that `aggml` imports for type checkers, and else only when they are used.
NAMED: set[str] = {"aggml.models", "aggml.opt"}


def imports(package: Path) -> dict[str, set[str]]:
    """For each module the modules of the package that it imports."""
    known = modules(package)
    found = {name: {*imported(path, known)} - {name} for name, path in known.items()}
    found.get(package.name, set()).difference_update(NAMED)
    return found


def room_of(module: str, package: str) -> str:
    """The room of a module: a folder or a file of the package; each device is a room of its own."""
    parts = module.split(".")[1:]
    if not parts:
        return package
    return ".".join(parts[:2]) if parts[0] == "devices" else parts[0]


def arrows(uses: dict[str, set[str]], package: str) -> dict[tuple[str, str], list[str]]:
    """(room, the room it uses) with the imports that make it so."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, others in uses.items():
        for other in sorted(others):
            pair = room_of(name, package), room_of(other, package)
            if pair[0] != pair[1]:
                found.setdefault(pair, []).append(f"{name} imports {other}")
    return found


def circles(uses: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other by imports (Tarjan's components of two or more)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        path.append(name)
        for other in uses[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in path:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = path.index(name)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for name in uses:
        if name not in order:
            visit(name)
    return found


def faults(package: Path) -> list[str]:
    """The faults, a line for each."""
    uses = imports(package)
    told = [
        f"{room} has no row in tools/rooms.py"
        for room in sorted({room_of(name, package.name) for name in uses} - {*ROW})
    ]
    for (room, other), lines in arrows(uses, package.name).items():
        if room in ROW and other in ROW and ROW[other] >= ROW[room]:
            told += [f"upwards, {room} to {other}: {line}" for line in lines]
    return told + ["a circle: " + ", ".join(circle) for circle in circles(uses)]


def needed(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others; only these are drawn."""
    below: dict[str, set[str]] = {}
    for room, other in sorted(pairs, key=lambda pair: ROW.get(pair[0], 0)):
        below.setdefault(room, set()).update({other} | below.get(other, set()))
    return {
        (room, other)
        for room, other in pairs
        if not any(other in below.get(mid, ()) for top, mid in pairs if top == room)
    }


def svg(pairs: set[tuple[str, str]]) -> str:
    """The drawing: a box for each room in its row, a line to each room it uses directly."""
    present = {room for pair in pairs for room in pair}
    rows = [[room for room in row if room in present] for row in ROWS]
    rows = [row for row in rows if row][::-1]
    width, high, wide, gap = 940, 34, 104, 66
    at = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (wide + 12) + 12) / 2
        for x, room in enumerate(row):
            at[room] = (left + x * (wide + 12), 8 + y * gap)
    lines = [
        f'<line x1="{at[a][0] + wide / 2:.0f}" y1="{at[a][1] + high}" '
        f'x2="{at[b][0] + wide / 2:.0f}" y2="{at[b][1] - 2}" stroke="#888" marker-end="url(#tip)"/>'
        for a, b in sorted(needed(pairs))
    ]
    boxes = [
        f'<rect x="{x:.0f}" y="{y}" width="{wide}" height="{high}" rx="4" fill="#eef" '
        f'stroke="#446"/><text x="{x + wide / 2:.0f}" y="{y + 21}" text-anchor="middle">'
        f"{room}</text>"
        for room, (x, y) in at.items()
    ]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="#888"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(rows) * gap}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, tip, *lines, *boxes, "</svg>", ""])


def main() -> int:
    """Draw, and print the faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", nargs="?", type=Path, default=ROOT / "aggml")
    parser.add_argument("--svg", type=Path, help="write the drawing there, and no text")
    args = parser.parse_args()
    found = arrows(imports(args.package), args.package.name)
    if args.svg:
        args.svg.write_text(svg({*found}))
    else:
        for row in reversed(ROWS):
            for room, what in row.items():
                below = sorted(other for a, other in found if a == room)
                if below or any(room == other for _, other in found):
                    print(f"{room:14}{what:44}{' '.join(below)}".rstrip())
    wrong = faults(args.package)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
