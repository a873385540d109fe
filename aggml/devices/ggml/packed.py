"""Memory in which a library chooses the layout of weights: ggml's CPU_REPACK, split buffers.

Here: the buffer types and their buffers. `Backend.set` writes a whole tensor, and the library packs
or divides it while writing. Only products can read it; the library reports which ones. Rows divided
between devices can be read back, packed weights cannot. Not here: writing (native/ggml/transfer.c),
plain memory (memory.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.ggml.memory import result_of
from aggml.errors import AllocFailed, Unsupported
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import BufferType
from aggml.ops import mul_mat, mul_mat_id
from aggml.tensor import new_tensor

if TYPE_CHECKING:
    from aggml.devices.ggml.target import GgmlTarget
    from aggml.native import _native
    from aggml.tensor import Tensor

__all__ = ["PackedType", "packed_place"]


class PackedType(BufferType):
    """One packed format of one device, or rows divided between several (`split`).

    Args:
        device: the device that has the format.
        index: number of the format on that device.
        name: ggml's name of the buffer type.
        alignment: of tensors, in bytes.
        split: whether rows are divided between devices, and so can be read back.
    """

    def __init__(
        self, device: GgmlTarget, index: int, name: str, alignment: int, split: bool = False
    ) -> None:
        self.name = f"{device.name}:{name}"
        self.device = device
        self.alignment = alignment
        self.owner = device
        self.split = split
        self._index = index

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that the library reports for a tensor in this format."""
        size = result_of(self.owner.native.extra_size(self._index, tensor.dtype.value, tensor.ne))
        return max(tensor.nbytes, int(size))

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: no memory.
        """
        n = self.checked_size(size)
        if n == 0:
            return Buffer(self, 0, 0, None)
        try:
            native = result_of(self.owner.native.alloc_extra(n, self._index))
        except AllocFailed as error:
            raise AllocFailed(f"[{self.name}] no memory for {n} bytes: {error}") from error
        return _PackedBuffer(self, n, native.base, native)

    def takes(self, weights: Tensor) -> bool:
        """Whether the library can pack such a tensor in a buffer of this type."""
        n, rows, experts, _ = weights.ne
        if experts == 1:
            return self.owner.supports_op(mul_mat(weights, new_tensor("f32", ne=(n, 1))))
        ids = new_tensor("i32", ne=(1, 1))
        return rows > 0 and self.owner.supports_op(
            mul_mat_id(weights, new_tensor("f32", ne=(n, 1, 1)), ids)
        )


class _PackedBuffer(Buffer):
    """A buffer that tells the library about each tensor before it is written."""

    def init_tensor(self, tensor: Tensor) -> None:
        """Tell the library which tensor was placed.

        Raises:
            Unsupported: the library does not pack tensors of that type and shape.
        """
        place = tensor.placement
        assert place is not None
        native: _native.GgmlBuffer = self.memory  # type: ignore[assignment]
        error = native.declare(place.offset, tensor.dtype.value, tensor.ne)
        if error is not None or not self.type.takes(tensor):
            told = f": {error.text}" if error is not None else ""
            raise Unsupported(f"[{self.name}] the library cannot pack {tensor!r}{told}")


def packed_place(tensor: Tensor) -> int:
    """The address of a tensor in a packed format; 0 for every other tensor."""
    place = tensor.root.placement
    if place is None or not isinstance(place.buffer.type, PackedType):
        return 0
    return place.buffer.base + place.offset + tensor.view_offs
