"""Functions that take raw addresses and trust the caller: a wrong one ends the process, or worse.

Here: the only functions of the package that take addresses. Not here: memory of Python objects,
which `Device.buffer_from_host` wraps safely.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument, OutOfBounds
from aggml.registry import get_device
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.backend.backend import Device
    from aggml.memory.buffer import Buffer

__all__ = ["buffer_from_ptr", "c_function"]


def buffer_from_ptr(
    address: int, size: int, *, keep: object = None, device: Device | None = None
) -> Buffer:
    """Wrap host memory that the caller owns (ggml_backend_cpu_buffer_from_ptr).

    Nothing can check that the memory exists and may be written. The caller guarantees that, until
    buffer, tensors and queued work are gone.

    Args:
        address: of the first byte, a multiple of 2. Tensors in it lie at multiples of their
            `DType.alignment`.
        size: bytes.
        keep: an object that is kept alive as long as the buffer, such as the owner of the memory.
        device: the device that will use the memory; the CPU if not given.

    Raises:
        InvalidHandle: an argument is no integer.
        InvalidArgument: the address is 0, or a number is negative.
        OutOfBounds: beyond the end of the address space.
        Misaligned: the address is odd.
        Unsupported: the device cannot use host memory.
    """
    address = integer(address, "address", "buffer_from_ptr")
    size = integer(size, "size", "buffer_from_ptr")
    if address <= 0 or size < 0:
        raise InvalidArgument(
            f"[buffer_from_ptr] address={address:#x}, size={size}: give an address above 0 and 0 "
            "or more bytes"
        )
    if address + size > (1 << 63) - 1:
        raise OutOfBounds(f"[buffer_from_ptr] {size} bytes from {address:#x} on go beyond 2^63 - 1")
    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.keep = keep  # type: ignore[attr-defined]
    return (get_device("CPU") if device is None else device).buffer_from_host(memory)


def c_function(address: int) -> Callable[..., None]:
    """The C function at an address, for `aggml.ops.map_custom1` and the other custom ops.

    Nothing can check that a function lies there, with the signature that ggml's header gives.

    Raises:
        InvalidHandle: ``address`` is no integer.
        InvalidArgument: ``address`` is not within 1..2^63 - 1.
    """
    address = integer(address, "address", "c_function")
    if not 0 < address < 1 << 63:
        raise InvalidArgument(f"[c_function] address={address:#x} is not within 1..2^63 - 1")
    function: Callable[..., None] = ctypes.CFUNCTYPE(None)(address)
    return function
