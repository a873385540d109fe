"""Chips of fast and slow cores, pretended: what the device says of them, the number of threads.

Not here: the speed of each core, and who computes which chunk (tests/native/runtime_cores.c).
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from machines import desktop

import aggml
from aggml.devices.cpu import CoreKinds, CPUDevice
from aggml.native import _native
from aggml.registry.inventory import describe, inventory


def granted() -> float:
    """The processors whose time the cgroup grants."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except OSError:
        return math.inf
    return math.inf if quota == "max" else math.ceil(int(quota) / int(period))


@pytest.mark.parametrize(
    ("usable", "cores", "text"),
    [
        ("0-31", CoreKinds(8, 16), "8 performance and 16 efficiency cores"),
        ("1,20", CoreKinds(1, 1), "1 performance and 1 efficiency cores"),
        ("16-31", CoreKinds(0, 16), "16 efficiency cores"),
        ("16", CoreKinds(0, 1), "1 efficiency core"),
    ],
)
def test_the_description_names_the_kinds_of_cores(
    tmp_path: Path, usable: str, cores: CoreKinds, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desktop(tmp_path, usable):
        device = CPUDevice()
        assert device.cores == cores
        assert device.description.endswith(f", {text}")
        assert device.props.description == device.description
        monkeypatch.setattr("aggml.registry.inventory.list_devices", lambda: [device])
        data = inventory(aggml.LoadReport([]))
        assert data["devices"][0]["description"] == device.description
        assert f", {text}\n" in f"{describe(data)}\n"


@pytest.mark.parametrize("usable", ["0-15", "3"])
def test_nothing_is_said_where_all_usable_cores_are_fast(tmp_path: Path, usable: str) -> None:
    with desktop(tmp_path, usable):
        device = CPUDevice()
        assert device.cores is None
        assert "efficiency" not in device.description


@pytest.mark.parametrize(
    ("usable", "threads"),
    [
        ("0-31", 24),  # fast and slow: each core counts once
        ("0-3,16", 3),
        ("0-15", 16),  # equal cores: each hyperthread counts, as everywhere
        ("16-31", 16),
    ],
)
def test_a_pool_has_a_thread_for_each_core_if_cores_differ(
    tmp_path: Path, usable: str, threads: int
) -> None:
    with desktop(tmp_path, usable):
        assert _native.usable_cpus() == min(threads, granted())
        assert aggml.ThreadPoolParams().n_threads == min(threads, granted())
