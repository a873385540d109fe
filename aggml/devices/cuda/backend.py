"""CUDABackend: ordered work on one stream of a CUDA device.

Here: copies between GPUs; compiling the kernels of plans and of strided copies before their first
use; the size of the scratch, which the native queue owns. Not here: other transfers
(backend/direct.py), order, futures and failure (stream/), calls of the driver (native/cuda/), plans
(plan.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from aggml.backend.direct import DirectBackend
from aggml.devices.cuda.nccl import sums_of
from aggml.devices.cuda.plan import lowering
from aggml.errors import AllocFailed, InvalidArgument, Unsupported
from aggml.memory.graph_memory import GraphMemory
from aggml.native import _native
from aggml.stream import Stream
from aggml.tensor import checking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.backend import Backend, Device
    from aggml.backend.backend import Array, Sums
    from aggml.devices.cuda.module import CudaTarget, Module
    from aggml.devices.cuda.plan import CUDAPlan
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.stream.future import Future
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["CUDABackend"]


class CUDABackend(DirectBackend):
    """Ordered work on a CUDA device; each backend has its own stream of the driver.

    Args:
        device: the device that does the work.
        target: the same device, as the part of its interface that this file uses.
        max_queued: see `Backend.ready`.
    """

    def __init__(
        self, device: Device, target: CudaTarget, *, max_queued: int | None = None
    ) -> None:
        stream = Stream(target.name, native=target.native.stream(target.name))
        super().__init__(device, stream, max_queued=max_queued)
        self._target = target
        self._scratch = _QueueMemory(device.buffer_type)
        self.memory = self._scratch

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        return self._with_copier((tensor,), lambda: super(CUDABackend, self)._set(tensor, array))

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        return self._with_copier((tensor,), lambda: super(CUDABackend, self)._get(tensor, array))

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        return self._with_copier((src, dst), lambda: super(CUDABackend, self)._copy(src, dst))

    def _with_copier(
        self, tensors: Sequence[Tensor], copy: Callable[[], Future[None]]
    ) -> Future[None]:
        """Enqueue a copy. The first one with arbitrary strides waits for its kernels to compile."""
        name = self._target.kernels.copies
        if name is None or self._target.native.has_copier or all(map(_dense, tensors)):
            return copy()
        with self.stream.unit():
            parts = [
                self.stream.call(_fetch_copier, self._target, name, operation="compile"),
                copy(),
            ]
            return self.stream.together(parts, "copy")

    def _copy_to(self, src: Tensor, dst: Tensor, other: Backend) -> Future[None]:
        if not isinstance(other, CUDABackend) or other.device is self.device:
            return super()._copy_to(src, dst, other)
        with self.stream.sharing(other.stream):  # from device to device, without the host
            self.stream.wait(other.stream)
            future = self._copy(src, dst)
            self.stream.let_wait(other.stream)
        return future

    def _copy_experts(self, src: Tensor, dst: Tensor, ids: Tensor) -> Future[None]:
        return self.stream.copy_experts(dst, src, ids)

    def _sums(self, members: Sequence[Backend]) -> Sums | None:
        found = [member for member in members if isinstance(member, CUDABackend)]
        if len(found) < len(members):
            return None
        return sums_of([m._target for m in found], [m.stream for m in found])

    # -- graphs

    async def reserve(self, nbytes: int) -> None:
        """Have ``nbytes`` of scratch ready. The issuing thread allocates it, in stream order.

        Raises:
            AllocFailed: the device has too little memory left. The earlier scratch was freed as
                well; the next plan that needs scratch allocates it again.

        Cancellation: abandons the wait; the memory is kept.
        """
        self._check_open("Backend.reserve")
        n = checking.integer(nbytes, "nbytes", "Backend.reserve")
        if n < 0:
            raise InvalidArgument(f"[Backend.reserve] nbytes={n} is negative: give 0 or more")
        if n >= 1 << 62:
            raise AllocFailed(f"[Backend.reserve] no memory for {n} bytes")
        if n <= self._scratch.size:
            await anyio.lowlevel.checkpoint()
            return
        nothing = _native.CudaPlan(self._target.native, overlaps=False).finish(n)
        nothing.seal((), (), ())
        await self.stream.enqueue(
            [_native.run_plan(nothing, 0, "reserve", nothing)], None, "reserve"
        )
        self._scratch.note_reserved(n)

    async def prepare(self, graph: Graph) -> None:
        """Place the graph (unless done), compile plan and kernels; the event loop runs meanwhile.

        Cancellation: a graph that was placed stays placed; kernels are compiled to the end.
        """
        if not self._target.native.ready:  # a context takes a few tenths of a second
            self._check_open("Backend.prepare")
            await self._target.aside.call(self._target.native.memory)
        await super().prepare(graph)
        plan: Any = self._plan(graph, "Backend.prepare")
        await self.reserve(plan.scratch)
        missing = _find_missing(plan)
        if missing:
            await self.stream.call(_fetch, missing, operation="compile")

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[CUDAPlan]:
        return lowering(self._target, graph, memory)

    def _compute(self, plan: CUDAPlan, arena: Buffer | None) -> Future[None]:
        missing = _find_missing(plan)
        if not missing:
            return super()._compute(plan, arena)
        with self.stream.unit():
            parts = [
                self.stream.call(_fetch, missing, operation="compile"),
                super()._compute(plan, arena),
            ]
            return self.stream.together(parts, "graph_compute")

    def _direct(self, plan: CUDAPlan) -> bool:
        return not _find_missing(plan)


class _QueueMemory(GraphMemory):
    """The scratch of a backend as Python sees it: the native queue owns it and makes it grow."""

    def __init__(self, buffer_type: BufferType) -> None:
        super().__init__(buffer_type)
        self._reserved = 0

    @property
    def size(self) -> int:
        """Bytes that were reserved; the queue may own more."""
        return self._reserved

    def note_reserved(self, size: int) -> None:
        """Note that the queue owns ``size`` bytes from now on."""
        self._reserved = max(self._reserved, size)

    def arena(self, size: int) -> Buffer | None:
        """None: runs do not pass scratch to the queue."""
        return None


def _find_missing(plan: CUDAPlan) -> list[Module]:
    return [module for module in plan.modules if not module.native.ready]


def _fetch(modules: Sequence[Module]) -> None:
    for module in modules:
        module.fetch()


def _dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous


def _fetch_copier(target: CudaTarget, name: str) -> None:
    with contextlib.suppress(Unsupported):  # without NVRTC the driver's own copies are used
        target.native.set_copier(target.image(name))
