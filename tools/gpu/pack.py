"""Packs all that a machine with a GPU, a driver, Python and numpy, but no network, needs.

    python tools/gpu/pack.py FOLDER --cubins build/gpu-cubins --module OTHER_NATIVE.so

FOLDER gets run.sh, all.tar.xz and their sum. The archive holds this environment's packages as they
are installed here, aggml with its compiled module (and those of other Pythons, ``--module``) and
with the cubins, and the tests, benchmarks and tools of the checkout. Not in the archive: numpy,
which is as large as the rest; the recorded corpus, which is read from the checkout; NVRTC. Not
here: making cubins (cubins.py), using the archive (run.sh, run.py).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import lzma
import shutil
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DISTRIBUTIONS", "pack"]

_ROOT = Path(__file__).resolve().parents[2]
#: Packages whose installed files are packed; the Makefile installs these for the other Python.
DISTRIBUTIONS = (
    "anyio", "click", "idna", "typing_extensions", "trio", "attrs", "sortedcontainers", "outcome",
    "sniffio", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout",
    "hypothesis", "ml_dtypes", "gguf", "pyyaml", "tqdm", "cuda-core", "cuda-bindings",
    "cuda-pathfinder",
)  # fmt: skip
#: Packages of the extra "cuda"; the extra itself would add NVRTC.
_LIMITS = {"cuda-bindings": ">=13.0.3,<14", "cuda-core": ">=1.0,<2"}
_LEFT_OUT = {".pyc", ".pyx", ".pxd", ".pyi", ".a"}
#: Folders of the checkout that are packed, without results, pictures and the corpus.
_TREE = ("tests", "benchmarks", "examples", "tools", "pyproject.toml", "README.md")


def _installed(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a distribution and their names in site-packages, without scripts."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if ".." not in file.parts and path.suffix not in _LEFT_OUT and path.is_file():
            yield path, file.as_posix()


def _package(modules: list[Path]) -> Iterator[tuple[Path, str]]:
    """The files of aggml that a wheel has: Python, kernels, tables, compiled modules; no C."""
    from aggml.native import _native

    for path in sorted((_ROOT / "aggml").rglob("*")):
        inside = path.relative_to(_ROOT)
        native = inside.parts[1] == "native"
        if not path.is_file() or path.suffix in (".pyc", ".so") or "__pycache__" in path.parts:
            continue
        if not (native and path.suffix in (".c", ".h", ".cpp", ".md")):
            yield path, inside.as_posix()
    for module in [Path(_native.__file__), *modules]:
        yield module, f"aggml/native/{module.name}"
    for path, name in _installed("aggml"):
        if ".dist-info/" in name:
            yield path, name


def _tree() -> Iterator[tuple[Path, str]]:
    for name in _TREE:
        top = _ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            inside = path.relative_to(_ROOT)
            left_out = {"__pycache__", "corpus", "results"} & set(inside.parts[:-1])
            if path.is_file() and path.suffix not in (".pyc", ".png", ".so") and not left_out:
                yield path, inside.as_posix()


def pack(folder: Path, cubins: list[Path], modules: list[Path], preset: int = 9) -> int:
    """Write the bundle; returns its size in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    content = {f"site/{name}": path for path, name in _package(modules)}
    for distribution in DISTRIBUTIONS:
        content |= {f"site/{name}": path for path, name in _installed(distribution)}
    content |= {f"tree/{name}": path for path, name in _tree()}
    content |= {f"site/aggml/devices/cuda/cubins/{path.name}": path for path in cubins}
    archive = folder / "all.tar.xz"
    with (
        lzma.open(archive, "wb", preset=preset) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, path in sorted(content.items()):
            tar.add(path.resolve(), name, recursive=False)
        results = tarfile.TarInfo("tree/benchmarks/results")
        results.type, results.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(results)
    shutil.copy(_ROOT / "tools/gpu/run.sh", folder)
    total = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "bundle.sha256").write_text(f"{total}  {archive.name}\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> int:
    """Run the command line; returns 1 if the bundle is larger than ``--most``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", default=_ROOT / "build/gpu-bundle")
    parser.add_argument("--names", action="store_true", help="print what has to be installed")
    parser.add_argument("--cubins", type=Path, help="a folder that cubins.py filled")
    parser.add_argument("--arch", default="90")
    parser.add_argument("--module", type=Path, action="append", default=[], help="of other Pythons")
    parser.add_argument("--preset", type=int, default=9, help="0: fast, 9: small")
    parser.add_argument("--most", type=float, default=20, help="MiB")
    given = parser.parse_args()
    if given.names:
        print(*(f"{name}{_LIMITS.get(name, '')}" for name in DISTRIBUTIONS))
        return 0
    cubins: list[Path] = []
    if given.cubins is not None:
        sys.path.insert(0, str(_ROOT / "tools"))
        from gpu.cubins import current

        from aggml.devices.cuda.lowering import modules

        cubins = current(given.cubins, given.arch)
        if len(cubins) < len(modules()):
            print(f"{len(modules()) - len(cubins)} cubins are missing: run cubins.py")
            return 1
    size = pack(given.folder, cubins, given.module, given.preset) / (1 << 20)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"{given.folder}: {size:.1f} MiB, for Python {python}, {len(cubins)} cubins")
    return 1 if size > given.most else 0


if __name__ == "__main__":
    sys.exit(main())
