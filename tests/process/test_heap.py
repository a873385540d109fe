"""trim_heap gives freed memory back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Many small blocks with one behind them that stays: without a trim, free() leaves all of them in
# the process.
PROGRAM = """
import ctypes
from aggml.process.heap import trim_heap
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
blocks = [libc.malloc(4000) for _ in range(16384)]
for block in blocks:
    ctypes.memset(block, 1, 4000)
last = libc.malloc(4000)
for block in blocks:
    libc.free(block)
before = resident()
trim_heap()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) > 32 << 20
