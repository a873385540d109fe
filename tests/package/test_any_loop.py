"""No object that lives longer than a call stores a lock, event or the like of one event loop.

Such an object works in the loop in which it was made or used first, and hangs in others. Not here:
that models work in several loops (tests/models/test_any_loop.py).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import aggml

ROOT: Final = Path(aggml.__file__).parent
LIBRARIES: Final = {"anyio", "asyncio", "trio"}
#: Names of these libraries whose objects belong to no loop.
LOOSE: Final = {"Path", "to_thread", "from_thread", "lowlevel", "run", "iscoroutine", "constants"}
#: Objects of these rooms belong to the loop of one server or of one link.
ONE_LOOP: Final = {"serve", "ray", "cli"}
#: Objects that live within one ``async with`` block of one task, or are made for one wait.
WITHIN_A_BLOCK: Final = {"pipeline/running.py", "stream/parker.py"}
#: Known to be wrong, to be mended.
KNOWN: Final = {"scheduler/running/submitter.py"}


def stored(source: str) -> list[tuple[int, str]]:
    """Lines in which an attribute of an object becomes something of an event loop's library."""
    if not any(library in source for library in LIBRARIES):
        return []
    tree = ast.parse(source)
    names = {}  # from anyio import Lock as ...
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        in_class = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not in_class and not any(
            isinstance(part, ast.Attribute)
            for target in targets
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ):
            continue
        for part in ast.walk(value):
            if isinstance(part, ast.Attribute):
                library, name = part.value, part.attr
                if isinstance(library, ast.Name) and library.id in LIBRARIES and name not in LOOSE:
                    found.append((node.lineno, f"{library.id}.{name}"))
            elif isinstance(part, ast.Name) and names.get(part.id, "a") not in {"a", *LOOSE}:
                found.append((node.lineno, part.id))
    return found


FILES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob("*.py")
    if path.relative_to(ROOT).parts[0] not in ONE_LOOP
)


def test_nothing_of_one_loop_is_stored() -> None:
    files = [file for file in FILES if file not in WITHIN_A_BLOCK | KNOWN]
    found = {file: stored((ROOT / file).read_text(encoding="utf-8")) for file in files}
    assert {file: those for file, those in found.items() if those} == {}


def test_exceptions_are_needed() -> None:
    for file in WITHIN_A_BLOCK:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert stored(source) or "trio.lowlevel" in source, file


def test_what_is_stored_is_found() -> None:
    found = stored(
        "from anyio import Lock as L, Semaphore\n"
        "class A:\n"
        "    x: object = field(default_factory=anyio.Event)\n"
        "    def __init__(self):\n"
        "        self.a = anyio.Lock()\n"
        "        self.b: object = L()\n"
        "        self.c, self.d = 1, Semaphore(2)\n"
        "        self.e = {1: asyncio.Queue()}\n"
        "        lock = anyio.Lock()\n"
        "        self.f = anyio.Path('a')\n"
    )
    assert [line for line, _ in found] == [3, 5, 6, 7, 8]
