"""The best that the machine can do, measured in the same run as the kernels.

Here: roofline.c, built by the machine's compiler into build/bench, and a table of its figures.
Not here: kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.timing import Row, absolute, median

PART: Final = "roofline"
HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parent / "build" / "bench"
MEMORY: Final = 512 << 20  # bytes, as many as the weights that are streamed
PEAKS: Final = ("f32", "bf16", "int8", "bf16 tiles", "int8 tiles")
MOMENT: Final = 0.005  # seconds of a peak's sample


class RooflineError(Exception):
    """The loops could not be built."""


class Roofline:
    """The loops, loaded.

    Args:
        threads: how many, where a call does not say.

    Raises:
        RooflineError: there is no C compiler, or it refused.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._c = ctypes.CDLL(str(_built()))
        double, text, n, size, pointer = (
            ctypes.c_double,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        for name, result, arguments in (
            ("peak", double, (text, n, double)),
            ("memory", pointer, (size,)),
            ("read", double, (pointer, size, n)),
            ("copy", double, (pointer, pointer, size, n, n)),
        ):
            function = getattr(self._c, f"aggml_bench_{name}")
            function.restype, function.argtypes = result, arguments
        self._memory: int | None = None
        self.peaks = [name for name in PEAKS if self.peak(name) > 0]

    def peak(self, name: str, threads: int | None = None) -> float:
        """Operations per second of one of PEAKS; 0 if the processor lacks it."""
        n = threads or self.threads
        return float(self._c.aggml_bench_peak(name.encode(), n, MOMENT))

    def best(self, kind: str) -> str:
        """The name of the fastest unit for "f32", "bf16" or "int8"."""
        tiles = f"{kind} tiles"
        return tiles if tiles in self.peaks else kind if kind in self.peaks else "f32"

    def read(self, threads: int | None = None) -> float:
        """Bytes per second read from memory, more of it than caches hold."""
        return float(self._c.aggml_bench_read(self._data(), MEMORY, threads or self.threads))

    def copy(self, size: int, threads: int | None = None) -> float:
        """Bytes read and written per second while ``size`` bytes are copied again and again."""
        size = min(size, MEMORY // 2)
        data, repeats = self._data(), max(1, (16 << 20) // size)
        n = threads or self.threads
        return float(self._c.aggml_bench_copy(data + MEMORY // 2, data, size, repeats, n))

    def _data(self) -> int:
        if self._memory is None:
            self._memory = self._c.aggml_bench_memory(MEMORY)
            if not self._memory:
                raise RooflineError(f"no memory for {MEMORY >> 20} MiB")
        return self._memory


def _built() -> Path:
    source = HERE / "roofline.c"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, "-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-shared"]
    command += ["-fPIC", "-pthread"]
    asked = source.read_bytes() + repr((command, os.uname())).encode()
    target = CACHE / f"roofline-{hashlib.sha256(asked).hexdigest()[:12]}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(
                [*command, "-o", str(made), str(source)], check=True, capture_output=True, text=True
            )
        except FileNotFoundError as error:
            raise RooflineError(f"no C compiler: {error}") from error
        except subprocess.CalledProcessError as error:
            raise RooflineError(f"{compiler[0]} refused: {error.stderr.strip()[-300:]}") from error
        made.replace(target)
    return target


def measure(roofline: Roofline, *, quick: bool) -> list[Row]:
    """One row for each figure, with one thread and with all."""
    counts = sorted({1, roofline.threads})
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(3 if quick else 15):
        for n in counts:
            found.setdefault(("read", n), []).append(roofline.read(n))
            for name in roofline.peaks:
                found.setdefault((name, n), []).append(roofline.peak(name, n))
    rows = []
    for (name, n), values in found.items():
        what = "read from memory" if name == "read" else f"{name}, multiply and add"
        unit = "GB/s" if name == "read" else "GOP/s"
        spread: dict[str, Any] = {"least": min(values) / 1e9, "most": max(values) / 1e9}
        plural = "threads" if n > 1 else "thread"
        rows.append(absolute(PART, f"{what}, {n} {plural}", median(values) / 1e9, unit, **spread))
    return rows


def open_roofline(threads: int, missing: list[str]) -> Roofline | None:
    """The loops, or None and a line in ``missing``."""
    try:
        return Roofline(threads)
    except RooflineError as error:
        missing.append(f"rooflines: {error}")
        print(f"no rooflines: {error}", file=sys.stderr)
        return None
