"""The tests for every device, on each backend of ggml that was built: CPU, BLAS, Vulkan, RPC.

They also run on the fake backend of fakes.py, which reveals missing waits for asynchronous work.

Not here: behaviour that only these devices have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from devices.ggml import builds, fakes

from aggml.testing import DeviceTests

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aggml

builds.need()


@pytest.fixture(scope="module")
def served() -> Iterator[aggml.Device]:
    """A device on a server of its own, for all tests of this file."""
    with builds.server() as (_, devices):
        yield devices[0]


class TestCPU(DeviceTests):
    """ggml's CPU backend: host memory, threads of its own."""

    @pytest.fixture
    def device(self) -> aggml.Device:
        return builds.device("CPU")


class TestBLAS(DeviceTests):
    """ggml's BLAS backend: only large products."""

    @pytest.fixture
    def device(self) -> aggml.Device:
        return builds.device("BLAS")


class TestVulkan(DeviceTests):
    """ggml's Vulkan backend, on any driver that is installed: memory of its own."""

    @pytest.fixture
    def device(self) -> aggml.Device:
        return builds.device("Vulkan0")


class TestRPC(DeviceTests):
    """ggml's RPC backend: a server in another process that computes on ggml's CPU."""

    @pytest.fixture
    def device(self, served: aggml.Device) -> aggml.Device:
        return served


class TestFake(DeviceTests):
    """The fake backend: each operation is delayed, and reads its operands after the delay."""

    @pytest.fixture
    def device(self) -> aggml.Device:
        device = fakes.device()
        fakes.delay(100)
        return device
