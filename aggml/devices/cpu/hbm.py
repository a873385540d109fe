"""High-bandwidth memory, where the machine has some: a host buffer type that uses libmemkind.

Not here: plain host memory (memory/buffer_type.py).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import weakref

from aggml.errors import AllocFailed, InvalidArgument, Unsupported
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HostBufferType
from aggml.tensor.checking import integer

__all__ = ["HBMBufferType", "hbm_buffer_type"]

_ALIGNMENT = 64


class HBMBufferType(HostBufferType):
    """Host memory that libmemkind takes from high-bandwidth nodes.

    Args:
        library: path of libmemkind, or of a library that has the same four functions.

    Raises:
        Unsupported: the library cannot be loaded, or reports that there is no such memory.
    """

    def __init__(self, library: str) -> None:
        super().__init__("CPU_HBM")
        try:
            lib = ctypes.CDLL(library)
            self._alloc, self._free = lib.hbw_posix_memalign, lib.hbw_free
            available = lib.hbw_check_available
        except (OSError, AttributeError) as error:
            raise Unsupported(f"[hbm_buffer_type] {library} is no libmemkind: {error}") from error
        self._alloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        if available() != 0:
            raise Unsupported("[hbm_buffer_type] this machine has no high-bandwidth memory")

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: no memory.
            InvalidArgument: a negative size.
        """
        if integer(size, "size", f"{self.name}.alloc_buffer") < 0:
            raise InvalidArgument(f"[{self.name}] a buffer of {size} bytes: give 0 or more")
        if size == 0:
            return Buffer(self, 0, 0, b"")
        pointer = ctypes.c_void_p()
        if size >= 1 << 63 or self._alloc(ctypes.byref(pointer), _ALIGNMENT, size):
            raise AllocFailed(f"[{self.name}] no memory for {size} bytes")
        address = pointer.value
        assert address is not None
        memory = (ctypes.c_uint8 * size).from_address(address)
        # Work in flight keeps ``memory``; what is left at exit goes with the process.
        weakref.finalize(memory, self._free, address).atexit = False
        return Buffer(self, size, address, memory)


@functools.cache
def hbm_buffer_type() -> HBMBufferType:
    """The buffer type of high-bandwidth memory (ggml_backend_cpu_hbm_buffer_type).

    Raises:
        Unsupported: libmemkind is not installed, or the machine has none.
    """
    library = ctypes.util.find_library("memkind")
    if library is None:
        raise Unsupported("[hbm_buffer_type] libmemkind is not installed")
    return HBMBufferType(library)
