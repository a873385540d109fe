"""A CUDA device passes aggml.testing, as every device does.

Not here: promises of CUDA devices alone (the other files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aggml.testing import DeviceTests

if TYPE_CHECKING:
    import aggml
    from aggml.devices.cuda import CUDADevice


class TestCUDA(DeviceTests):
    @pytest.fixture
    def device(self, device: CUDADevice) -> aggml.Device:
        return device
