"""Backends for the tests of ops: the reference, and one per instruction set.

The sets between the reference and the best one that this machine has are half of the time of these
tests, so they are slow ones: `make test` leaves them out, `make test-all` and the name of a file
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
    # Two threads share chunks even where one would do; the reference runs alone.
    device: Any = aggml.get_device("CPU")  # only its own backend() takes an instruction set
    if request.param == "ref":
        opened = device.backend(n_threads=1, use_ref=True)
    else:
        opened = device.backend(n_threads=2, isa=request.param)
    with opened as be:
        yield be


@pytest.fixture(scope="session")
def any_backend() -> Iterator[aggml.Backend]:
    """The backend a user gets, for what does not depend on the instruction set."""
    device: Any = aggml.get_device("CPU")
    with device.backend(n_threads=2) as be:
        yield be


@pytest.fixture(scope="session")
def by_threads() -> Iterator[list[aggml.Backend]]:
    """The backend a user gets, with 1, 2 and 3 threads."""
    device: Any = aggml.get_device("CPU")
    with (
        device.backend(n_threads=1) as one,
        device.backend(n_threads=2) as two,
        device.backend(n_threads=3) as three,
    ):
        yield [one, two, three]
