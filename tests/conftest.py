"""What all tests share: both event loops, the devices at hand, seeds, hypothesis without a clock.

Not here: the recorded corpus (corpus_loader.py), small graphs and
other helpers (support.py), which tests run alone or are left out (workers.py).
"""

from __future__ import annotations

import asyncio.constants
import asyncio.format_helpers
import gc
import logging
import os
import signal
import sys
import traceback
import zlib
from traceback import FrameSummary, StackSummary
from typing import TYPE_CHECKING, Any, TypeAlias

# Set before numpy is imported, and inherited by the interpreters that tests start. The worker
# threads of OpenBLAS spin while they have nothing to do, which takes 0.1 s of a core at each
# import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Imported here, before trio: trio's random generator has to be registered with hypothesis before
# objects are frozen below.
import hypothesis.strategies
import numpy as np
import pytest
from memory_bound import bound_memory
from support import opened
from workers import Brief, Workers

import aggml
from aggml.devices.cpu import CPUBackend, CPUDevice
from aggml.devices.sim import SimBackend, SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# A shell starts background processes with SIGINT ignored, and children inherit that. Tests that
# interrupt a child with SIGINT would then never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis' deadline for an example, and its limit on making examples, fail on a busy machine.
# Fixed seeds make a failure the same everywhere.
hypothesis.settings.register_profile(
    "aggml",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("aggml")

# asyncio in debug mode notes the stack where each future, task and callback was made: with the
# frames of pytest below, 0.2 ms each, twenty times what the loop itself takes. Three frames are
# enough to name the place; for a coroutine, which only a warning names, one.
STACK_DEPTH = 3
asyncio.constants.DEBUG_STACK_DEPTH = 1  # type: ignore[misc]


def last_frames(f: FrameType | None = None, limit: int | None = None) -> StackSummary:
    """As `traceback.extract_stack`, which also asks the system whether each file has changed.

    All names here are names of the module `traceback`, too.
    """
    found: list[FrameSummary] = []
    at: FrameType | None = f if f is not None else sys._getframe(1)
    while at is not None and (limit is None or len(found) < limit):
        code = at.f_code
        found.append(FrameSummary(code.co_filename, at.f_lineno, code.co_name, lookup_line=False))
        at = at.f_back
    return StackSummary(found[::-1])


# Futures and tasks call this function from C without arguments, and have had it since asyncio was
# imported, so only its code and its defaults can be replaced.
traceback.extract_stack.__code__ = last_frames.__code__
traceback.extract_stack.__defaults__ = last_frames.__defaults__ = (None, STACK_DEPTH)
asyncio.format_helpers.extract_stack = last_frames

#: Functions in C, and how a task goes on.
OF_C = frozenset({"builtin_function_or_method", "TaskStepMethWrapper"})
_check_callback = asyncio.BaseEventLoop._check_callback  # type: ignore[attr-defined]


def check_callback(loop: asyncio.BaseEventLoop, callback: object, method: str) -> None:
    """As asyncio's own, which refuses coroutines, but quick where the callback is one of C.

    Nearly all are: each time that a task goes on.
    """
    if type(callback).__name__ not in OF_C:
        _check_callback(loop, callback, method)


asyncio.BaseEventLoop._check_callback = check_callback  # type: ignore[attr-defined]

AnyDevice: TypeAlias = "CPUDevice | SimDevice"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")
    told = "run all cases of the long tests, as CI does; --all runs them too"
    parser.addoption("--long", action="store_true", help=told)
    told = "one loop for each test of EITHER_LOOP (workers.py), also where its file is named"
    parser.addoption("--one-loop", action="store_true", help=told)
    told = "run the slow tests of this file too; may be given several times"
    parser.addoption("--slow-of", action="append", default=[], metavar="FILE", help=told)
    parser.addini("test_seconds", "a test that takes longer ends its process (watch.py)")


@pytest.hookimpl(optionalhook=True)  # the hook exists only where pytest-xdist is installed
def pytest_xdist_auto_num_workers() -> int:
    """The workers of ``-n auto``: one more than cores, since tests also wait; 8 at most.

    Each takes half a GB.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min((cores or 1) + 1, 8)


def pytest_configure(config: pytest.Config) -> None:
    bound_memory()
    gc.disable()  # until all tests are collected: none of what collection makes is garbage
    config.pluginmanager.register(Workers(config))
    if Brief.serves(config):
        config.pluginmanager.register(Brief())


@hypothesis.given(hypothesis.strategies.none())
def _first_use(_: None) -> None:
    """Make the random generator of this thread: hypothesis does so at its first use."""


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning the tests: a collection of 35,000 takes 1 s."""
    # asyncio logs each callback that took long. That depends on the machine, and the tests of
    # memory would count the log records as leaks.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # Hypothesis warns if `gc.get_referrers` finds no object that holds its random generator, and
    # that function does not see frozen objects. From Python 3.14 on, the dict of the
    # `threading.local` that holds the generator is frozen below even while it is empty. Making the
    # generator first avoids the warning.
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
    """The event loop: each async test runs once on each."""
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
    """The CPU, then the simulated device."""
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
