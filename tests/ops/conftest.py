"""Backends for the tests of ops: the reference, and one for each instruction set.

On the instruction sets between the reference and the machine's best one these tests spend half of
their time, so those are marked slow: `make test` leaves them out, `make test-all` and naming a file
run them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import aggml
from aggml.devices.cpu import isas

if TYPE_CHECKING:
    from collections.abc import Iterator


def _backends() -> Iterator[Any]:
    *between, best = isas()
    yield from ("ref", best)
    for isa in between:
        yield pytest.param(isa, marks=pytest.mark.slow)


def _opened(name: str) -> aggml.Backend:
    # With two threads each test also covers how chunks are shared, even of small nodes. The
    # reference is run by one thread.
    # not the interface of Device: only the CPU's own backend() accepts an instruction set
    device: Any = aggml.get_device("CPU")
    if name == "ref":
        found: aggml.Backend = device.backend(n_threads=1, use_ref=True)
    else:
        found = device.backend(n_threads=2, isa=name)
    return found


@pytest.fixture(scope="session", params=[*_backends()])
def backend(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    with _opened(request.param) as be:
        yield be


@pytest.fixture(scope="session", params=[*_backends()][1:])
def fusing(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    """As `backend`, without the reference, which computes each node by itself.

    For tests that compare nodes computed together with the same nodes one by one.
    """
    with _opened(request.param) as be:
        yield be


@pytest.fixture(scope="session")
def any_backend() -> Iterator[aggml.Backend]:
    """The backend that a user gets, for results that do not depend on the instruction set."""
    device: Any = aggml.get_device("CPU")
    with device.backend(n_threads=2) as be:
        yield be


@pytest.fixture(scope="session")
def by_threads() -> Iterator[list[aggml.Backend]]:
    """The backend that a user gets, with 1, 2 and 3 threads."""
    device: Any = aggml.get_device("CPU")
    with (
        device.backend(n_threads=1) as one,
        device.backend(n_threads=2) as two,
        device.backend(n_threads=3) as three,
    ):
        yield [one, two, three]
