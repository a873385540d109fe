"""Moving bytes: set, get, set_many, get_many, memset, clear, copy, set_2d, get_2d, accept.

Here: which arguments each takes and refuses; how a copy between two backends is done. Not here:
what an array must look like (tensor/checking.py), the hooks that a device implements (base.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.backend.base import Array, BackendBase
from aggml.errors import InvalidArgument, InvalidHandle, InvalidState, LayoutMismatch
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import host_tensor
from aggml.memory.multi_buffer import MultiBuffer
from aggml.tensor import Tensor, checking, same_layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml.stream.future import Future
    from aggml.tensor.placement import Holder

__all__ = ["DataBackend"]

BYTE: Final = np.dtype(np.uint8)


class DataBackend(BackendBase):
    """The operations of a `Backend` that move bytes."""

    def set(
        self,
        tensor: Tensor,
        x: object,
        *,
        offset: int | None = None,
        size: int | None = None,
        copy: bool = False,
    ) -> Future[None]:
        """Write elements, after all earlier work of this backend (ggml_backend_tensor_set_async).

        Args:
            tensor: any placed tensor, also a strided view.
            x: an array of the tensor's element type (bf16: ml_dtypes.bfloat16 or uint16 bits;
                quantized: uint8 blocks), of any strides. Its shape is the tensor's in numpy order
                (``ne`` reversed) after leading 1s are dropped, or flat. Borrowed until the Future
                is done.
            offset: first byte of the span to write. With ``offset`` or ``size`` the bytes of ``x``
                are written as they are, and ``x`` must be contiguous.
            size: bytes to write; must be the number of bytes of ``x``.
            copy: take a snapshot of ``x`` first.

        Raises:
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or none on this device.
            LayoutMismatch: element type or shape differ.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the write goes on and ``x`` stays borrowed.
        """
        self._check_open("Backend.set")
        self._check_tensor(tensor, "Backend.set", write=True)
        if offset is None and size is None:
            array = checking.incoming(x, tensor, "Backend.set")
            future = self._set(tensor, array.copy() if copy else array)
        else:
            data = checking.bytes_of(x, "Backend.set")
            start, n = checking.byte_range(
                tensor, offset, data.nbytes if size is None else size, "Backend.set"
            )
            if data.nbytes != n:
                raise LayoutMismatch(
                    f"[Backend.set] size={n} bytes are to be written, but the array has "
                    f"{data.nbytes}"
                )
            future = self._set_bytes(tensor, data.copy() if copy else data, start)
        self._wrote(tensor)
        return self._unit(future)

    def get(
        self,
        tensor: Tensor,
        out: Array | None = None,
        shape: tuple[int, ...] | None = None,
        *,
        offset: int | None = None,
        size: int | None = None,
    ) -> Future[Array]:
        """Read elements, after all earlier work of this backend (ggml_backend_tensor_get_async).

        Args:
            tensor: any placed tensor, also a strided view, read in logical order; a node inside a
                graph needs the OUTPUT flag.
            out: writable, any strides; a new array of ``shape`` or ``tensor.shape`` if not given.
            shape: another shape of the same number of elements.
            offset: first byte of the span to read; the result is then bytes (uint8).
            size: bytes to read, to the end of the span if not given; the result is then bytes.

        Returns:
            A Future of the array. It keeps tensor, buffer and ``out`` alive until done.

        Raises:
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or none on this device, or
                ``out`` is read-only.
            LayoutMismatch: ``out`` or ``shape`` do not fit.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            AggmlError: raised by the Future: the cause of an earlier failure. The contents of
                ``out`` are then unspecified.

        Cancellation: abandons the wait. The copy goes on; backend and tensor stay usable.
        """
        self._check_open("Backend.get")
        self._check_tensor(tensor, "Backend.get")
        if offset is None and size is None:
            result, view = checking.outgoing(tensor, out, shape, "Backend.get")
            future = self._get(tensor, view)
        else:
            start, n = checking.byte_range(tensor, offset, size, "Backend.get")
            result = checking.outgoing_bytes(out, n, "Backend.get")
            future = self._get_bytes(tensor, result, start)
        future._value = result  # type: ignore[assignment]
        future.what = "get"
        return self._unit(future)  # type: ignore[arg-type]

    def memset(
        self, tensor: Tensor, value: int, *, offset: int | None = None, size: int | None = None
    ) -> Future[None]:
        """Set every byte of a tensor's elements, or some bytes of its span.

        Args:
            tensor: any placed tensor; the gaps between elements of a strided view stay unchanged.
            value: of each byte, 0 to 255.
            offset: first byte of the span to set.
            size: bytes to set, to the end of the span if not given. If 0, the tensor need not have
                memory.

        Raises:
            InvalidArgument: ``value`` is not within 0..255. Else as `set`.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.memset")
        value = checking.byte(value, "Backend.memset")
        if size == 0 and isinstance(tensor, Tensor):  # ggml asks for memory only if it is needed
            checking.byte_range(tensor, offset, size, "Backend.memset")
            return self._unit(self.stream.mark("memset"))
        self._check_tensor(tensor, "Backend.memset", write=True)
        start, n = checking.byte_range(tensor, offset, size, "Backend.memset")
        if offset is None and size is None and not tensor.is_contiguously_allocated:
            # A strided view: its elements, not the gaps between them.
            shape = checking._full_shape(tensor)
            byte = np.full(checking.array_dtype(tensor).itemsize, value, np.uint8)
            one = byte.view(np.uint8 if tensor.dtype.is_quantized else f"u{byte.size}").reshape(())
            if tensor.dtype.type_size != byte.size and not tensor.dtype.is_quantized:
                raise InvalidArgument(
                    f"[Backend.memset] {tensor!r} has gaps, and its elements cannot be set one "
                    "by one: set the tensor that it is a view of, or give offset and size"
                )
            future = self._set(tensor, np.broadcast_to(one, shape))
        else:
            future = self._memset(tensor, value, start, n)
        self._wrote(tensor)
        return self._unit(future)

    def clear(self, buffer: Holder, value: int = 0) -> Future[None]:
        """Set every byte of a buffer, of all parts of a `MultiBuffer` (ggml_backend_buffer_clear).

        Contents that an earlier failure poisoned can be read again afterwards.

        Raises:
            InvalidHandle: ``buffer`` is no buffer.
            InvalidArgument: ``value`` is not within 0..255, or a buffer is read-only or out of
                reach.
            InvalidState: backend or buffer is closed.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.clear")
        value = checking.byte(value, "Backend.clear")
        if not isinstance(buffer, Buffer):
            raise InvalidHandle(f"[Backend.clear] {buffer!r} is no buffer")
        if buffer.closed:
            raise InvalidState(f"[Backend.clear] {buffer!r} is closed")
        parts = buffer.parts if isinstance(buffer, MultiBuffer) else (buffer,)
        for part in parts:
            if not self.device.supports_buffer_type(part.type):
                raise InvalidArgument(f"[Backend.clear] {part!r} is out of reach of {self!r}")
            if not part.writable:
                raise InvalidArgument(f"[Backend.clear] {part!r} is read-only")
        with self.stream.unit():
            futures = [self._clear(part, value) for part in parts if part.size]
            futures += [self.stream.accept(tensor) for tensor in buffer.tensors]
            futures += [] if futures else [self.stream.mark("clear")]
            future = self.stream.together(futures, "clear")
        for tensor in buffer.tensors:
            self._wrote(tensor)
        return self._unit(future)

    def set_2d(
        self,
        tensor: Tensor,
        x: object,
        *,
        size: int,
        n_copies: int,
        stride_tensor: int,
        stride_data: int,
        offset: int = 0,
    ) -> Future[None]:
        """Write pieces of ``size`` bytes at regular distances (ggml_backend_tensor_set_2d_async).

        Piece i goes from byte ``i * stride_data`` of the array to byte
        ``offset + i * stride_tensor`` of the tensor's span. With no pieces, or pieces of 0 bytes,
        nothing is written.

        Args:
            tensor: any placed tensor.
            x: a contiguous array; its bytes are taken. Borrowed until the Future is done.
            size: bytes of a piece.
            n_copies: how many pieces.
            stride_tensor: bytes from one piece to the next in the tensor, at least ``size``.
            stride_data: likewise in the array; may be less, and 0 writes one piece ``n_copies``
                times.
            offset: byte of the tensor's span at which the first piece begins.

        Raises:
            OutOfBounds: a piece would end outside of the span, or of the array.
            InvalidArgument: pieces would overwrite each other; negative numbers. Else as `set`.

        Cancellation: abandons the wait; the write goes on.
        """
        what = "Backend.set_2d"
        self._check_open(what)
        self._check_tensor(tensor, what, write=True)
        data = checking.bytes_of(x, what)
        numbers = (size, n_copies, stride_tensor, stride_data, offset)
        pieces = checking.pieces(tensor, data, *numbers, what, to_tensor=True)
        with self.stream.unit():
            futures = [self._set_bytes(tensor, part, at) for at, part in pieces]
            futures += [] if futures else [self.stream.mark("set")]
            future = self.stream.together(futures, "set")
        self._wrote(tensor)
        return self._unit(future)

    def get_2d(
        self,
        tensor: Tensor,
        out: Array,
        *,
        size: int,
        n_copies: int,
        stride_tensor: int,
        stride_data: int,
        offset: int = 0,
    ) -> Future[Array]:
        """Read pieces of ``size`` bytes at regular distances (ggml_backend_tensor_get_2d_async).

        The reverse of `set_2d`, with the same arguments; here the pieces must not overlap in
        ``out``, and may in the tensor. Bytes of ``out`` between the pieces stay unchanged.

        Returns:
            A Future of ``out``.

        Raises:
            InvalidHandle, InvalidArgument: ``out`` is no numpy array, or read-only. Else as
                `set_2d`.

        Cancellation: abandons the wait; the read goes on.
        """
        what = "Backend.get_2d"
        self._check_open(what)
        self._check_tensor(tensor, what)
        checking.check_out(out, what)
        data = checking.bytes_of(out, what)
        numbers = (size, n_copies, stride_tensor, stride_data, offset)
        pieces = checking.pieces(tensor, data, *numbers, what, to_tensor=False)
        with self.stream.unit():
            futures = [self._get_bytes(tensor, part, at) for at, part in pieces]
            futures += [] if futures else [self.stream.mark("get")]
            future = self.stream.together(futures, "get")
        future._value = out  # type: ignore[assignment]
        return self._unit(future)  # type: ignore[arg-type]

    def copy(self, src: Tensor, dst: Tensor, *, to: BackendBase | None = None) -> Future[None]:
        """Copy a tensor, across backends if ``to`` is given (ggml_backend_tensor_copy_async).

        Comes after all that was queued before it, and before all that is queued after it, on both
        backends.

        Args:
            src: a placed tensor, in memory that this backend reaches.
            dst: a placed tensor of the same type, extents and strides, in writable memory that
                ``to`` reaches. If it is ``src`` itself, nothing is copied.
            to: another backend, of any device; None: this one.

        Returns:
            A Future of None, done when the bytes are in ``dst``. It keeps both tensors alive.

        Raises:
            LayoutMismatch: type, extents or strides differ.
            NotAllocated, InvalidArgument: a tensor has no memory, or none that its backend reaches;
                ``dst`` is read-only.
            InvalidHandle: not a tensor, or not a backend.
            InvalidState: a backend is closed.
            AggmlError: by the Future: what an earlier write of ``src`` failed with. ``dst`` cannot
                be read then.

        Cancellation: abandons the wait; the copy goes on.
        """
        other: BackendBase = self if to is None else to
        if not isinstance(other, BackendBase):
            raise InvalidHandle(f"[Backend.copy] to={other!r} is no Backend")
        self._check_open("Backend.copy")
        other._check_open("Backend.copy")
        self._check_tensor(src, "Backend.copy")
        other._check_tensor(dst, "Backend.copy", write=True)
        if not same_layout(src, dst):
            raise LayoutMismatch(
                f"[Backend.copy] {src!r} and {dst!r} differ in type, extents or strides: "
                "ops.cpy in a graph converts and reorders"
            )
        if other is not self:
            future = self._copy_to(src, dst, other)
        else:
            future = self.stream.mark("copy") if src is dst else self._copy(src, dst)
        self._wrote(dst, other)
        return self._unit(future)

    def _copy_to(self, src: Tensor, dst: Tensor, other: BackendBase) -> Future[None]:
        """Copy across backends: directly if one side reaches both, else through host memory.

        The copy is enqueued in one step on both streams. Each waits for the earlier work of the
        other.
        """
        here, there = src.buffer, dst.buffer
        assert here is not None
        assert there is not None
        driver: BackendBase
        idle: BackendBase
        if here.is_host or other.device.supports_buffer_type(here.type):
            driver, idle = other, self
        elif there.is_host or self.device.supports_buffer_type(there.type):
            driver, idle = self, other
        else:
            return self._bounce(src, dst, other)
        with driver.stream.sharing(idle.stream):
            driver.stream.wait(idle.stream)
            same = src is dst  # nothing to copy, but both streams still wait for each other
            future = driver.stream.mark("copy") if same else driver._copy(src, dst)
            driver.stream.let_wait(idle.stream)
        return future

    def _bounce(self, src: Tensor, dst: Tensor, other: BackendBase) -> Future[None]:
        staging = host_tensor(src)
        with self.stream.sharing(other.stream):
            self.stream.wait(other.stream)
            self._copy(src, staging)
            other.stream.wait(self.stream)
            future = other._copy(staging, dst)
            other.stream.let_wait(self.stream)
        return future

    def set_many(self, parts: Iterable[tuple[Tensor, Array, int]]) -> Future[None]:
        """Write bytes of many tensors in one step: `set` with ``offset`` for each, at less cost.

        Args:
            parts: of each write the tensor, a contiguous array of the bytes, and the first byte of
                the tensor's span to write. The arrays are borrowed until the Future is done.

        Returns:
            A Future of all of them.

        Raises:
            As `set`; then nothing is written.

        Cancellation: abandons the wait; the writes go on.
        """
        what = "Backend.set_many"
        self._check_open(what)
        checked = self._checked_parts(parts, what, write=True)
        future = self._set_parts(checked) if checked else self.stream.mark("set")
        for tensor, _, _ in checked:
            self._wrote(tensor)
        return self._unit(future)

    def get_many(self, parts: Iterable[tuple[Tensor, Array, int]]) -> Future[None]:
        """Read bytes of many tensors in one step: `get` with ``offset`` for each, at less cost.

        Args:
            parts: of each read the tensor, a contiguous writable array whose bytes are filled, and
                the first byte of the tensor's span to read.

        Returns:
            A Future of all of them.

        Raises:
            As `get`; then nothing is read.

        Cancellation: abandons the wait; the reads go on.
        """
        what = "Backend.get_many"
        self._check_open(what)
        checked = self._checked_parts(parts, what, write=False)
        future = self._get_parts(checked) if checked else self.stream.mark("get")
        return self._unit(future)

    def _checked_parts(
        self, parts: Iterable[tuple[Tensor, Array, int]], what: str, *, write: bool
    ) -> list[tuple[Tensor, Array, int]]:
        """The parts with their arrays as bytes. A buffer is checked once, not for each tensor."""
        checked, seen = [], None
        for tensor, x, offset in parts:
            place = tensor.root.placement if type(tensor) is Tensor else None
            if place is None or place.buffer is not seen or not (place.readable or write):
                self._check_tensor(tensor, what, write=write)
                seen = tensor.buffer
            if not write:
                checking.check_out(x, what)
            data = x if type(x) is np.ndarray and x.dtype == BYTE else checking.bytes_of(x, what)
            if not data.flags.c_contiguous:
                data = checking.bytes_of(x, what)  # says what is wrong
            n = data.nbytes
            if type(offset) is not int or not 0 <= offset <= tensor.nbytes - n:
                offset, _ = checking.byte_range(tensor, offset, n, what)
            checked.append((tensor, data, offset))
        return checked

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare the contents of a tensor's storage to be valid, in stream order.

        Later reads no longer fail because of an earlier write that failed.

        Cancellation: abandons the wait; the declaration stays.
        """
        self._check_open("Backend.accept")
        self._check_tensor(tensor, "Backend.accept")
        future = self.stream.accept(tensor)
        self._wrote(tensor)
        return self._unit(future)
