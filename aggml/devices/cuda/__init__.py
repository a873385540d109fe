"""CUDA devices on cuda-python: what is usable where a driver and a GPU are at hand.

Here: what the registry asks for. Not here: cuda-python (driver.py), the seam between kernels and
streams (launch.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.driver import Missing, probe

if TYPE_CHECKING:
    from aggml.family import Family

__all__ = ["aggml_backend_init"]


def aggml_backend_init() -> Family:
    """The family, for the registry.

    Raises:
        Missing: packages, the driver, or a device.
    """
    probe()
    raise Missing("[cuda] there is a device, but aggml has no backend for it yet")
