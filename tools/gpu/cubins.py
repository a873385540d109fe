"""Compiles every kernel module for one architecture into a folder, named as `Cubins` finds them.

    python tools/gpu/cubins.py build/gpu-cubins 90

Modules that are in the folder already are not compiled again. NVRTC needs no GPU and no driver. Not
here: whether the compiler warns or spills (tests/devices/cuda/cubins.py).
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from aggml.devices.cuda.compile import Cubins, nvrtc_version
from aggml.devices.cuda.lowering import modules

__all__ = ["current", "fill"]


def _compile(folder: str, module: str, arch: str) -> tuple[str, float, int]:
    start = time.monotonic()
    cubin = Cubins(Path(folder), shipped=Path(folder)).get(module, arch)
    return module, time.monotonic() - start, len(cubin)


def current(folder: Path, arch: str) -> list[Path]:
    """The files in the folder that belong to the present sources."""
    cubins = Cubins(folder, shipped=folder)
    found = [sorted(folder.glob(f"{cubins.stem(name, arch)}-nvrtc*.cubin")) for name in modules()]
    return [paths[-1] for paths in found if paths]


def fill(folder: Path, arch: str, processes: int | None = None) -> int:
    """Compile the missing modules; returns how many modules there are."""
    cubins = Cubins(folder, shipped=folder)
    left = [name for name in modules() if cubins.find(name, arch) is None]
    # NVRTC compiles one source at a time in a process.
    width = processes or os.cpu_count() or 1
    with ProcessPoolExecutor(width, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_compile, str(folder), name, arch) for name in left]
        for job in as_completed(jobs):
            module, seconds, size = job.result()
            print(f"{seconds:6.1f} s {size:8} bytes  {module}", flush=True)
    return len(modules())


def main() -> int:
    """Run the command line; returns 0, or 1 if there is no NVRTC."""
    folder, arch = Path(sys.argv[1]), (sys.argv[2:] or ["90"])[0]
    if nvrtc_version() is None:
        print("nvidia-cuda-nvrtc is not installed: pip install 'aggml[cuda]'", file=sys.stderr)
        return 1
    n = fill(folder, arch, int(os.environ.get("JOBS", "0")) or None)
    print(f"{n} cubins for sm_{arch}, NVRTC {nvrtc_version()}, in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
