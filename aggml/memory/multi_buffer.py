"""MultiBuffer: several buffers that are passed around as one.

Here: the calls that such a collection forwards to its parts. Not here: filling the parts
(`BufferType.alloc_tensors`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument, InvalidHandle, InvalidState
from aggml.memory.buffer import Buffer

if TYPE_CHECKING:
    from aggml.tensor import Tensor
    from aggml.tensor.placement import BufferUsage

__all__ = ["MultiBuffer"]


class MultiBuffer(Buffer):
    """Several buffers as one, for tensors that need more bytes than one buffer may have.

    Tensors lie in the parts and have these as their buffer. The size is the sum of the parts, the
    type is that of the first part, the base is 0 (ggml_backend_multi_buffer_alloc_buffer).

    Args:
        parts: at least one.

    Attributes:
        parts: as given.

    Raises:
        InvalidHandle: a part is no buffer.
        InvalidArgument: there are no parts.
    """

    parts: tuple[Buffer, ...] = ()

    def __init__(self, parts: Iterable[Buffer]) -> None:
        if not isinstance(parts, Iterable):
            raise InvalidHandle(f"[MultiBuffer] {parts!r} is no list of buffers")
        self.parts = tuple(parts)
        for part in self.parts:
            if not isinstance(part, Buffer):
                raise InvalidHandle(f"[MultiBuffer] {part!r} is no buffer")
        if not self.parts:
            raise InvalidArgument("[MultiBuffer] parts is empty: give one buffer or more")
        super().__init__(self.parts[0].type, sum(part.size for part in self.parts), 0, None)

    def _hand_on_usage(self) -> None:
        self.set_parts_usage(self._usage)  # tensors lie in the parts

    def set_parts_usage(self, usage: BufferUsage) -> None:
        """Set the usage of each part and leave that of the whole as it is.

        Raises:
            InvalidArgument: it is no BufferUsage.
        """
        for part in self.parts:
            part.usage = usage

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of all parts, one part after the other."""
        return [tensor for part in self.parts for tensor in part.tensors]

    def place(self, tensor: Tensor, offset: int) -> None:
        """Refused: tensors are placed in one of the parts.

        Raises:
            InvalidState: always.
        """
        raise InvalidState(f"[MultiBuffer.place] place {tensor!r} in one of the parts of {self!r}")

    def reset(self) -> None:
        """Reset each part."""
        for part in self.parts:
            part.reset()

    def close(self) -> None:
        """Close each part."""
        super().close()
        for part in self.parts:
            part.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<MultiBuffer {self.name}, {len(self.parts)} parts, {self.size} bytes{state}>"
