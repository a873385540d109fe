"""A device for aggml in pure Python.

Here: the functions that aggml's registry calls. Not here: the device (device.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import NumpyDevice, NumpyFamily

if TYPE_CHECKING:
    import aggml

__all__ = ["NumpyDevice", "NumpyFamily", "aggml_backend_init", "aggml_backend_score"]

_family = NumpyFamily()


def aggml_backend_init() -> aggml.Family:
    """The family; the same object at each call."""
    return _family


def aggml_backend_score() -> int:
    """How well this plug-in suits the machine, among variants of a family; 0: not at all."""
    return 1
