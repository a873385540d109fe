"""Every device passes aggml.testing: the CPU, the simulated one, the example of a plug-in.

Not here: the suite (aggml/testing/), promises of one device alone (the other files).
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aggml
from aggml.devices.sim import SimDevice
from aggml.testing import DeviceTests

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Transfers and kernels take time, alignment is large, some ops are missing."""
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


@pytest.fixture(scope="module")
def example() -> Iterator[aggml.Family]:
    """Loaded only for this file: other tests look at all devices."""
    loaded = aggml.load(EXAMPLE)
    yield loaded
    gc.collect()
    assert aggml.unload(loaded)


class TestExample(DeviceTests):
    @pytest.fixture
    def device(self, example: aggml.Family) -> aggml.Device:
        return example.device(0)
