"""GgmlTarget: the part of a device of ggml that its memory, packed formats, plans and backends use.

Not here: the device itself (device.py), which imports all of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aggml.native import _native
    from aggml.tensor import Tensor

__all__ = ["GgmlTarget"]


class GgmlTarget(Protocol):
    """See above; `GgmlDevice` is the whole."""

    name: str
    native: _native.GgmlDevice

    def question(self, tensor: Tensor) -> _native.GgmlPlan:
        """A native plan of one node, to ask the library about it."""
        ...

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether the library runs a node."""
        ...

    def problem(self, tensor: Tensor) -> str | None:
        """Why the device does not run a node; None: it does."""
        ...
