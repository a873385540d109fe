"""What all tests share: both event loops, the devices at hand, seeds, hypothesis without a clock.

Not here: the recorded corpus (corpus_loader.py), small graphs and
other helpers (support.py), which tests run alone or are left out (workers.py).
"""

from __future__ import annotations

import asyncio.constants
import gc
import logging
import os
import signal
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

# Before numpy, also of the interpreters that tests start: the threads of its products spin for work
# while nobody has any, which takes 0.1 s of a core from each import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis.strategies  # before trio, which registers with it what is not frozen yet
import numpy as np
import pytest
from support import opened
from workers import Brief, Workers

import aggml
from aggml.devices.cpu import CPUBackend, CPUDevice
from aggml.devices.sim import SimBackend, SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a shell runs in the background ignores it, children of tests too: they would not end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline per example, and one for making examples, fail on a busy machine. Fixed seeds make a
# failure the same everywhere.
hypothesis.settings.register_profile(
    "aggml",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("aggml")

# asyncio in debug mode notes where each callback was made. One frame of ten is enough to name it:
# they took up to a tenth of a test.
setattr(asyncio.constants, "DEBUG_STACK_DEPTH", 1)  # noqa: B010 Final, for type checkers

AnyDevice: TypeAlias = "CPUDevice | SimDevice"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")
    parser.addini("test_seconds", "a test that takes longer ends its process (watch.py)")


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is not installed
def pytest_xdist_auto_num_workers() -> int:
    """For ``-n auto``: one more than cores, since tests also wait; each takes half a GB."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min((cores or 1) + 1, 8)


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: they are kept anyway
    config.pluginmanager.register(Workers(config))
    if Brief.serves(config):
        config.pluginmanager.register(Brief())


@hypothesis.given(hypothesis.strategies.none())
def _first_use(_: None) -> None:
    """Hypothesis makes its random numbers when it is first used, for each thread."""


def pytest_collection_finish() -> None:
    """Keep the tests themselves from the collector: with 35,000 a full collection takes 1 s."""
    # That a callback took long is a matter of the machine, and its record counts as memory left.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # Hypothesis warns if no object that the collector looks through refers to its random numbers,
    # and it looks through nothing frozen. The dict of the `threading.local` where they lie is
    # frozen with the rest, empty or not, from Python 3.14 on; so they are made before.
    _first_use()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"debug": True}), id="asyncio"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each async test runs once per loop."""
    loop: tuple[str, dict[str, Any]] = request.param
    return loop


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Fixed for each test, printed so that a failure can be repeated by hand."""
    value = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {value}")  # noqa: T201 pytest shows it with the failure
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def cpu_device() -> CPUDevice:
    device = aggml.get_device("CPU")
    assert isinstance(device, CPUDevice)
    return device


@pytest.fixture
def sim_device() -> SimDevice:
    return SimDevice("SIM")


@pytest.fixture
def cpu(cpu_device: CPUDevice) -> Iterator[CPUBackend]:
    yield from opened(cpu_device.backend(n_threads=2))


@pytest.fixture
def sim(sim_device: SimDevice) -> Iterator[SimBackend]:
    yield from opened(sim_device.backend())


@pytest.fixture(params=["cpu", "sim"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    """Every device present, one after the other."""
    found: AnyDevice = request.getfixturevalue(f"{request.param}_device")
    return found


@pytest.fixture
def be(device: AnyDevice) -> Iterator[aggml.Backend]:
    """An open backend of `device`."""
    yield from opened(device.backend())


@pytest.fixture
def other(device: AnyDevice) -> Iterator[aggml.Backend]:
    """A second open backend of the same device."""
    yield from opened(device.backend())
