"""The error message when there is too little memory: which device, how much, for which tensors.

Not here: getting memory (buffer.py and the devices).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import AllocFailed
from aggml.tensor import describe

if TYPE_CHECKING:
    from collections.abc import Collection

    from aggml.tensor import Tensor

__all__ = ["amount", "shortage"]


def amount(size: int) -> str:
    """A number of bytes as text for people: ``17592186044416 bytes (16.0 TiB)``."""
    if size < 1 << 20:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 6)
    return f"{size} bytes ({size / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB)"


def shortage(
    error: AllocFailed, what: str, memory: str, size: int, tensors: Collection[Tensor]
) -> AllocFailed:
    """The exception that names the tensors for which there was no memory; its cause is ``error``.

    Args:
        error: the exception of the device.
        what: the operation, for messages.
        memory: name of the kind of memory.
        size: bytes that were requested.
        tensors: the tensors that needed the memory.
    """
    largest = max(tensors, key=lambda t: t.nbytes, default=None)
    words = f"[{what}] no memory for {amount(size)} of {memory}"
    if largest is not None:
        of = f"the largest of {len(tensors)} tensors is" if len(tensors) > 1 else "for"
        words += f", {of} {describe(largest)} with {amount(largest.nbytes)}"
    found = AllocFailed(f"{words}: {error}")
    found.device = error.device or memory
    found.operation = what
    found.tensor = None if largest is None else largest.name or describe(largest)
    return found
