"""Shows the machine and its software, and whether the driver loads every kernel.

    python tools/gpu/look.py environment
    python tools/gpu/look.py load

Not here: what the kernels compute (tests/devices/cuda/device/test_corpus.py).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from typing import Any

FAKE = os.environ.get("FAKE") == "1"
_PACKAGES = (
    "aggml", "numpy", "anyio", "trio", "pytest", "cuda-core", "cuda-bindings", "cuda-pathfinder",
    "ml_dtypes", "torch", "triton", "nvidia-cuda-nvrtc", "nvidia-cublas",
    "nvidia-nccl-cu13",
)  # fmt: skip
#: Values of CUfunction_attribute.
_LOCAL_BYTES, _REGISTERS = 3, 4
#: Modules to load if the driver is the fake one.
_FEW = ("glu", "norm", "sort")


def environment() -> int:
    """The machine, the versions, the libraries that were found, the devices."""
    for command in (["nvidia-smi"], ["uname", "-a"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
            print(done.stdout[:1500])
        except (OSError, subprocess.TimeoutExpired) as problem:
            print(f"{command[0]}: {problem}")
    print(platform.python_version(), sys.executable)
    for name in _PACKAGES:
        try:
            print(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            print(name, "-")
    import cuda  # a namespace package: another package `cuda` would hide cuda.core

    import aggml
    from aggml.devices.cuda import driver, nccl
    from aggml.devices.cuda.compile import nvrtc_version
    from aggml.devices.cuda.kernels import blas
    from aggml.native import _native

    print("cuda", list(cuda.__path__))
    print(aggml.__file__, _native.__file__)
    print("NVRTC", nvrtc_version(), "cuBLASLt", blas.library(), "NCCL", nccl.library())
    _fake_driver()
    for ordinal in range(driver.probe()):
        print(driver.facts(ordinal))
    return 0


def _fake_driver() -> None:
    if FAKE:
        sys.path.insert(0, "tests")
        importlib.import_module("devices.cuda.fake_driver").Fake()


def _checked(call: str, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - of a module without types
    if int(answer[0]) != 0:
        raise RuntimeError(f"{call}: {answer[0]!r}")
    return answer[1] if len(answer) > 1 else None


def _load(driver: Any, image: bytes) -> tuple[int, int, int]:  # noqa: ANN401
    """Load a module and each kernel in it: else the driver would load kernels at first use.

    Returns:
        How many kernels, the most registers of a thread, the most bytes of local memory.
    """
    answer = driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)
    library = _checked("cuLibraryLoadData", answer)
    count = _checked("cuLibraryGetKernelCount", driver.cuLibraryGetKernelCount(library))
    found = driver.cuLibraryEnumerateKernels(count, library)
    registers = local = 0
    for kernel in _checked("cuLibraryEnumerateKernels", found):
        function = _checked("cuKernelGetFunction", driver.cuKernelGetFunction(kernel))
        told = []
        for attribute in (_REGISTERS, _LOCAL_BYTES):
            which = driver.CUfunction_attribute(attribute)
            told.append(_checked("cuFuncGetAttribute", driver.cuFuncGetAttribute(which, function)))
        registers, local = max(registers, told[0]), max(local, told[1])
    if count == 0:
        raise RuntimeError("no kernel is in it")
    return count, registers, local


def load() -> int:
    """Load every module; returns 1 if the driver refuses one, or a cubin is missing."""
    _fake_driver()
    from aggml.devices.cuda import driver as devices
    from aggml.devices.cuda.compile import Cubins
    from aggml.devices.cuda.lowering import CudaKernels, modules

    devices.probe()
    arch = devices.facts(0).arch
    carried = Cubins()
    missing = [name for name in modules() if carried.find(name, arch) is None]
    print(f"{len(modules())} modules, {len(missing)} without a cubin for sm_{arch}: {missing[:9]}")
    driver = importlib.import_module("cuda.bindings.driver")
    context = _checked("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(0))
    _checked("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
    host = importlib.import_module("devices.cuda.fake_driver").HostKernels() if FAKE else None
    kernels: CudaKernels = host or CudaKernels()
    start, total, wrong = time.monotonic(), 0, 0
    for name in _FEW if FAKE else modules():
        try:
            count, registers, local = _load(driver, kernels.module(name, arch))
        except Exception as problem:  # print it, and go on with the next module
            wrong += 1
            print(f"WRONG {name}: {problem}", flush=True)
            continue
        total += count
        if local:
            print(f"{name}: {local} bytes of local memory, {registers} registers", flush=True)
    print(f"{total} kernels loaded in {time.monotonic() - start:.1f} s, {wrong} modules refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit({"environment": environment, "load": load}[sys.argv[1]]())
