"""Links the module against the C library of an older system than this one.

CMake calls it in place of the C++ compiler (CMAKE_CXX_LINKER_LAUNCHER), with the command that would
link for this machine. zig has the symbols of each version of glibc, so it links the same objects
for version AGGML_GLIBC. libstdc++ of this compiler goes into the module, whose only symbol for
others is its initialization; libgcc_s stays apart, as it must be one for the whole process.

Not here: compiling, which the compiler of this machine does; wheels (build.py).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

EXPORTS = "{ global: PyInit__native; local: *; };\n"


def runtime(compiler: str, name: str) -> str:
    """Where this compiler has a library of its own."""
    asked = [compiler, f"-print-file-name={name}"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def main(command: list[str]) -> int:
    """Run what ``command`` would, for the older C library."""
    compiler, *rest = command
    if "-shared" not in rest:  # CMake tries the compiler with small programs
        return subprocess.call(command)
    exports = Path("exports.map")
    exports.write_text(EXPORTS)
    zig = [sys.executable, "-m", "ziglang", "cc"]
    target = f"{platform.machine()}-linux-gnu.{os.environ['AGGML_GLIBC']}"
    return subprocess.call(
        [
            *(*zig, "-target", target, f"-Wl,--version-script={exports}", *rest),
            # Parts of glibc that were libraries of their own before 2.34.
            *("-lpthread", "-ldl"),
            runtime(compiler, "libstdc++.a"),
            runtime(compiler, "libgcc_s.so.1"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
