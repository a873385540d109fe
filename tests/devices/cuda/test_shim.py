"""Errors that the shim has to find: missing barriers, unwritten shared memory, dependent blocks.

Not here: the kernels (test_kernels.py, test_large.py).
"""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
from devices.cuda import host

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

_KERNELS = """
#include "shim.h"
struct Args { float *out; long long n; };
ENTRY(reversed, 64, 1, Args) {
    __shared__ float x[64];
    x[threadIdx.x] = n.out[blockIdx.x * 64 + threadIdx.x];
    if (n.n) __syncthreads();
    const float y = x[63 - threadIdx.x];
    if (n.n) __syncthreads();
    n.out[blockIdx.x * 64 + threadIdx.x] = y;
}
ENTRY(unwritten, 64, 1, Args) {
    __shared__ float x[64];
    if (blockIdx.x == 0) x[threadIdx.x] = 1.0f;
    __syncthreads();
    n.out[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
}
ENTRY(counted, 64, 1, Args) {
    if (threadIdx.x == 0) n.out[blockIdx.x] = n.out[128]++;
}
ENTRY(divergent, 64, 1, Args) {
    if (threadIdx.x < 16) __syncwarp();
    __syncthreads();
}
"""


def _run(
    kernel: str, flag: int, order: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], str]:
    _, shim = host._shim()
    library = ctypes.CDLL(str(host._compiled("faults", _KERNELS, [])))
    values = np.arange(129, dtype=np.float32)
    values[128] = 0
    args = (ctypes.c_uint64 * 2)(values.ctypes.data, flag)
    three = ctypes.c_uint * 3
    function = getattr(library, kernel)
    error = shim.shim_launch(function, args, three(2, 1, 1), three(64, 1, 1), 0, order)
    return values, "" if error is None else error.decode()


@pytest.mark.parametrize("order", range(6))
def test_a_barrier_that_lacks_shows_in_any_order(order: int) -> None:
    right = np.arange(128, dtype=np.float32).reshape(2, 64)[:, ::-1].ravel()
    assert (_run("reversed", 1, order)[0][:128] == right).all()
    assert not np.array_equal(_run("reversed", 0, order)[0][:128], right)


@pytest.mark.parametrize("order", range(6))
def test_shared_memory_is_no_number_until_it_is_written(order: int) -> None:
    values, _ = _run("unwritten", 0, order)
    assert (values[:64] == 1).all()
    assert np.isnan(values[64:128]).all()


def test_blocks_run_in_other_orders() -> None:
    found = {tuple(_run("counted", 0, order)[0][:2]) for order in range(9)}
    assert found == {(0.0, 1.0), (1.0, 0.0)}


def test_lanes_that_wait_for_others_are_told() -> None:
    assert "waits where others never come" in _run("divergent", 0, 0)[1]
