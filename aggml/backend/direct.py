"""DirectBackend: the hooks of a backend whose stream moves the bytes by itself.

Here: the code that the backends of the CPU, of CUDA and of ggml share. Not here: plans and scratch
(devices/); devices that add something to each transfer, as the simulated device does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.backend.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.backend.backend import Array
    from aggml.memory.buffer import Buffer
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

__all__ = ["DirectBackend"]


class DirectBackend(Backend):
    """A `Backend` that hands each operation to the native stream unchanged.

    The stream reads and writes the memory of the device at the addresses that tensors have, and
    runs the plans that `_compile` gives.
    """

    def _direct(self, plan: Any) -> bool:  # noqa: ANN401 - as `_compile` gave it
        return True

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(tensor, array, operation="set")

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(array, tensor, operation="get")

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=True, operation="set")

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=False, operation="get")

    def _set_parts(self, parts: Sequence[tuple[Tensor, Array, int]]) -> Future[None]:
        if type(self)._set_bytes is not DirectBackend._set_bytes:  # a device adds something to it
            return super()._set_parts(parts)
        return self.stream.copy_parts(parts, to_tensor=True, operation="set")

    def _get_parts(self, parts: Sequence[tuple[Tensor, Array, int]]) -> Future[None]:
        if type(self)._get_bytes is not DirectBackend._get_bytes:
            return super()._get_parts(parts)
        return self.stream.copy_parts(parts, to_tensor=False, operation="get")

    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        return self.stream.fill(tensor, value, offset, size)

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        return self.stream.copy(dst, src)

    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        return self.stream.clear(buffer, value)

    def _compute(self, plan: Any, arena: Buffer | None) -> Future[None]:  # noqa: ANN401
        return self.stream.run_plan(plan, arena)
