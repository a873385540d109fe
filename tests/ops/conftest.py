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


@pytest.fixture(scope="session", params=[*_backends()])
def backend(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    # With two threads each test also covers how chunks are shared, even of small nodes. The
    # reference is run by one thread.
    # not the interface of Device: only the CPU's own backend() accepts an instruction set
    device: Any = aggml.get_device("CPU")
    if request.param == "ref":
        opened = device.backend(n_threads=1, use_ref=True)
    else:
        opened = device.backend(n_threads=2, isa=request.param)
    with opened as be:
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
