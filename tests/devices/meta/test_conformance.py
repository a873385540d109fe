"""A device made of several devices passes aggml.testing, as every device does.

Not here: promises of such devices alone (the other files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice
from aggml.testing import DeviceTests

if TYPE_CHECKING:
    import aggml


class TestTwoSims(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        return MetaDevice([SimDevice("SIM0"), SimDevice("SIM1")])


class TestFourThatAreSlow(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        """Transfers and kernels take time, alignment is large, some ops are missing."""
        return MetaDevice(
            SimDevice(
                f"SLOW{i}",
                latency=20e-6,
                bandwidth=2e9,
                speed=1e9,
                alignment=4096,
                unsupported=["soft_max", "get_rows"],
            )
            for i in range(4)
        )
