"""Every device passes aggml.testing: the CPU, the simulated one, the example of a plug-in.

Not here: the suite (aggml/testing/), what only one kind of device promises (the other files).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aggml
from aggml.devices.sim import SimDevice
from aggml.testing import DeviceTests

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin_device" / "aggml_numpy"


class TestCPU(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        return aggml.get_device("CPU")


class TestSim(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        return SimDevice("SIM")


class TestSimThatIsSlowAndPicky(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        """Transfers take time, kernels too, alignment is wide, some ops are missing."""
        return SimDevice(
            "SLOW",
            latency=20e-6,
            bandwidth=2e9,
            speed=1e9,
            alignment=4096,
            unsupported=["soft_max", "get_rows"],
        )


class TestSimThatReadsHostMemory(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        return SimDevice("UNIFIED", reads_host=True)


class TestExample(DeviceTests):
    @pytest.fixture
    def device(self) -> aggml.Device:
        return aggml.load(EXAMPLE).device(0)
