"""ggml's utilities: versions, status codes, clocks, log, printing; those that are not needed."""

from __future__ import annotations

import logging
import logging.handlers
import re
import subprocess
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from support import holding, ramp, sum_graph, vector

import aggml
from aggml import Status

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.devices.sim import SimDevice


@pytest.mark.feature("UT-01", "UT-02")
def test_identity_of_the_build() -> None:
    assert aggml.__version__ == version("aggml")
    assert re.fullmatch(r"[0-9a-f]{7,40}|unknown", aggml.__commit__)


@pytest.mark.feature("BE-18", "UT-03")
def test_status_codes() -> None:
    codes = {"ALLOC_FAILED": -2, "FAILED": -1, "SUCCESS": 0, "ABORTED": 1}
    assert {s.name: s.value for s in Status} == codes
    assert len({s.text for s in Status}) == 4
    assert Status.of(None) is Status.SUCCESS
    assert Status.of(aggml.Aborted("x")) is Status.ABORTED
    assert Status.of(aggml.AllocFailed("x")) is Status.ALLOC_FAILED
    assert Status.of(aggml.DeviceError("x")) is Status.FAILED
    assert Status.of(RuntimeError("x")) is Status.FAILED
    with pytest.raises(ValueError, match="7"):
        Status(7)


@pytest.mark.feature("UT-04", "UT-05", "UT-06", "UT-07", "UT-08")
def test_clocks(cpu: aggml.Backend) -> None:
    begin = time.perf_counter()
    future = cpu.synchronize()
    assert future.wait(60)
    assert future.times.done is not None
    assert begin <= future.times.submitted <= future.times.done <= time.perf_counter()
    assert time.monotonic() > 0
    assert time.process_time_ns() > 0
    assert time.get_clock_info("process_time").monotonic


@pytest.mark.feature("UT-09", "UT-10")
async def test_the_log_is_python_s(sim_device: SimDevice, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("aggml")
    handler = logging.handlers.BufferingHandler(100)
    seen = handler.buffer
    log.addHandler(handler)
    try:
        async with sim_device.backend() as be:
            t = holding(be, ramp())
            sim_device.fail_at(0, "transfer")
            be.set(t, ramp())
    finally:
        log.removeHandler(handler)
    assert [record.levelno for record in seen] == [logging.ERROR]
    assert "nobody saw" in seen[0].getMessage()
    # asyncio in debug mode logs slow callbacks; only this package's records are counted.
    assert [r.name for r in caplog.records if r.name.startswith("aggml")] == ["aggml"]


@pytest.mark.feature("UT-11")
def test_what_ggml_aborts_for_raises_and_the_process_lives_on() -> None:
    code = (
        "import aggml\n"
        "be = aggml.get_device('CPU').backend()\n"
        "t = aggml.new_tensor('f32', ne=(4,))\n"
        "try:\n    be.get(t)\nexcept aggml.NotAllocated:\n    print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "alive", "")


@pytest.mark.feature("UT-12", "BE-01")
def test_guids_match_by_value(cpu: aggml.Backend, sim: aggml.Backend) -> None:
    other = cpu.device.backend()
    assert len(cpu.guid.bytes) == 16
    assert cpu.guid == other.guid
    assert cpu.guid is not other.guid
    assert cpu.guid != sim.guid
    other.close()


@pytest.mark.feature("UT-13", "UT-14")
def test_objects_tell_what_they_are(cpu: aggml.Backend) -> None:
    a, b = vector(name="a"), vector(8, name="b")
    buffer = cpu.alloc([a, b])
    assert repr(a) == "<Tensor a f32 [16] placed>"
    assert [t.name for t in buffer.tensors] == ["a", "b"]
    assert "2 tensors" in repr(buffer)
    assert re.fullmatch(r"<Graph \d+: 1 nodes, 2 leafs, for y f32 \[16\]>", repr(sum_graph().graph))


@pytest.mark.feature("UT-15")
def test_paths_are_any_text(tmp_path: Path) -> None:
    path = tmp_path / "Modell-größe-模型.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    for given in (path, str(path)):
        with aggml.GGUFFile.open(given) as file:
            assert not file.tensors
