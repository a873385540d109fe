"""benchmarks.gpu runs from end to end; on the fake driver its figures mean nothing.

Not here: figures.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import anyio
import pytest
from devices.cuda.fake_driver import HostKernels

from aggml.devices.cuda import CUDADevice, driver
from benchmarks import gpu, gpu_faults
from benchmarks.gpu_tools import by_difference
from benchmarks.timing import Row, absolute, table

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake, SimpleKernels


@pytest.mark.timeout(300)
def test_all_parts_are_measured(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """With the package's own kernels, so that the table has every row that a GPU gives."""
    missing: list[str] = []
    device = CUDADevice(driver.facts(0), HostKernels())
    told: list[Row] = []
    rows = gpu.measure(device, quick=True, missing=missing, found=told.append)
    assert told == rows
    assert Counter(row.part for row in rows) == {
        "transfers": 5,
        "overlap": 1,
        "latency": 2,  # one for asyncio, one for trio
        "relaunch": 2,
        "kernels": 7,  # mat-vec of four types, GEMM twice, attention
        "decode": 6,  # three types, each with one sequence and with eight
        "soak": 2,
    }
    assert all(row.value > 0 for row in rows)
    assert all("PyTorch" in line or "cuBLASLt" in line for line in missing), missing
    assert len({row.what for row in rows}) == len(rows)
    assert table(rows)
    assert all(row.as_json() for row in rows)
    assert fake.counter("pageable") == 0


async def test_what_a_submission_costs_by_itself_is_not_in_a_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmarks.gpu_tools.time.perf_counter", lambda: clock[0])

    async def submit(depth: int) -> None:
        clock[0] += 60 + depth

    assert await by_difference(3, submit) == 1


def test_a_part_that_fails_is_told_and_the_next_one_is_measured(
    device: CUDADevice, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> list[Row]:
        raise ValueError("unheard of")

    async def works(*_: object, **__: object) -> list[Row]:
        return [absolute("soak", "something", 1.0, "1/s")]

    for name in ("transfers", "overlap", "latency", "relaunch", "kernels", "decode"):
        monkeypatch.setattr(gpu, name, fails)
    monkeypatch.setattr(gpu, "soak", works)
    missing: list[str] = []
    assert len(gpu.measure(device, quick=True, missing=missing)) == 1
    assert missing[0] == "transfers, asyncio: ValueError: unheard of"
    assert len(missing) == 7


def test_failures_are_checked(simple: SimpleKernels, fake: Fake) -> None:
    simple.crashing.add(gpu_faults.WILD)
    assert anyio.run(gpu_faults.check, CUDADevice(driver.facts(0), simple)) == []


def test_a_failure_that_does_not_come_is_told(simple: SimpleKernels, fake: Fake) -> None:
    wrong = anyio.run(gpu_faults.check, CUDADevice(driver.facts(0), simple))
    assert "the one that failed did not fail" in wrong


def test_the_process_of_its_own_is_started(device: CUDADevice, fake: Fake) -> None:
    missing: list[str] = []
    (row,) = gpu.faults(device, missing)
    assert row.value == 0  # none, since that process has no fake driver
    assert "there is no NVIDIA driver here" in missing[0]


@pytest.mark.parametrize("wrong", [[], ["something"]])
def test_what_is_wrong_is_the_exit_status(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, wrong: list[str]
) -> None:
    async def check(device: CUDADevice) -> list[str]:
        assert device.name == "CUDA0"
        return wrong

    monkeypatch.setattr(gpu_faults, "check", check)
    assert gpu_faults.main(["0"]) == len(wrong)


def test_the_wild_node_alone_is_given_a_wild_address() -> None:
    import aggml
    from aggml import ops

    x = aggml.new_tensor("f32", ne=(64,), name="x")
    for name, other in (("tame", False), (gpu_faults.WILD, True)):
        node = ops.add(x, x).set_name(name)
        (launch,) = gpu_faults.Wild().launches(node, lambda _: 256, 0, 0)
        assert (launch.args[:8] == (1 << 40).to_bytes(8, "little")) is other


def test_without_a_gpu_it_says_what_is_missing(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fail("cuInit", 100)
    assert gpu.main([]) == 1
    assert "finds no CUDA device" in capsys.readouterr().err
