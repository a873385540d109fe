"""benchmarks.gpu runs from end to end; what it measures means nothing here.

Not here: figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import gpu

if TYPE_CHECKING:
    import pytest
    from cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice


def test_all_parts_are_measured(
    device: CUDADevice, simple: SimpleKernels, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: list[str] = []
    rows = gpu.measure(device, quick=True, missing=missing)
    assert [row.part for row in rows] == (
        ["transfers"] * 5 + ["overlap"] + ["latency"] * 2 + ["relaunch"] * 2
    )
    assert all(row.value > 0 for row in rows)
    assert len(missing) == 8  # products, attention and cuBLASLt, which are not among these few
    assert fake.counter("pageable") == 0


def test_without_a_gpu_it_says_what_is_missing(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fail("cuInit", 100)
    assert gpu.main([]) == 1
    assert "finds no CUDA device" in capsys.readouterr().err
