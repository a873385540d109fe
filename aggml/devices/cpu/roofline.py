"""Roofline: the highest speed of this machine, to which kernels and models are compared.

Here: operations per second of each kind of unit, bytes read and copied per second. Not here: the
loops (native/kernels/<isa>/peak.c, native/runtime/roofline.c), the measurements compared with it.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.native import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Roofline"]

MEMORY: Final = 512 << 20  # bytes: more than caches hold
MOMENT: Final = 0.005  # seconds of a sample of a peak
TILES: Final = "amx"
PART: Final = 16 << 20  # bytes that are filled in one go


class Roofline:
    """Measures this machine; each call takes some milliseconds of all threads.

    Args:
        threads: how many threads a call uses if it is not told.
        memory: bytes that `read` reads; more than caches hold.

    Attributes:
        peaks: names of the measurable units: "f32", "bf16", "int8", "bf16 tiles", "int8 tiles".
    """

    def __init__(self, threads: int, memory: int = MEMORY) -> None:
        self.threads = threads
        self._size = memory
        self._memory: NDArray[np.uint8] | None = None
        self._units: dict[str, tuple[str, str]] = {}
        for kernel, isa, _, runs in _native.variants():
            if runs and kernel.startswith("peak_") and kernel != "peak_read":
                kind = kernel.removeprefix("peak_") + (" tiles" if isa == TILES else "")
                self._units.setdefault(kind, (kernel, isa))
        order = ("f32", "bf16", "int8", "bf16 tiles", "int8 tiles")
        self.peaks: list[str] = [name for name in order if name in self._units]

    def peak(self, name: str, threads: int | None = None) -> float:
        """Operations per second of one of ``peaks``; 0 if the processor lacks it."""
        if name not in self._units:
            return 0.0
        return _native.roofline_peak(*self._units[name], threads or self.threads, MOMENT)

    def best(self, kind: str) -> str:
        """The name of the fastest unit for "f32", "bf16" or "int8"."""
        tiles = f"{kind} tiles"
        return tiles if tiles in self.peaks else kind if kind in self.peaks else "f32"

    def read(self, threads: int | None = None) -> float:
        """Bytes per second read from memory; the block is larger than the caches."""
        return _native.roofline_move(None, self._data(), 1, threads or self.threads)

    def copy(self, size: int, threads: int | None = None) -> float:
        """Bytes read and written per second while ``size`` bytes are copied again and again."""
        size = min(size, self._size // 2)
        data, half = self._data(), self._size // 2
        repeats = max(1, (16 << 20) // size)
        return _native.roofline_move(
            data[half : half + size], data[:size], repeats, threads or self.threads
        )

    def _data(self) -> NDArray[np.uint8]:
        """Memory, in huge pages if the system has them, filled so that no two pages are shared."""
        if self._memory is None:
            held = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                held.madvise(mmap.MADV_HUGEPAGE)
            memory = np.frombuffer(held, np.uint8)
            numbers = np.arange(PART, dtype=np.uint8)
            for at in range(0, self._size, PART):
                part = memory[at : at + PART]
                part[:] = numbers[: len(part)]
            self._memory = memory
        return self._memory
