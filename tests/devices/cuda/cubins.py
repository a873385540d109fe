"""Every kernel module for every architecture: no warning, no spill. NVRTC needs no driver.

Here: checking one module, or all. Those that passed are noted in build/, by the module's text and
the compiler's version: an interrupted run goes on where it stopped, and a later run compiles only
modules that changed. ``python -m devices.cuda.cubins --help``. Not here: kernels that run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from aggml.devices.cuda.compile import compile_module, nvrtc_version, source
from aggml.devices.cuda.lowering import modules

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ARCHS", "Job", "check", "problems"]

ARCHS = ("75", "80", "90", "100", "120")
#: a module and an architecture
Job = tuple[str, str]
_NOTES = Path(__file__).resolve().parents[3] / "build" / "cuda-cubins"


def problems(job: Job) -> list[str]:
    """The compiler's warnings and errors for a module, and spills; empty if there are none."""
    module, arch = job
    log = compile_module(module, arch).log
    lines = [line for line in log.splitlines() if re.search(r"warning|error", line)]
    # Launches ask for up to 48 KiB of dynamic shared memory, and static shared memory would add to
    # it.
    if re.search(r"^\s*SHARED\(", source(module)[0], re.MULTILINE):
        lines += [line for line in log.splitlines() if re.search(r"[1-9]\d* bytes smem", line)]
    lines += [
        line
        for line in re.findall(r".*spill.*", log)
        if not re.search(r" 0 bytes spill stores, 0 bytes spill loads", line)
    ]
    return [f"{module} sm_{arch}: {line}" for line in lines]


def _note(job: Job) -> Path:
    module, arch = job
    text, options = source(module)
    key = hashlib.sha256("\0".join((text, *options, str(nvrtc_version()))).encode())
    return _NOTES / f"{re.sub(r'[^0-9A-Za-z]+', '-', module)}-sm{arch}-{key.hexdigest()[:16]}"


def check(
    jobs: Iterable[Job], processes: int | None = None, seconds: float | None = None
) -> tuple[list[str], int]:
    """Compile all modules that have not passed yet, one at a time in each process.

    Args:
        jobs: compiled in this order.
        processes: how many; None: one for each core. NVRTC serialises within a process.
        seconds: after this time no further module is begun.

    Returns:
        The problems found, and how many jobs were not reached.
    """
    _NOTES.mkdir(parents=True, exist_ok=True)
    left = [job for job in jobs if not _note(job).exists()]
    found: list[str] = []
    end = None if seconds is None else time.monotonic() + seconds
    reached = 0
    width = processes or os.cpu_count() or 1
    with ProcessPoolExecutor(width, mp_context=get_context("spawn")) as pool:
        for first in range(0, len(left), 4 * width):
            if end is not None and time.monotonic() > end:
                break
            some = left[first : first + 4 * width]
            futures = {pool.submit(problems, job): job for job in some}
            for future in as_completed(futures):
                lines = future.result()
                reached += 1
                found += lines
                if not lines:
                    _note(futures[future]).touch()
    return found, len(left) - reached


def main() -> int:
    """The exit status. 0: no problems; 1: some; 2: time was up before the end."""
    parser = argparse.ArgumentParser(prog="python -m devices.cuda.cubins", description=__doc__)
    parser.add_argument("--archs", default=",".join(ARCHS), help="such as 90,100")
    parser.add_argument("--only", default="", help="modules that begin so")
    parser.add_argument("--jobs", type=int, help="processes; a core each if not given")
    parser.add_argument("--seconds", type=float, help="begin nothing after so many; run again then")
    given = parser.parse_args()
    if nvrtc_version() is None:
        sys.stderr.write("nvidia-cuda-nvrtc is not installed: pip install 'aggml[cuda]'\n")
        return 1
    names = [name for name in modules() if name.startswith(given.only)]
    jobs = [(name, arch) for arch in given.archs.split(",") for name in names]
    start = time.monotonic()
    known = sum(_note(job).exists() for job in jobs)
    found, left = check(jobs, given.jobs, given.seconds)
    took = time.monotonic() - start
    sys.stdout.writelines(f"{line}\n" for line in sorted(found))
    sys.stdout.write(
        f"{len(names)} modules for sm_{given.archs}, NVRTC {nvrtc_version()}: {len(jobs)} cubins, "
        f"{known} known from before, {len(jobs) - known - left} compiled in {took:.0f} s, "
        f"{left} not reached, {len(found)} complaints\n"
    )
    return 1 if found else 2 if left else 0


if __name__ == "__main__":
    sys.exit(main())
