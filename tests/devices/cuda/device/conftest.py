"""Where these tests run: on the fake driver (test_on_the_fake_driver.py asks for it), or on a GPU.

``pytest -m gpu`` runs them on the first GPU of this machine, and says what is missing without one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import opened

from aggml.devices.cuda import CUDADevice, driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devices.cuda.fake_driver import Fake, SimpleKernels

    import aggml

ON_FAKE = os.environ.get("AGGML_TEST_CUDA") == "fake"
_fake: Fake | None = None
if ON_FAKE:
    from devices.cuda.fake_driver import Fake as _Fake

    _fake = _Fake()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore these files if there is no GPU, no fake driver, and nobody asked for a GPU."""
    asked = "gpu" in str(config.getoption("markexpr"))
    here = ON_FAKE or asked or Path("/dev/nvidiactl").exists()
    return None if here or collection_path.suffix != ".py" else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:  # for all 42,000 tests: comparing parents of their paths would take 1 s
        if os.fspath(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """The fake driver; after the test all its faults are forgotten."""
    if _fake is None:
        pytest.skip("needs the fake driver: a GPU cannot be told to fail or to wait")
    _fake.reset_counts()
    yield _fake
    _fake.heal()


@pytest.fixture
def counts() -> Fake | None:
    """The fake driver, to look at its counters. None on a GPU, where a test skips those checks."""
    if _fake is not None:
        _fake.reset_counts()
    return _fake


@pytest.fixture
def kernels() -> Any:
    """The device's kernels: on the fake driver a few that run on the host, on a GPU all."""
    if ON_FAKE:
        from devices.cuda.fake_driver import SimpleKernels

        return SimpleKernels()
    from aggml.devices.cuda.lowering import CudaKernels

    return CudaKernels()


@pytest.fixture
def simple(kernels: Any, fake: Fake) -> SimpleKernels:
    """The few kernels of the fake driver, which can be told to fail."""
    return kernels  # type: ignore[no-any-return]


@pytest.fixture
def device(kernels: Any) -> CUDADevice:
    """A device object of the first GPU, which no other test uses."""
    try:
        driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    return CUDADevice(driver.facts(0), kernels)


@pytest.fixture
def be(device: CUDADevice) -> Iterator[aggml.Backend]:
    """An open backend of `device`."""
    yield from opened(device.backend())


@pytest.fixture
def other(device: CUDADevice) -> Iterator[aggml.Backend]:
    """A second open backend of `device`."""
    yield from opened(device.backend())
