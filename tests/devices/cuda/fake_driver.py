"""The fake libcuda: building it, loading it in place of the driver, controlling it; its kernels.

Here: `Fake`, which a test process loads before anything asks for a driver; kernels that compute a
node on the CPU. Not here: the driver itself (fake/libcuda.cpp).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aggml.devices.cuda.launch import Gpu, Launch
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml import Tensor
    from aggml.devices.cuda.launch import Address
    from aggml.plan import FusionChain
    from aggml.plan.fusion import Readers

__all__ = ["ON_FAKE", "Fake", "HostKernels", "SimpleKernels", "all_kernels", "built"]

#: Set by test_on_the_fake_driver.py, which runs the tests of device/ without a GPU.
ON_FAKE = os.environ.get("AGGML_TEST_CUDA") == "fake"

_HERE = Path(__file__).resolve().parent / "fake"
_BUILD = _HERE.parents[3] / "build" / "cuda-fake"


@functools.cache
def built(source: str, name: str = "") -> Path:
    """A shared library made of one file of fake/ and kept in build/; safe to call in parallel.

    The headers beside it count as its text: some files include them.
    """
    path = _HERE / source
    compiler = ["g++", "-std=c++17"] if path.suffix == ".cpp" else ["gcc", "-std=gnu11"]
    flags = [*compiler, "-O1", "-g", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra"]
    parts = sorted(_HERE.glob("*.h"))
    text = b"".join(each.read_bytes() for each in (path, *parts))
    key = hashlib.sha256(text + " ".join(flags).encode()).hexdigest()[:16]
    folder = _BUILD / f"{path.stem}-{key}"
    library = folder / (name or f"{path.stem}.so")
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        soname = f"-Wl,-soname,{library.name}"
        subprocess.run([*flags, str(path), soname, "-o", str(part), "-ldl"], check=True)
        part.replace(library)
    return library


class Fake:
    """Controls and counters of the fake driver."""

    def __init__(self) -> None:
        # From here on libcuda.so.1 is this library in this process.
        self._library = ctypes.CDLL(str(built("libcuda.cpp", "libcuda.so.1")), ctypes.RTLD_GLOBAL)
        for name in ("calls", "marked_calls", "counter", "live_blocks", "at_gate"):
            getattr(self._library, f"fake_{name}").restype = ctypes.c_long

    def fail(self, entry: str, code: int, after: int = 0) -> None:
        """Have one call of ``entry`` return ``code``, after ``after`` calls that pass."""
        self._library.fake_fail(entry.encode(), ctypes.c_long(after), code)

    def heal(self) -> None:
        """Forget all faults, also those that persist."""
        self._library.fake_heal()

    def break_device(self, code: int, device: int = 0) -> None:
        """Have every later call on the device return ``code``."""
        self._library.fake_set_sticky(device, code)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Streams of the device do nothing until the block ends."""
        self._library.fake_hold(1)
        try:
            yield
        finally:
            self._library.fake_hold(-1)

    @contextmanager
    def slow(self, entry: str) -> Iterator[None]:
        """Calls of ``entry`` do not return until the block ends, except calls of marked threads."""
        self._library.fake_gate(entry.encode(), 1)
        try:
            yield
        finally:
            self._library.fake_gate(entry.encode(), -1)

    def inside(self, entry: str) -> int:
        """How many threads are in a call of ``entry`` that is held by `slow`."""
        return int(self._library.fake_at_gate(entry.encode()))

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Count the calls of this thread separately."""
        self._library.fake_mark_thread(1)
        try:
            yield
        finally:
            self._library.fake_mark_thread(0)

    def calls(self, entry: str) -> int:
        """How often ``entry`` was called."""
        return int(self._library.fake_calls(entry.encode()))

    def marked_calls(self, entry: str) -> int:
        """How often ``entry`` was called by a marked thread."""
        return int(self._library.fake_marked_calls(entry.encode()))

    def counter(self, name: str) -> int:
        """A counter of the driver: "kernels", "full queue", "pageable", "wild", ..."""
        return int(self._library.fake_counter(name.encode()))

    def reset_counts(self) -> None:
        """Set the counters to 0, except those of live objects."""
        self._library.fake_reset_counts()

    @property
    def live_blocks(self) -> int:
        """How many blocks of memory are not freed."""
        return int(self._library.fake_live_blocks())


_OPS = {"add": 0, "mul": 1, "get_rows": 2, "set_rows": 3, "cont": 4, "dup": 4, "cpy": 4}
_CRASH = 5


def _image(kernels: str, shim: str) -> bytes:
    return f"FAKE:{kernels}\n{shim}\0".encode()


class HostKernels(CudaKernels):
    """The package's own kernels, compiled for the shim; multiply-adds are fused as by NVRTC."""

    def __init__(self, blas: str | None = None, *, tf32: bool = False) -> None:
        super().__init__(blas=blas, gpu=Gpu(overlaps=True), tf32=tf32)

    def module(self, name: str, arch: str) -> bytes:
        """The bytes that the fake driver accepts as a cubin."""
        from devices.cuda import host

        return _image(host.build_library(name)._name, str(host._shim()[0]))


