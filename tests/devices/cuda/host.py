"""Kernels on the CPU: modules compiled by g++ against the shim, nodes computed in plain memory.

Here: building, running launches, computing graphs node by node. Not here: the shim (shim.h,
shim.cpp), the comparisons (test_kernels.py).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from aggml.devices.cuda.compile import source
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from aggml import Graph, Tensor
    from aggml.devices.cuda.launch import Launch

__all__ = ["FAULT", "FUSED", "USUAL", "Memory", "build_library", "compute", "launch"]

_HERE = Path(__file__).resolve().parent
_BUILD = _HERE.parents[2] / "build" / "cuda-shim"
#: `make check-cuda` sets it to "address,undefined".
_SANITIZE = os.environ.get("AGGML_SHIM_SANITIZE", "")
# -O1, since most of the time goes into compiling. FUSED is added unless a test asks for the
# roundings of the scalar kernels.
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
]
_FLAGS += ["-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wno-unknown-pragmas"]
_FLAGS += ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-const-variable"]
_FLAGS += [f"-I{_HERE}"]
if _SANITIZE:
    _FLAGS += [f"-fsanitize={_SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    # line numbers for the sanitizer's reports; they add a fifth to the time of compiling
    _FLAGS += ["-g"]


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


_PREFIX = '#include "shim.h"\n'
#: Fuses multiply-adds as NVRTC does, if this processor has the instruction.
FUSED: Final = ["-ffp-contract=fast", "-mfma"] if " fma " in _processor() else []
#: One type of weights for each way of unpacking. Compiling a module for another type takes 0.6 s of
#: g++, so sweeps over all types are ``slow``.
USUAL: Final = {"f32", "f16", "bf16", "q4_0", "q5_1", "q8_0", "q4_K", "q6_K", "iq2_xxs", "iq4_nl"}
#: bytes: four int64, flag, index, position, number of rows
FAULT = 32


def _make(path: Path, flags: list[str], text: str = "") -> None:
    """Run the compiler, if nothing has yet; safe to call in parallel."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    subprocess.run(["g++", *flags, "-o", str(part)], input=text.encode(), check=True)
    part.replace(path)


def _key(text: str, flags: list[str]) -> str:
    headers = b"".join((_HERE / f).read_bytes() for f in ("shim.h", "shim.cpp"))
    return hashlib.sha256("\0".join((text, *flags)).encode() + headers).hexdigest()[:16]


@functools.cache
def _parsed_shim(extra: tuple[str, ...]) -> list[str]:
    """The flag by which g++ finds shim.h parsed, which takes 40 % off the time of a module."""
    flags = [*_FLAGS, *extra]
    folder = _BUILD / f"parsed-{_key('', flags)}"
    _make(folder / "shim.h.gch", ["-x", "c++-header", str(_HERE / "shim.h"), *flags, "-w"])
    return [f"-I{folder}"]


def _compiled(name: str, text: str, extra: list[str]) -> Path:
    """A shared library compiled from this text and kept in build/; safe to call in parallel."""
    flags = [*_FLAGS, *extra]
    path = _BUILD / f"{name}-{_key(text, flags)}.so"
    if not path.exists():
        parsed = _parsed_shim(tuple(extra)) if text.startswith(_PREFIX) else []
        _make(path, ["-x", "c++", "-", *parsed, *flags, "-shared"], text)
    return path


@functools.cache
def _shim() -> tuple[Path, Any]:
    path = _compiled("shim", '#include "shim.cpp"\n', ["-fvisibility=default"])
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.shim_launch.restype = ctypes.c_char_p
    return path, library


@functools.cache
def build_library(module: str, *, fused: bool = True) -> Any:
    """The kernels of a module for the CPU. ``fused``: multiply-adds as on a GPU, see `FUSED`.

    Each way of compiling a module takes 0.5 s of g++.
    """
    _shim()
    text, options = source(module)
    # behind the header: g++ takes no parsed header where a word that is in it is defined before
    definitions = [option[2:].split("=") for option in options if option.startswith("-D")]
    lines = "".join(f"#define {' '.join(each)}\n" for each in definitions)
    name = "".join(c if c.isalnum() else "-" for c in module)
    return ctypes.CDLL(str(_compiled(name, _PREFIX + lines + text, FUSED if fused else [])))


