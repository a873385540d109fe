"""Compiles the C sources for systems that the package does not support yet: `make check-systems`.

zig has their headers. So this shows how far a port has come, file by file: it compiles the portable
files, and for macOS those of Arm's instruction sets. Nothing is linked, and nothing runs. Not here:
the binding, which needs the system's Python; wheels (build.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "aggml" / "native"
#: The rooms of CMakeLists.txt.
ROOMS = (
    "table", "formats", "kernels/scalar", "lower", "lower/attention", "lower/mul_mat", "runtime",
    "cuda", "ggml",
)  # fmt: skip
#: zig's names for the flags in isas.def.
NEON = {
    "kernels/neon": [],
    "kernels/dotprod": ["-mcpu=generic+v8_2a+dotprod"],
    "kernels/i8mm": ["-mcpu=generic+v8_2a+dotprod+i8mm"],
}
SYSTEMS: dict[str, dict[str, list[str]]] = {
    "aarch64-macos": {room: [] for room in ROOMS} | NEON,
    "x86_64-windows-gnu": {room: [] for room in ROOMS},
}


def compile_file(system: str, file: Path, flags: list[str], to: str) -> str:
    """The first error; "" if there is none."""
    name = "-".join(file.relative_to(NATIVE).parts)
    command = [
        *(sys.executable, "-m", "ziglang", "cc", "-target", system, "-std=c11", "-D_GNU_SOURCE="),
        *(*flags, f"-I{NATIVE}", "-c", str(file), "-o", str(Path(to, name + ".o"))),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    return lines[0] if lines else done.stderr.strip() or f"{file}: status {done.returncode}"


def main() -> int:
    """Compile for the systems that are named; 1 if a file failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help="default: all of them")
    systems = parser.parse_args().systems or list(SYSTEMS)
    if unknown := set(systems) - SYSTEMS.keys():
        parser.error(f"{sorted(unknown)}: expected some of {sorted(SYSTEMS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as to, ThreadPoolExecutor(os.cpu_count()) as pool:
        for system in systems:
            tasks = [
                pool.submit(compile_file, system, file, flags, to)
                for room, flags in SYSTEMS[system].items()
                for file in sorted(NATIVE.joinpath(room).glob("*.c"))
            ]
            errors = [task.result() for task in tasks]
            print(*filter(None, errors), sep="\n")
            print(f"{system}: {errors.count('')} of {len(errors)} files compile")
            failed += len(errors) - errors.count("")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