def all_kernels() -> CudaKernels:
    """The package's own kernels, for the fake driver or for a GPU."""
    return HostKernels() if ON_FAKE else CudaKernels()


class SimpleKernels:
    """A `Kernels` of a few ops on f32, each a single launch.

    Attributes:
        crashing: names of nodes at which the device fails.
        compiled: names of modules that were compiled.
        broken: whether compiling modules fails.
    """

    def __init__(self) -> None:
        self.crashing: set[str] = set()
        self.compiled: list[str] = []
        self.broken = False
        self.blas: str | None = None
        self.copies: str | None = None
        self.overlaps = False

    def supports(self, node: Tensor) -> bool:
        """Whether the op is known and all tensors are f32."""
        if node.op not in _OPS or node.dtype.type_name != "f32":
            return False
        sources = [s for s in node.src if s is not None]
        if node.op in ("get_rows", "set_rows"):
            rows, indices = sources[0], sources[1]
            flat = all(n == 1 for t in (rows, indices, node) for n in t.ne[2:])
            return (
                flat
                and rows.dtype.type_name == "f32"
                and indices.dtype.type_name in ("i32", "i64")
                and indices.ne[1] == 1
            )
        return all(s.dtype.type_name == "f32" for s in sources) and (
            node.op in ("add", "mul") or sources[0].ne == node.ne
        )

    def scratch(self, node: Tensor) -> int:
        """A little, so that layouts have to include scratch."""
        return 256 if node.op == "mul" else 0

    def counters(self, node: Tensor) -> int:
        """No kernel needs counters."""
        return 0

    def find(self, node: Tensor, readers: Readers) -> FusionChain | None:
        """There are no chains."""
        return None

    def fits(self, chain: FusionChain) -> bool:
        """No chain fits: each node is computed by itself."""
        return False

    def together(
        self, chain: FusionChain, address: Address, scratch: int, fault: int
    ) -> list[Launch]:
        """Never called, since no chain fits."""
        raise NotImplementedError

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The one launch of a node."""

        def view(tensor: Tensor | None) -> bytes:
            if tensor is None:
                return bytes(72)
            return struct.pack("<Q8q", address(tensor), *tensor.ne, *tensor.nb)

        sources = [*node.src, None, None]
        op = _CRASH if node.name in self.crashing else _OPS[node.op]
        rows = node.op in ("get_rows", "set_rows")
        args = view(node) + view(sources[0]) + view(sources[1])
        args += struct.pack("<qQ", op, fault if rows else 0)
        return [Launch("simple", "simple", (1, 1, 1), (1, 1, 1), 0, args)]

    def module(self, name: str, arch: str) -> bytes:
        """The bytes that the fake driver accepts as a cubin."""
        if self.broken:
            raise RuntimeError("the compiler broke down")
        self.compiled.append(f"{name} {arch}")
        library = str(built("simple.c"))
        return _image(library, library)