def launch(what: Launch, order: int = 0, *, fused: bool = True) -> None:
    """Run a launch. ``order`` of threads and blocks: 0 rising, 1 falling, 2 across, else a seed."""
    library = build_library(what.module, fused=fused)
    kernel = getattr(library, what.kernel)
    size = ctypes.c_uint.in_dll(library, f"{what.kernel}_size").value
    threads = ctypes.c_uint.in_dll(library, f"{what.kernel}_threads").value
    assert len(what.args) == size, f"{what.kernel} takes {size} bytes, not {len(what.args)}"
    assert what.block[0] * what.block[1] * what.block[2] <= threads, what
    three = ctypes.c_uint * 3
    args = (ctypes.c_uint64 * (size // 8)).from_buffer_copy(what.args)  # aligned as a struct is
    error = _shim()[1].shim_launch(
        kernel, args, three(*what.grid), three(*what.block), what.shared, order
    )
    assert error is None, f"{what.kernel}: {error.decode()}"


class Memory:
    """Blocks of memory, each allocated separately: sanitizers notice accesses beyond them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._blocks: list[int] = []

    def take(self, size: int, fill: int = 0xFF) -> int:
        """The address of a new block, aligned to 256. The bytes are ``fill``; 0xFF gives NaN."""
        address = ctypes.c_void_p()
        # rounded up as buffers are: kernels may read the last 16 bytes as a whole
        size = -(-max(size, 1) // 16) * 16
        status = self._libc.posix_memalign(
            ctypes.byref(address), ctypes.c_size_t(256), ctypes.c_size_t(size)
        )
        assert status == 0
        assert address.value is not None
        ctypes.memset(address.value, fill, size)
        self._blocks.append(address.value)
        return address.value

    def close(self) -> None:
        """Free all blocks."""
        for block in self._blocks:
            self._libc.free(block)
        self._blocks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(tensor: Tensor, address: int) -> NDArray[Any]:
    """The elements in logical order, (ne3, ne2, ne1, ne0); blocks of quantized types as bytes."""
    size = max(tensor.nbytes, 1)
    raw = np.frombuffer(ctypes.string_at(address, size), np.uint8)
    dtype = tensor.dtype
    if tensor.is_empty:
        return np.zeros(tensor.ne[::-1], dtype.numpy or np.uint8)
    n0, n1, n2, n3 = tensor.ne
    if dtype.numpy is None:
        shape, nb0 = (n3, n2, n1, dtype.row_size(n0)), 1
        base: NDArray[Any] = raw
    else:
        shape, nb0 = (n3, n2, n1, n0), tensor.nb[0]
        base = np.ndarray((1,), dtype.numpy, raw.tobytes())
    strides = (*tensor.nb[:0:-1], nb0)
    return np.lib.stride_tricks.as_strided(base, shape, strides).copy()


def compute(
    graph: Graph,
    values: Mapping[Tensor, NDArray[Any]],
    wanted: Iterable[Tensor],
    order: int = 0,
    kernels: CudaKernels | None = None,
    *,
    fused: bool = True,
) -> tuple[list[NDArray[Any]], list[int]]:
    """Run a graph node by node. Returns the contents of ``wanted``, and the four fault numbers.

    ``fused``: multiply-adds as on a GPU; without, they round as the scalar kernels of the CPU do.
    """
    kernels = kernels or CudaKernels()
    with Memory() as memory:
        base: dict[Tensor, int] = {}
        for tensor in (*graph.leafs, *graph.nodes, *values):
            if tensor.view_src is None and tensor not in base:
                base[tensor] = memory.take(tensor.nbytes)
        for tensor, value in values.items():
            raw = np.ascontiguousarray(value).tobytes()
            assert len(raw) == tensor.nbytes
            ctypes.memmove(base[tensor], raw, len(raw))

        def address(tensor: Tensor) -> int:
            return base[tensor.root] + tensor.view_offs

        fault = memory.take(FAULT, 0)
        for node in graph.nodes:
            assert kernels.supports(node), f"no kernel for {node!r} of {node.src}"
            scratch = memory.take(kernels.scratch(node))
            n = kernels.counters(node)
            words = memory.take(4 * n, 0) if n else fault
            for each in kernels.launches(node, address, scratch, words):
                launch(each, order, fused=fused)
            # the kernel must leave its counters at 0 for the next one
            assert ctypes.string_at(words, 4 * n) == bytes(4 * n)
        numbers = list((ctypes.c_int64 * 4).from_address(fault))
        return [_read(tensor, address(tensor)) for tensor in wanted], numbers
