"""Probes 24 to 27: names, parameters, plug-ins that do not fit, thread pools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from registry.plugins import FakeFamily, write
from support import ramp, sum_on

import aggml
from aggml import DeviceType, ThreadPool, ThreadPoolParams
from aggml.registry.table import table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Restore the registry after each probe."""
    aggml.list_devices()
    entries, sources, results = table.entries[:], dict(table.sources), dict(table.results)
    yield
    table.entries[:] = entries
    for kept, before in ((table.sources, sources), (table.results, results)):
        kept.clear()
        kept.update(before)  # type: ignore[arg-type]


async def test_probe_24_the_best_device_and_names() -> None:
    family = FakeFamily("PROBE", 2)
    igpu, gpu = family.devices
    igpu.type, gpu.type = DeviceType.IGPU, DeviceType.GPU
    before = aggml.best_device()
    aggml.register_family(family)
    if before.type is DeviceType.CPU:
        assert aggml.best_device() is gpu
    assert aggml.get_device("probe1") is aggml.get_device("PROBE1") is gpu
    assert aggml.get_device(type="igpu") is igpu
    for name in ("PROBE9", "", "SIM-NOTHING"):
        with pytest.raises(aggml.InvalidArgument):
            aggml.get_device(name)


async def test_probe_25_a_name_and_parameters() -> None:
    assert aggml.split_backend_text("name:par:ams") == ("name", "par:ams")
    assert aggml.split_backend_text("name") == ("name", "")
    with pytest.raises(aggml.InvalidArgument):
        aggml.split_backend_text(":params")
    family = FakeFamily("PROBE")
    aggml.register_family(family)
    async with aggml.init_backend("probe0:a:b=c") as be:
        assert be.device is family.devices[0]
        assert family._devices[0].seen == "a:b=c"


async def test_probe_26_plug_ins_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(aggml.BackendLoadError, match="version"):
        aggml.load(write(tmp_path, "aggml_old.py", name="OLD", version=99))
    family = aggml.load(write(tmp_path, "aggml_probe.py", name="PROBE"))
    backend = family.device(0).backend()
    with pytest.raises(aggml.InvalidState):
        aggml.unload(family)
    await backend.aclose()
    del backend
    aggml.unload(family)
    with pytest.raises(aggml.InvalidArgument):
        aggml.get_device("PROBE0")


async def test_probe_27_thread_pools() -> None:
    params = ThreadPoolParams(2)
    assert params.matches(replace(params, paused=True))
    assert not params.matches(replace(params, poll=0))
    pool = ThreadPool(2)
    async with aggml.get_device("CPU").backend(pool=pool) as be:  # type: ignore[call-arg]
        s = sum_on(be)
        pool.pause()
        assert pool.paused
        pool.pause()
        run = s.run(be, ramp(), ramp())
        assert np.array_equal(await run, 2 * ramp())  # submitting a run resumes a paused pool
