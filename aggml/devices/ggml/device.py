"""GgmlDevice: a device of ggml: its properties, supported ops, memory; it opens backends.

Not here: the library (library.py), buffers (memory.py), graphs (plan.py).
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.backend.backend import Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.ggml.backend import GgmlBackend
from aggml.devices.ggml.known import find_known_fault
from aggml.devices.ggml.memory import GgmlBufferType, GgmlHostType, PinnedType, result_of
from aggml.devices.ggml.packed import PackedType
from aggml.devices.ggml.plan import question, refuses
from aggml.errors import InvalidArgument, InvalidHandle, InvalidState, Unsupported
from aggml.memory.buffer import Buffer
from aggml.native import _native
from aggml.ops.table import IDLE
from aggml.stream.exit import at_exit
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.memory.buffer_type import BufferType
    from aggml.tensor import Tensor

__all__ = ["GgmlDevice"]

#: enum ggml_backend_dev_type: IGPU came between GPU and ACCEL when devices got an id.
_TYPES: Final = (DeviceType.CPU, DeviceType.GPU, DeviceType.IGPU, DeviceType.ACCEL, DeviceType.META)
_OLD_TYPES: Final = (DeviceType.CPU, DeviceType.GPU, DeviceType.ACCEL)


def _end() -> None:
    _native.ggml_stop(5.0)


at_exit(_end)


class GgmlDevice(Device):
    """One device of one library.

    Args:
        native: the device's object in the native binding.
        build: the library, which the device keeps.
    """

    def __init__(self, native: _native.GgmlDevice, build: object) -> None:
        facts = native.facts
        self.native = native
        self.build = build
        self.name: str = facts["name"]
        self.description: str = facts["description"]
        self.type: DeviceType = (_TYPES if facts["with_igpu"] else _OLD_TYPES)[facts["type"]]
        self.device_id: str | None = facts["id"]
        self.remote: bool = facts["remote"]
        #: ggml's name of the backend: "Vulkan", "CPU".
        self.kind: str = facts["family"]
        self.host: bool = facts["host"]
        self.caps: DeviceCaps = DeviceCaps(
            host_buffer=facts["host_buffer"] and not self.host,
            buffer_from_host=facts["from_host"] or self.host,
            mmap=facts["from_host"] or self.host,
        )
        self._type: BufferType = (
            GgmlHostType(self, facts["alignment"])
            if self.host
            else GgmlBufferType(self, facts["alignment"], facts["max_size"])
        )
        self._pinned = PinnedType(self) if self.caps.host_buffer else None
        #: Formats that the library packs weights in for its kernels, such as "CPU_REPACK".
        self.packed_buffer_types: tuple[PackedType, ...] = tuple(
            PackedType(self, k, name, alignment)
            for k, (name, alignment, split) in enumerate(native.extras)
            if not split
        )
        self._split_types: dict[int, PackedType] = {}
        self._pid = os.getpid()

    @property
    def buffer_type(self) -> BufferType:
        """Its own memory."""
        return self._type

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory for faster transfers; None if the library has none."""
        return self._pinned

    def split_buffer_type(self, shares: Sequence[float] = ()) -> PackedType:
        """Memory for weights whose rows are divided between the devices of this one's backend.

        Args:
            shares: how much each device gets, in ggml's order of devices; if empty, the library
                decides.

        Raises:
            InvalidArgument: a share is negative, or no number.
            Unsupported: the backend cannot divide rows (those of CUDA and SYCL can).
        """
        if not all(0 <= share < math.inf for share in shares):
            raise InvalidArgument(
                f"[{self.name}.split_buffer_type] shares={list(shares)}: all must be finite, and 0 "
                "or more"
            )
        index = result_of(self.native.split([float(share) for share in shares]))
        if index is None:
            raise Unsupported(
                f"[{self.name}.split_buffer_type] this backend of ggml cannot divide rows"
            )
        name, alignment, _ = self.native.extras[index]
        # setdefault is one step: two threads get the same object, and types are compared by that.
        made = PackedType(self, index, name, alignment, True)
        return self._split_types.setdefault(index, made)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes; 0 and 0 once the device is lost."""
        if self._pid != os.getpid():
            return 0, 0
        free, total, error = self.native.memory()
        return (0, 0) if error is not None else (free, total)

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> GgmlBackend:
        """A new stream of work on this device, with a backend of ggml and a thread of its own.

        Args:
            n_threads: for devices that compute on threads; None: one for each usable core.
            use_ref: ignored.
            max_queued: see `Backend.ready`.

        Raises:
            DeviceError: the device is lost, or the library cannot open a backend.
            InvalidState: this process is a fork of the one that loaded the library.
        """
        if self._pid != os.getpid():
            raise InvalidState(
                f"[GgmlDevice.backend] {self.name} belongs to the parent process: libraries of "
                "ggml cannot be used after fork, start workers with spawn"
            )
        lost = self.native.lost
        if lost is not None:
            raise exception_of(lost)
        threads = n_threads or _native.usable_cpus()
        return GgmlBackend(self, result_of(self.native.stream(self.name, threads)), max_queued)

    # -- what it can do

    def question(self, tensor: Tensor) -> _native.GgmlPlan:
        """A native plan of one node and its sources, to ask the library about the node."""
        return question(self.native, tensor)

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether the library can build the node and reports that its device runs it."""
        if tensor.op in IDLE:
            return True
        return self.problem(tensor) is None

    def problem(self, tensor: Tensor) -> str | None:
        """Why the device does not run a node; None: it does."""
        why = refuses(tensor) or find_known_fault(self.kind, tensor)
        if why is None and not self.host and any(s is not None and 0 in s.ne for s in tensor.src):
            # Vulkan divides by the extents of a source, which ends the process.
            return "it reads an empty tensor"
        if why is None:
            supported, reason = self.question(tensor).supports()
            if not supported:
                why = reason or "the library says that its device does not run it"
        return why

    def offload_op(self, tensor: Tensor) -> bool:
        """The library's own answer (ggml_backend_dev_offload_op)."""
        return refuses(tensor) is None and self.question(tensor).offloads()

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for its own memory and packed formats; for host memory if its kernels read that."""
        if isinstance(buffer_type, PackedType):
            return buffer_type.device is self
        return buffer_type is self._type or (self.host and buffer_type.is_host)

    def buffer_from_host(self, memory: object, *, max_tensor_size: int | None = None) -> Buffer:
        """Wrap host memory without copying.

        Raises:
            InvalidHandle: no contiguous buffer object.
            Unsupported: the device cannot use host memory, or not this: drivers want whole pages.
        """
        what = f"{self.name}.buffer_from_host"
        try:
            flat = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidHandle(
                f"[{what}] {type(memory).__name__} is no contiguous buffer: {error}"
            ) from error
        if not self.caps.buffer_from_host:
            raise Unsupported(f"[{what}] the library cannot use host memory directly")
        address, writable = flat.ctypes.data, bool(flat.flags.writeable)
        if self.host:
            buffer = Buffer(self._type, flat.nbytes, address, flat, writable=writable)
            buffer.exclusive = False
            return buffer
        native, _ = self.native.wrap(address, flat.nbytes, max_tensor_size or flat.nbytes)
        if native is None:
            raise Unsupported(
                f"[{what}] the library refuses the {flat.nbytes} bytes at {address:#x}"
            )
        buffer = Buffer(self._type, flat.nbytes, native.base, (native, flat), writable=writable)
        buffer.exclusive = False
        return buffer
