"""Which kernels of two builds have the same machine code, and so cannot have become slower.

    python tools/kernel_code.py build/old build/new    # folders with objects, as CMake leaves them

Addresses, names of functions, and the fill between them are left out. Of functions with other code
it prints how many instructions each has in both builds. Not here: how long they take
(benchmarks/), which processor features they need (instructions.py).
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
from pathlib import Path

_FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_LINE = re.compile(r"^\s+[0-9a-f]+:\t(.*)$")
_FILL = re.compile(r"(data16 |cs )*nop|xchg +%ax,%ax")
#: What depends on where code and data lie: targets of jumps, comments and names, distances.
_PLACES = (
    (re.compile(r"^((?:j\w+|call\w*)\s+)[0-9a-f]+\b.*"), r"\1"),
    (re.compile(r"\s*(#.*|<[^>]*>)"), ""),
    (re.compile(r"-?0x[0-9a-f]+\(%rip\)"), "(%rip)"),
)

Code = tuple[str, ...]


def kernels_of(folder: Path) -> dict[tuple[str, str], Code]:
    """The instructions of each function by object and name.

    Args:
        folder: in which the objects of aggml/native/kernels lie, at any depth.

    Raises:
        FileNotFoundError: there are none.
    """
    found: dict[tuple[str, str], Code] = {}
    for path in sorted(folder.rglob("kernels/*/*.o")):
        listing = subprocess.run(
            ["objdump", "-dr", "--no-show-raw-insn", str(path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        code: list[str] = []
        name = ""
        for line in [*listing.splitlines(), "0 <the end>:"]:
            if match := _FUNCTION.match(line):
                if name:
                    found[f"{path.parent.name}/{path.name}", name] = tuple(code)
                code, name = [], match[1]
            elif "R_X86_64_" in line:
                code.append("an address")
            elif (match := _LINE.match(line)) and not _FILL.match(instruction := match[1].strip()):
                for pattern, by in _PLACES:
                    instruction = pattern.sub(by, instruction)
                code.append(instruction)
    if not found:
        raise FileNotFoundError(f"no objects of kernels in {folder}")
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, help="a folder with objects")
    parser.add_argument("new", type=Path, help="another one")
    args = parser.parse_args()
    old, new = kernels_of(args.old), kernels_of(args.new)
    known = collections.Counter(old.values())
    other = {}
    for at, code in new.items():
        if known[code] > 0:
            known[code] -= 1  # a function of the same code under another name is the same one
        else:
            other[at] = code
    for at, code in sorted(other.items()):
        before = f"{len(old[at]):6}" if at in old else "     -"
        print(f"{at[0]:40} {at[1]:40} {before} -> {len(code):6} instructions")
    print(f"{len(new) - len(other)} of {len(new)} functions have the same code, {len(old)} before")


if __name__ == "__main__":
    main()
