"""Calls that the driver refuses: the fake driver has to be as strict as a GPU's.

Only cuda.bindings is used, so that the package's reactions do not matter. Not here: how the package
handles these errors (the other files).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from devices.cuda.fake_driver import ON_FAKE, all_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.cuda import CUDADevice

INVALID_VALUE, OUT_OF_MEMORY, OUT_OF_RESOURCES = 1, 2, 701
ALREADY_REGISTERED, CAPTURE_UNSUPPORTED = 712, 900
N = 1 << 16


class Driver:
    """cuda.bindings. A call checks the status; `code` returns it."""

    def __init__(self) -> None:
        self.raw: Any = importlib.import_module("cuda.bindings.driver")

    def code(self, name: str, *arguments: object) -> int:
        """Make a call and return its status."""
        return int(getattr(self.raw, name)(*arguments)[0])

    def __call__(self, name: str, *arguments: object) -> Any:
        """Make a call, check its status and return its results."""
        status, *given = getattr(self.raw, name)(*arguments)
        assert int(status) == 0, f"{name}: {status!r}"
        return given[0] if len(given) == 1 else given


@pytest.fixture
def cuda(device: CUDADevice) -> Driver:
    """cuda.bindings in the context of the first device."""
    driver = Driver()
    driver("cuCtxSetCurrent", driver("cuDevicePrimaryCtxRetain", 0))
    return driver


@pytest.fixture
def stream(cuda: Driver) -> Iterator[Any]:
    made = cuda("cuStreamCreate", 1)
    yield made
    cuda("cuStreamDestroy", made)


def _kernel(cuda: Driver, device: CUDADevice) -> Any:
    """One of the package's kernels, freshly loaded and never launched."""
    image = all_kernels().module("glu", device.facts.arch)
    library = cuda("cuLibraryLoadData", image, [], [], 0, [], [], 0)
    return cuda("cuLibraryGetKernel", library, b"glu_f32")


def _launch(cuda: Driver, kernel: Any, stream: Any, threads: int = 32, shared: int = 0) -> int:
    """The status of a launch with parameters of zeros: an empty tensor, so that it does nothing."""
    _, size = cuda("cuKernelGetParamInfo", kernel, 0)
    argument = (ctypes.c_uint8 * size)()
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    return cuda.code(
        "cuLaunchKernel", cuda.raw.CUfunction(int(kernel)), 1, 1, 1, threads, 1, 1, shared, stream,
        ctypes.addressof(pointers), 0,
    )  # fmt: skip


def test_the_host_does_not_reach_memory_of_the_device(cuda: Driver) -> None:
    address = int(cuda("cuMemAlloc", N))
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            first, _, rest = line.partition("-")
            end, rights = rest.split()[:2]
            if int(first, 16) <= address < int(end, 16):
                assert rights.startswith("---"), line
    cuda("cuMemFree", address)


@pytest.mark.skipif(not ON_FAKE, reason="a core dump of a process with a GPU is large")
def test_a_read_by_the_host_ends_the_process(cuda: Driver) -> None:
    text = """
import ctypes
from devices.cuda.fake_driver import Fake
Fake()
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
ctypes.string_at(int(driver.cuMemAlloc(4096)[1]), 1)
"""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")]),
        # With the address sanitizer, too, the signal must end the process, not make a report.
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0",
    }
    done = subprocess.run([sys.executable, "-c", text], env=env, check=False)
    assert done.returncode == -11


def test_shared_memory_over_48_kib_is_asked_for(
    cuda: Driver, device: CUDADevice, stream: Any
) -> None:
    kernel = _kernel(cuda, device)
    assert _launch(cuda, kernel, stream, shared=49152) == 0
    assert _launch(cuda, kernel, stream, shared=49153) == INVALID_VALUE
    which = cuda.raw.CUfunction_attribute(8)
    cuda("cuKernelSetAttribute", which, 65536, kernel, 0)
    assert _launch(cuda, kernel, stream, shared=65536) == 0
    assert _launch(cuda, kernel, stream, shared=65537) == INVALID_VALUE
    cuda("cuStreamSynchronize", stream)


