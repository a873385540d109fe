"""Sides: extra backends that a scheduler opens for transfers and for splits that run concurrently.

Not here: which operation uses which side (layout/script.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.backend import Backend
    from aggml.memory.buffer_type import BufferType

__all__ = ["Sides"]


class Sides:
    """Further backends on the devices of the given ones, opened when first needed.

    The given backends do the computing, so transfers on sides do not wait for it. Host memory needs
    no extra backend for transfers.

    Args:
        backends: those that compute.
        types: of their buffers.

    Attributes:
        opened: by name and index of the backend that they help.
    """

    def __init__(self, backends: Sequence[Backend], types: Sequence[BufferType]) -> None:
        self._backends = backends
        self._types = types
        self.opened: dict[tuple[str, int], Backend] = {}

    def close(self) -> None:
        """Have all of them refuse new work."""
        for side in list(self.opened.values()):
            side.close()

    def __call__(self, name: str, b: int) -> Backend:
        """The backend that carries something out for backend ``b``.

        Args:
            name: "in", "out" (inputs, results), "down", "up" (what crosses devices), "compute 1"
                and so on; "feed" is "in" on a stream of its own also where memory is the host's.
            b: index of the backend.
        """
        computes = name.startswith("compute")
        if self._types[b].is_host and not computes and name != "feed":
            return self._backends[b]
        side = self.opened.get((name, b))
        if side is None:
            backend = self._backends[b]
            side = backend._sibling() if computes else backend.device.backend()
            self.opened[name, b] = side
            side.stream.name = f"{backend.name} {name}"
        return side
