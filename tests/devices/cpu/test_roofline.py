"""The roofline of this machine: each sort of unit and memory is measured, with any threads.

Not here: how fast they are; no test expects a time.
"""

from __future__ import annotations

import numpy as np
import pytest

from aggml import InvalidArgument
from aggml.devices.cpu import Roofline
from aggml.native import _native

SMALL = 1 << 20


def test_every_unit_of_the_processor_is_measured() -> None:
    roofline = Roofline(2, SMALL)
    assert {"f32", "int8"} <= set(roofline.peaks)
    assert all(roofline.peak(name) > 0 for name in roofline.peaks)
    assert roofline.peak("f32", 1) > 0
    assert roofline.peak("f64") == 0
    assert roofline.best("int8") in roofline.peaks
    assert roofline.best("bf16") in {"f32", "bf16", "bf16 tiles"}


@pytest.mark.parametrize("threads", [1, 3])
def test_memory_is_read_and_copied(threads: int) -> None:
    roofline = Roofline(threads, SMALL)
    assert roofline.read() > 0
    assert roofline.copy(4096) > 0
    assert roofline.copy(SMALL) > 0


def test_a_copy_copies() -> None:
    """It has to, since its figure counts bytes that were moved."""
    whole = np.zeros(SMALL + 64, np.uint8)
    start = -whole.ctypes.data % 64
    memory = whole[start : start + SMALL]
    memory[: SMALL // 2] = np.arange(SMALL // 2, dtype=np.uint32).astype(np.uint8)
    assert _native.roofline_move(memory[SMALL // 2 :], memory[: SMALL // 2], 1, 2) > 0
    np.testing.assert_array_equal(memory[SMALL // 2 :], memory[: SMALL // 2])


def test_each_variant_that_runs_here_is_measured_and_no_other() -> None:
    for kernel, isa, _, runs in _native.variants():
        if kernel.startswith("peak_") and kernel != "peak_read":
            assert (_native.roofline_peak(kernel, isa, 1, 0.001) > 0) == runs
    for kernel in ("peak_read", "norm_f32", "nothing"):
        assert _native.roofline_peak(kernel, "scalar", 1, 0.001) == 0


def test_what_cannot_be_is_refused() -> None:
    for threads in (0, -1, 257):
        with pytest.raises(InvalidArgument, match="threads must be 1 to 256"):
            _native.roofline_peak("peak_f32", "scalar", threads, 0.001)
    whole = np.zeros(4096, np.uint8)
    memory = whole[-whole.ctypes.data % 64 :]
    with pytest.raises(InvalidArgument, match="multiple of 64"):
        _native.roofline_move(None, memory[1:1025], 1, 1)
    with pytest.raises(InvalidArgument, match="large enough"):
        _native.roofline_move(memory[:64], memory[:1024], 1, 1)
