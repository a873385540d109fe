"""The public functions of ggml's headers, for the map in docs/ggml-api.md.

    python tools/ggml_api.py HEADERS     # reads ggml's include folder, writes the file of names
    python tools/ggml_api.py             # checks docs/ggml-api.md against that file

The file, tests/docs/ggml_functions.json, has names alone, by header. The check fails if a function
has no row, if a row is of no function, or if the counterpart that a row names is not there. Not
here: what differs (the page).
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ggml-api.md"
FUNCTIONS = ROOT / "tests" / "docs" / "ggml_functions.json"
HEADERS = (
    "ggml.h",
    "ggml-alloc.h",
    "ggml-backend.h",
    "ggml-cpu.h",
    "ggml-opt.h",
    "gguf.h",
    "ggml-rpc.h",
    "ggml-cuda.h",
    # those of the other backends
    "ggml-blas.h",
    "ggml-cann.h",
    "ggml-et.h",
    "ggml-hexagon.h",
    "ggml-metal.h",
    "ggml-opencl.h",
    "ggml-openvino.h",
    "ggml-sycl.h",
    "ggml-virtgpu.h",
    "ggml-vulkan.h",
    "ggml-webgpu.h",
    "ggml-zdnn.h",
    "ggml-zendnn.h",
)
#: A counterpart that is missing begins with this word; the reason follows.
NONE = "none:"


def functions(header: str) -> list[str]:
    """The functions that a header declares for users, in order.

    They are those with a GGML_API of some kind before them, and inline functions.
    """
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"GGML_(?:DEPRECATED|ATTRIBUTE_FORMAT)\s*\(", " (", text)
    found: dict[str, None] = {}
    for match in re.finditer(r"\b(?:GGML(?:_BACKEND)?_API|static inline)\b([^;{]*)", text):
        name = re.search(r"\b((?:ggml|gguf)_\w+)\s*\(", match[1])
        if name:
            found.setdefault(name[1])
    return list(found)


def read(folder: Path) -> dict[str, list[str]]:
    """The functions of each header in ggml's include folder."""
    return {name: functions((folder / name).read_text()) for name in HEADERS}


def recorded() -> dict[str, list[str]]:
    """The functions of each header, as they were read last."""
    found: dict[str, list[str]] = json.loads(FUNCTIONS.read_text())
    return found


def rows(page: str) -> dict[str, list[tuple[str, str]]]:
    """For each function that a row begins with, or names in its column of ggml: (here, differs)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if re.match(r"\| [A-Z]{2}-\d\d ", line):
            cells = cells[1:]
        if len(cells) == 3 and (name := re.match(r"`((?:ggml|gguf)_\w+)`", cells[0])):
            found.setdefault(name[1], []).append((cells[1], cells[2]))
    return found


def resolve(path: str) -> object:
    """The object that a dotted path names; the class, if only its instances have the attribute.

    Raises:
        AttributeError, ImportError: there is none.
    """
    parts = path.split(".")
    found: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if i == len(parts) and part in getattr(found, "__annotations__", {}):
            return found  # an attribute that only instances have
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


def faults(page: str, names: dict[str, list[str]]) -> list[str]:
    """What is wrong with the page."""
    told = rows(page)
    found = [
        f"{header}: {name} has no row"
        for header, listed in names.items()
        for name in listed
        if name not in told
    ]
    for name, counterparts in told.items():
        for here, differs in counterparts:
            path = re.fullmatch(r"`([\w.]+)`", here)
            if here.startswith(NONE):
                if len(here) < len(NONE) + 4:
                    found.append(f"{name}: no reason why there is none")
            elif path is None:
                if "::" not in here:
                    found.append(f"{name}: {here} is no name in backquotes and no 'none: reason'")
            else:
                try:
                    resolve(path[1])
                except (AttributeError, ImportError):
                    found.append(f"{name}: {path[1]} does not exist")
            if not differs:
                found.append(f"{name}: the last column is empty")
    return found


def main() -> int:
    """Read the headers if they are given, then check the page; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("headers", nargs="?", type=Path, help="ggml's include folder")
    given = parser.parse_args().headers
    if given is not None:
        FUNCTIONS.write_text(json.dumps(read(given), indent=1) + "\n")
    wrong = faults(PAGE.read_text(), recorded())
    print("\n".join(wrong) or f"{sum(map(len, recorded().values()))} functions, each has its row")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
