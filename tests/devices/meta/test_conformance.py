"""A device made of devices passes aggml.testing, as every device does.

Not here: what only such a device promises (the other files).
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
        """Transfers take time, kernels too, alignment is wide, some ops are missing."""
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
