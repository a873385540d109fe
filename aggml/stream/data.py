"""The operations of a stream that touch memory: copy, fill, clear, run_plan.

Not here: what may be transferred (tensor/checking.py), what a plan is (plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aggml.dtype import DType
from aggml.errors import InvalidArgument, OutOfBounds
from aggml.native import _native
from aggml.stream.base import StreamBase
from aggml.tensor import Tensor
from aggml.tensor.placement import BufferUsage
from aggml.tensor.spans import bits_of, is_whole, span_of, storages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

    import numpy as np

    from aggml.stream.future import Future
    from aggml.tensor.placement import Holder

__all__ = ["DataStream", "Runnable"]


class Runnable(Protocol):
    """The part of a compiled graph that a stream uses: the native plan, and what it needs."""

    @property
    def native(self) -> _native.Plan:
        """The native plan."""
        ...

    @property
    def arena_size(self) -> int:
        """Bytes of scratch."""
        ...

    @property
    def calls(self) -> Sized:
        """The functions in Python that are among its nodes."""
        ...


class DataStream(StreamBase):
    """The operations of a `Stream` that touch memory.

    ``lasts``, where a method takes it, is for simulated devices: the least number of seconds that
    the operation takes; no thread is occupied. The time counts from the simulated end of the
    operation before. So delays of wake-ups do not add up, and a stream that is kept busy has the
    simulated rate. An abort ends the time early.
    """

    def copy(
        self,
        dst: Tensor | np.ndarray[Any, Any],
        src: Tensor | np.ndarray[Any, Any],
        *,
        lasts: float = 0.0,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy elements in logical order between tensors and host arrays.

        Tensors must lie in memory that this process can address. A tensor and an array must have
        the same shape in numpy order and the same element size; two tensors must have the same type
        and ``ne``. Any strides are allowed.

        Args:
            dst: the tensor or array to write.
            src: the tensor or array to read.
            lasts: the least number of seconds that the copy takes.
            operation: for messages.

        Raises:
            InvalidArgument: neither side is a tensor.
            NotAllocated: a tensor has no memory.
        """
        if isinstance(dst, Tensor):
            if isinstance(src, Tensor):
                desc = _native.copy(span_of(dst), span_of(src), operation)
            else:
                desc = _native.upload(bits_of(src), span_of(dst), operation)
        elif isinstance(src, Tensor):
            desc = _native.download(bits_of(dst), span_of(src), operation)
        else:
            raise InvalidArgument("[Stream.copy] at least one side has to be a tensor")
        if lasts:
            desc.set_pace(lasts)
        return self._put([desc], None, operation)

    def copy_bytes(
        self,
        tensor: Tensor,
        array: np.ndarray[Any, Any],
        offset: int,
        *,
        to_tensor: bool,
        lasts: float = 0.0,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy a contiguous uint8 array into, or out of, a tensor's span at ``offset`` bytes.

        Raises:
            OutOfBounds: bytes of the array would lie outside the span.
        """
        if offset < 0 or offset + array.nbytes > tensor.nbytes:
            raise OutOfBounds(
                f"[Stream.copy_bytes] {array.nbytes} bytes at {offset} are outside {tensor!r}"
            )
        if to_tensor:
            whole = is_whole(tensor, offset, array.nbytes)
            desc = _native.upload_bytes(array, span_of(tensor), offset, whole, operation)
        else:
            desc = _native.download_bytes(array, span_of(tensor), offset, operation)
        if lasts:
            desc.set_pace(lasts)
        return self._put([desc], None, operation)

    def copy_parts(
        self,
        parts: Iterable[tuple[Tensor, np.ndarray[Any, Any], int]],
        *,
        to_tensor: bool,
        operation: str = "copy",
    ) -> Future[None]:
        """`copy_bytes` of many tensors, arrays and offsets, enqueued in one step.

        Raises:
            OutOfBounds: bytes of an array would lie outside the span.
        """
        descs = []
        for tensor, array, offset in parts:
            if offset < 0 or offset + array.nbytes > tensor.nbytes:
                raise OutOfBounds(
                    f"[Stream.copy_parts] {array.nbytes} bytes at {offset} are outside {tensor!r}"
                )
            span = span_of(tensor)
            if to_tensor:
                whole = is_whole(tensor, offset, array.nbytes)
                descs.append(_native.upload_bytes(array, span, offset, whole, operation))
            else:
                descs.append(_native.download_bytes(array, span, offset, operation))
        return self._put(descs, None, operation)

    def copy_experts(
        self,
        dst: Tensor,
        src: Tensor,
        ids: Tensor,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy the matrices of a stack that ``ids`` names; the other matrices stay unchanged.

        ``ids`` is read when the stream reaches the copy. All of ``dst`` counts as written.

        Args:
            dst: the target, with the same layout as ``src``.
            src: ``ne[2]`` matrices, contiguous.
            ids: int32 in one or two dimensions, in memory that this process can address.
            latency: least number of seconds, in addition to the time by ``bandwidth``; see
                ``lasts``.
            bandwidth: simulated bytes per second; None: no limit.
            operation: for messages.

        Raises:
            InvalidArgument: the tensors are not as described.
            OutOfBounds: raised by the Future: there is no matrix of that number.
        """
        alike = dst.ne == src.ne and dst.nb == src.nb and dst.dtype is src.dtype
        if not alike or src.ne[3] != 1 or not src.is_contiguous:
            raise InvalidArgument(
                f"[Stream.copy_experts] {src!r} and {dst!r} must be contiguous [.., .., experts], "
                "and equal in type, extents and strides"
            )
        if ids.dtype is not DType.I32 or ids.ne[2:] != (1, 1):
            raise InvalidArgument(
                f"[Stream.copy_experts] ids={ids!r} must be int32, with one or two axes"
            )
        desc = _native.experts(
            span_of(dst),
            span_of(src),
            span_of(ids),
            src.nb[2],
            src.ne[2],
            latency,
            1e9 / bandwidth if bandwidth else 0.0,
            operation,
        )
        return self._put([desc], None, operation)

    def fill(
        self,
        tensor: Tensor,
        value: int,
        offset: int = 0,
        size: int | None = None,
        *,
        operation: str = "memset",
    ) -> Future[None]:
        """Set ``size`` bytes of a tensor's span from ``offset`` on to ``value``; None: to its end.

        Raises:
            OutOfBounds: the bytes are outside the span.
        """
        n = tensor.nbytes - offset if size is None else size
        if offset < 0 or n < 0 or offset + n > tensor.nbytes:
            raise OutOfBounds(f"[Stream.fill] {n} bytes at {offset} are outside {tensor!r}")
        desc = _native.fill(
            span_of(tensor), value, offset, n, is_whole(tensor, offset, n), operation
        )
        return self._put([desc], None, operation)

    def run_plan(
        self,
        plan: Runnable,
        arena: Holder | None = None,
        *,
        lasts: float = 0.0,
        operation: str = "graph_compute",
    ) -> Future[None]:
        """Run a compiled graph.

        Args:
            plan: a result of `compile_plan`.
            arena: at least ``plan.arena_size`` bytes of scratch, if the plan needs any.
            lasts: the least number of seconds that the run takes.
            operation: for messages.

        Raises:
            InvalidArgument: ``arena`` is missing or too small.
        """
        base = 0
        if plan.arena_size:
            if arena is None or arena.size < plan.arena_size:
                raise InvalidArgument(
                    f"[Stream.run_plan] {plan!r} needs {plan.arena_size} bytes of scratch, "
                    f"got {arena!r}"
                )
            base = arena.base
        if plan.calls:
            self._start_calls()
        desc = _native.run_plan(plan.native, base, operation, (plan, arena))
        if lasts:
            desc.set_pace(lasts)
        return self._put([desc], None, operation)

    def clear(self, buffer: Holder, value: int) -> Future[None]:
        """Set every byte of a host-addressable buffer."""
        # Weights may have been packed and must be packed again. Other tensors are read in place.
        weights = buffer.tensors if buffer.usage is BufferUsage.WEIGHTS else []
        desc = _native.clear(buffer.base, value, buffer.size, storages_of(weights), buffer)
        return self._put([desc], None, "clear")
