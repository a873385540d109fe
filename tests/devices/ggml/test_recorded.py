"""Every recorded call of ggml on ggml's own devices, within the bounds of the record.

Not here: the cases and their bounds (tests/ops/recorded.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from devices.ggml import builds
from ops.recorded import check_numbers, graph_cases, recorded_calls

import aggml

if TYPE_CHECKING:
    from aggml.devices.ggml import GgmlDevice

pytestmark = pytest.mark.slow
CASES = [*recorded_calls(), *graph_cases()]


def ran(device: GgmlDevice, cases: list[Any]) -> int:
    """Runs what the device says that it runs; how many cases those were."""
    done = 0
    backend = device.backend(n_threads=1)
    for param in cases:
        try:
            check_numbers(param.values[0], backend)
        except aggml.Unsupported:
            continue
        done += 1
    backend.close()
    return done


def test_on_the_cpu() -> None:
    device = builds.device("CPU")
    assert ran(device, CASES) >= (2300 if builds.newest() else 1000)  # older ones have fewer ops


def test_on_blas() -> None:
    assert ran(builds.device("BLAS"), CASES) >= 20


def test_over_rpc() -> None:
    with builds.server() as (_, devices):
        assert ran(devices[0], CASES) >= 2300