def test_a_block_has_no_more_threads_than_its_kernel_has_registers_for(
    cuda: Driver, device: CUDADevice, stream: Any
) -> None:
    kernel = _kernel(cuda, device)
    most = cuda(
        "cuFuncGetAttribute",
        cuda.raw.CUfunction_attribute(0),
        cuda("cuKernelGetFunction", kernel),
    )
    assert _launch(cuda, kernel, stream, threads=most) == 0
    if most < 1024:
        code = _launch(cuda, kernel, stream, threads=most + 32)
        assert code in (INVALID_VALUE, OUT_OF_RESOURCES)
    cuda("cuStreamSynchronize", stream)


@pytest.mark.skipif(not ON_FAKE, reason="what a driver may put off to the first launch differs")
def test_no_kernel_is_loaded_by_a_capture(cuda: Driver, device: CUDADevice, stream: Any) -> None:
    kernel = _kernel(cuda, device)
    cuda("cuStreamBeginCapture", stream, cuda.raw.CUstreamCaptureMode(1))
    assert _launch(cuda, kernel, stream) == CAPTURE_UNSUPPORTED
    cuda.code("cuStreamEndCapture", stream)
    assert _launch(cuda, kernel, stream) == 0  # now the kernel is loaded
    cuda("cuStreamBeginCapture", stream, cuda.raw.CUstreamCaptureMode(1))
    assert _launch(cuda, kernel, stream) == 0
    cuda("cuGraphDestroy", cuda("cuStreamEndCapture", stream))


def test_a_pool_keeps_what_was_freed_until_it_is_trimmed(cuda: Driver, stream: Any) -> None:
    pool = cuda("cuDeviceGetMemPool", 0)
    attribute = cuda.raw.CUmemPool_attribute(4)
    before = cuda("cuMemPoolGetAttribute", pool, attribute)
    cuda("cuMemPoolSetAttribute", pool, attribute, cuda.raw.cuuint64_t((1 << 64) - 1))
    cuda("cuMemPoolTrimTo", pool, 0)
    free, _ = cuda("cuMemGetInfo")
    address = cuda("cuMemAllocAsync", 64 << 20, stream)
    cuda("cuMemFreeAsync", address, stream)
    cuda("cuStreamSynchronize", stream)
    assert cuda("cuMemGetInfo")[0] <= free - (64 << 20)
    cuda("cuMemPoolTrimTo", pool, 0)
    assert cuda("cuMemGetInfo")[0] == free
    cuda("cuMemPoolSetAttribute", pool, attribute, before)


def test_what_is_pinned_is_not_pinned_again(cuda: Driver) -> None:
    memory = ctypes.create_string_buffer(3 * 4096)
    at = (ctypes.addressof(memory) + 4095) & ~4095
    cuda("cuMemHostRegister", at, 8192, 0)
    assert cuda.code("cuMemHostRegister", at + 4096, 4096, 0) == ALREADY_REGISTERED
    assert cuda.code("cuMemHostRegister", at, 0, 0) == INVALID_VALUE
    cuda("cuMemHostUnregister", at)


@pytest.mark.skipif(not ON_FAKE, reason="a machine's own limit is found by pinning all of it")
def test_not_all_memory_of_the_host_can_be_pinned(cuda: Driver) -> None:
    assert cuda.code("cuMemHostAlloc", 3 << 30, 0) == OUT_OF_MEMORY


@pytest.mark.parametrize("pitch", [63, (1 << 31)])
def test_a_pitch_is_neither_short_nor_too_long(cuda: Driver, stream: Any, pitch: int) -> None:
    address = cuda("cuMemAlloc", N)
    rows = cuda.raw.CUDA_MEMCPY2D()
    rows.srcMemoryType = rows.dstMemoryType = cuda.raw.CUmemorytype(2)
    rows.srcDevice, rows.dstDevice = address, int(address) + N // 2
    rows.srcPitch, rows.dstPitch, rows.WidthInBytes, rows.Height = pitch, 64, 64, 1
    assert cuda.code("cuMemcpy2DAsync", rows, stream) == INVALID_VALUE
    cuda("cuMemFree", address)
