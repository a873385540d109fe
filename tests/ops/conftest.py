"""Backends for the tests of op families: the reference kernels, and one per instruction set at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aggml
from aggml.devices.cpu import isas

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", params=["ref", *isas()])
def backend(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    # Two threads share chunks even where one would do; the reference runs alone.
    device = aggml.get_device("CPU")
    if request.param == "ref":
        opened = device.backend(n_threads=1, use_ref=True)
    else:
        opened = device.backend(n_threads=2, isa=request.param)
    with opened as be:
        yield be


@pytest.fixture(scope="session")
def any_backend() -> Iterator[aggml.Backend]:
    """The backend a user gets, for what does not depend on the instruction set."""
    with aggml.get_device("CPU").backend(n_threads=2) as be:
        yield be
