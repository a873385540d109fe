"""The only file that uses cuda-python: whether there is a driver, its devices, entry addresses.

Importing it imports no NVIDIA package and touches no driver. Every name of cuda.core and
cuda.bindings is used inside a function and is Any to the type checkers. So the rest of the package
is the same with and without these packages. Not here: the driver calls of queued work, which C
makes through `entries` (native/cuda/driver.c), NVRTC and cubins (compile.py).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml.devices.cuda.launch import Gpu
from aggml.errors import BackendLoadError, DeviceError
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DeviceFacts",
    "Missing",
    "entries",
    "facts",
    "probe",
]

#: `entries` asks the driver for functions with the signatures of this version of CUDA.
API = 13000
#: The library of the driver.
DRIVER: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
#: Compute capability from which a kernel may be launched early and wait for the one before it. The
#: environment variable AGGML_CUDA_OVERLAP=0 turns this off.
_OVERLAPS = 90
_EXTRA = f"install the extra: {install_command('cuda')}"


class Missing(BackendLoadError):
    """Something that CUDA needs is missing; the message says what it is and what to do."""


def _import(name: str) -> Any:  # noqa: ANN401 - a module without types
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {"driver": "cuda-bindings", "nvrtc": "cuda-bindings", "core": "cuda-core"}
        what = package.get(name.rpartition(".")[2], name)
        raise Missing(
            f"[cuda] the package {what} cannot be imported ({error}): {_EXTRA}"
        ) from error


def _message(driver: Any, code: Any) -> str:  # noqa: ANN401
    _, name = driver.cuGetErrorName(code)
    _, text = driver.cuGetErrorString(code)
    words = [part.decode() if isinstance(part, bytes) else str(part) for part in (name, text)]
    return f"{words[0]} ({int(code)}): {words[1]}"


def _result_of(driver: Any, call: str, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """The result of a driver call, without its status.

    Raises:
        DeviceError: the status is not success.
    """
    if int(answer[0]) != 0:
        raise DeviceError(f"[cuda] {call}: {_message(driver, answer[0])}")
    return answer[1] if len(answer) == 2 else answer[1:]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a device that never change.

    Attributes:
        ordinal: the driver's number for it.
        name: the product's name.
        arch: compute capability without the dot: "90".
        pci: "domain:bus:device.function" in lower case.
        memory: total bytes.
        integrated: whether it shares the memory of the host.
        pools: whether it can allocate in stream order.
        gpu: the numbers by which launches are sized: multiprocessors, shared memory of a block.
        read_only: whether it can register read-only host memory, such as mapped files.
    """

    ordinal: int
    name: str
    arch: str
    pci: str
    memory: int
    integrated: bool
    pools: bool
    gpu: Gpu
    read_only: bool


def probe() -> int:
    """How many CUDA devices there are; at least one.

    Raises:
        Missing: packages, the driver or a device; or the driver is too old.
    """
    # First, because the two packages take 26 MB when they are imported.
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        raise Missing(f"[cuda] there is no NVIDIA driver here ({error})") from error
    driver = _import("cuda.bindings.driver")
    _import("cuda.core")
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # pathfinder's DynamicLibNotFoundError
        raise Missing(f"[cuda] the NVIDIA driver cannot be loaded: {error}") from error
    if int(code) == 100:  # CUDA_ERROR_NO_DEVICE
        raise Missing("[cuda] the driver finds no CUDA device")
    if int(code) != 0:
        raise Missing(f"[cuda] the driver does not start: {_message(driver, code)}")
    version = int(_result_of(driver, "cuDriverGetVersion", driver.cuDriverGetVersion()))
    if version < API:
        raise Missing(
            f"[cuda] the driver offers CUDA {version // 1000}.{version % 1000 // 10}, "
            f"{API // 1000}.{API % 1000 // 10} is needed: update the driver (580 or later)"
        )
    count = int(_result_of(driver, "cuDeviceGetCount", driver.cuDeviceGetCount()))
    if count == 0:
        raise Missing("[cuda] the driver finds no CUDA device")
    return count


def facts(ordinal: int) -> DeviceFacts:
    """The properties of the device of that number; creates no context.

    Raises:
        Missing: see `probe`.
        DeviceError: the driver refuses to tell.
    """
    core, driver = _import("cuda.core"), _import("cuda.bindings.driver")
    try:
        device = core.Device(ordinal)
        properties = device.properties
        # pci_bus_id of cuda.core needs the runtime library, which we do not require.
        pci = _result_of(driver, "cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId(32, ordinal))
        total = _result_of(driver, "cuDeviceTotalMem", driver.cuDeviceTotalMem(ordinal))
        return DeviceFacts(
            ordinal,
            str(device.name),
            str(device.arch),
            bytes(pci).split(b"\0")[0].decode().lower(),
            int(total),
            bool(properties.integrated),
            bool(properties.memory_pools_supported),
            Gpu(
                int(properties.multiprocessor_count),
                int(properties.max_shared_memory_per_block_optin),
                int(device.arch) >= _OVERLAPS and os.environ.get("AGGML_CUDA_OVERLAP") != "0",
            ),
            bool(getattr(properties, "read_only_host_register_supported", False)),
        )
    except DeviceError:
        raise
    except Exception as error:  # CUDAError is a plain Exception, public from cuda-core 1.3 only
        raise DeviceError(f"[cuda] device {ordinal}: {error}") from error


def entries(names: Iterable[str]) -> dict[str, int]:
    """Addresses of driver functions, for C; 0 for a name that the driver does not have.

    Raises:
        Missing: see `probe`.
    """
    driver = _import("cuda.bindings.driver")
    found = {}
    for name in names:
        code, address, *_ = driver.cuGetProcAddress(name.encode(), API, 0)
        found[name] = int(address) if int(code) == 0 else 0
    return found
