"""SimBackend and SimBufferType: work and memory of a simulated device.

Here: how long each transfer and graph lasts, which of them fail. Not here: the device (device.py),
what a graph costs (cost.py), kernels.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.backend.direct import DirectBackend
from aggml.devices.sim.cost import operations
from aggml.errors import InvalidArgument
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType
from aggml.native import cpu_mask
from aggml.plan import compiling
from aggml.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.sim.device import SimDevice
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.plan import Plan
    from aggml.stream.future import Future
    from aggml.stream.slices import Steps
    from aggml.stream.threadpool import ThreadPool
    from aggml.tensor import Tensor

__all__ = ["SimBackend", "SimBufferType"]

Array = np.ndarray[Any, Any]


class SimBufferType(BufferType):
    """Private memory of one simulated device: the host may not touch it."""

    def __init__(self, device: SimDevice, alignment: int) -> None:
        self.name = device.name
        self.device = device
        self.alignment = alignment
        self._sim = device

    @property
    def max_size(self) -> int:
        """All that the device has."""
        return self._sim.memory_size

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: the device has not as many left, or was told to fail.
        """
        size = self.checked_size(size)
        self._sim._take(size)
        block = HOST.alloc_buffer(size + self.alignment)
        base = -(-block.base // self.alignment) * self.alignment if size else 0
        buffer = Buffer(self, size, base, block)
        weakref.finalize(buffer, self._sim._give_back, size)
        return buffer


class SimBackend(DirectBackend):
    """Ordered work on a simulated device."""

    device: SimDevice  # pyright: ignore[reportIncompatibleMethodOverride] narrower

    def __init__(
        self,
        device: SimDevice,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        stream = Stream(device.name, pool=pool, n_threads=n_threads or 0)
        super().__init__(device, stream, max_queued=max_queued)
        self.cpu = cpu_mask("scalar" if use_ref else None)

    def _sibling(self) -> SimBackend:
        other = self.device.backend(pool=self.stream.pool)
        other.cpu = self.cpu
        return other

    def _direct(self, plan: Plan) -> bool:
        return False  # the hooks below say how long each operation lasts

    def _repeats(self) -> object:
        device = self.device
        return None if device._faults else (device.bandwidth, device.latency, device.speed)

    def hold(self) -> ExitStack:
        """No operation starts until `release`, or the end of ``with backend.hold():``."""
        self.stream.native.hold()
        held = ExitStack()
        held.callback(self.release)
        return held

    def release(self) -> None:
        """Undo one `hold`.

        Raises:
            InvalidArgument: there is none.
        """
        if not self.stream.native.release():
            raise InvalidArgument(f"[SimBackend.release] {self!r} is not held")

    def _transfer(
        self,
        nbytes: int,
        what: str,
        move: Callable[[float], Future[None]],
        *,
        writes: Sequence[Tensor] = (),
        partial: Sequence[Tensor] = (),
    ) -> Future[None]:
        """A transfer between host and device; a failure if it was asked for.

        Args:
            nbytes: what crosses.
            what: name of the operation.
            move: enqueues it, given the seconds that it is to take.
            writes: what it writes whole.
            partial: what it writes in part.
        """
        device = self.device
        fault = device._fault("transfer")
        if fault is not None:
            return self.stream.fail(fault, writes=writes, partial=partial, operation=what)
        bandwidth = device.bandwidth
        return move(device.latency + (nbytes / bandwidth if bandwidth else 0.0))

    def _write(
        self, nbytes: int, what: str, move: Callable[[float], Future[None]], target: Tensor
    ) -> Future[None]:
        if target.view_src is None:
            return self._transfer(nbytes, what, move, writes=[target])
        return self._transfer(nbytes, what, move, partial=[target])

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy(tensor, array, lasts=lasts, operation="set")

        return self._write(array.nbytes, "set", move, tensor)

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy(array, tensor, lasts=lasts, operation="get")

        return self._transfer(array.nbytes, "get", move)

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy_bytes(
                tensor, data, offset, to_tensor=True, lasts=lasts, operation="set"
            )

        return self._transfer(data.nbytes, "set", move, partial=[tensor])

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy_bytes(
                tensor, data, offset, to_tensor=False, lasts=lasts, operation="get"
            )

        return self._transfer(data.nbytes, "get", move)

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        here, there = src.buffer, dst.buffer
        if here is not None and there is not None and here.type is there.type:
            return self.stream.copy(dst, src)

        def move(lasts: float) -> Future[None]:
            return self.stream.copy(dst, src, lasts=lasts)

        return self._write(src.nbytes, "copy", move, dst)

    def _copy_experts(self, src: Tensor, dst: Tensor, ids: Tensor) -> Future[None]:
        device = self.device
        fault = device._fault("transfer")
        if fault is not None:
            return self.stream.fail(fault, writes=[dst], operation="copy")
        return self.stream.copy_experts(
            dst, src, ids, latency=device.latency, bandwidth=device.bandwidth
        )

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Steps[Plan]:
        for node in graph.nodes:
            self.device._check_op(node)
        plan = yield from compiling(graph, memory.locate, memory.scratch_size, self.cpu)
        plan.work = sum(operations(node) for node in graph.nodes)
        return plan

    def _compute(self, plan: Plan, arena: Buffer | None) -> Future[None]:
        fault = self.device._fault("compute")
        if fault is not None:
            return self.stream.fail(fault, writes=plan.writes, operation="graph_compute")
        speed = self.device.speed
        return self.stream.run_plan(plan, arena, lasts=plan.work / speed if speed else 0.0)
