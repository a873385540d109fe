"""Two GPUs as one device: aggml.testing, and the recorded cases.

On the fake driver this file runs in a process of its own that has two GPUs. A machine with one GPU
uses it twice. Not here: models (test_several.py), how graphs are divided (tests/devices/meta).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from devices.cuda.fake_driver import HostKernels
from devices.cuda.recorded_on_gpu import ON_FAKE, cases, check

from aggml.devices.cuda import CUDADevice, driver
from aggml.devices.cuda.lowering import CudaKernels
from aggml.devices.meta import MetaDevice
from aggml.testing import DeviceTests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpus_loader import Case
    from devices.cuda.fake_driver import Fake

    import aggml


def _joined(kernels: Any) -> aggml.Device:
    try:
        n = driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    if ON_FAKE:
        assert n == 2
    return MetaDevice(CUDADevice(driver.facts(i % n), kernels) for i in range(2))


class TestTwoGpus(DeviceTests):
    @pytest.fixture
    def device(self, kernels: Any) -> aggml.Device:
        return _joined(kernels)


@pytest.fixture(scope="module")
def together() -> Iterator[aggml.Backend]:
    """One backend for all cases."""
    opened = _joined(HostKernels() if ON_FAKE else CudaKernels()).backend()
    yield opened
    opened.close()


@pytest.mark.parametrize("case", cases())
def test_numbers(case: Case, together: aggml.Backend, request: pytest.FixtureRequest) -> None:
    fake: Fake | None = request.getfixturevalue("fake") if ON_FAKE else None
    check(case, together)
    if fake is not None:
        assert fake.counter("wild") == 0
