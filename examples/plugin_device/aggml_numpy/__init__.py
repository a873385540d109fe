"""A device for aggml in pure Python.

Here: the functions that a plug-in exports. Not here: the device (device.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import NumpyDevice, NumpyFamily

if TYPE_CHECKING:
    import aggml

__all__ = ["NumpyDevice", "NumpyFamily", "aggml_backend_init", "aggml_backend_score"]

_family = NumpyFamily()


def aggml_backend_init() -> aggml.Family:
    """The family, the same object each time."""
    return _family


def aggml_backend_score() -> int:
    """How well this one suits the machine, among variants of one family; 0: not at all."""
    return 1
