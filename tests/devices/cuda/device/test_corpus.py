"""Every recorded case on a CUDA device, twice: launched, then as a CUDA graph.

Not here: which cases, and how each is compared (../recorded_on_gpu.py), the same cases kernel by
kernel without a device (../test_kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from devices.cuda.fake_driver import HostKernels
from devices.cuda.recorded_on_gpu import ON_FAKE, cases, check

from aggml.devices.cuda import CUDADevice, driver
from aggml.devices.cuda.lowering import CudaKernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpus_loader import Case

    import aggml


@pytest.fixture(scope="module")
def backend() -> Iterator[aggml.Backend]:
    """One backend for all cases: making a context takes tenths of a second."""
    try:
        driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    kernels = HostKernels() if ON_FAKE else CudaKernels()
    opened = CUDADevice(driver.facts(0), kernels).backend()
    yield opened
    opened.close()


@pytest.mark.parametrize("case", cases())
def test_numbers(case: Case, backend: aggml.Backend) -> None:
    device = backend.device
    assert isinstance(device, CUDADevice)
    if device.native.lost is not None:
        pytest.fail("the device was lost in an earlier case: nothing can be said of this one")
    check(case, backend)
