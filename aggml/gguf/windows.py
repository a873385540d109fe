"""Windows of a mapped file that a device reads where they lie, while tensors are loaded from it.

Here: which windows are registered, and when no longer. Not here: registering (`register_host` of
devices), loading (file.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from aggml.errors import AggmlError, AllocFailed, DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from aggml.backend.backend import Device
    from aggml.stream.future import Future

__all__ = ["RegisteredWindows"]

# Bytes, whole pages. A registered window stays in memory, pinned, so windows are small.
WINDOW: Final = 64 << 20


class RegisteredWindows:
    """The windows that one load has registered with a device.

    Registering brings a window into memory and pins it. This may take long, so threads do it. If
    the system refuses to pin more, the rest of the file is loaded without registering.

    Args:
        device: the device to which tensors are loaded.
        data: the bytes of the file.
        mapped: whether the file is mapped. If not, nothing is registered.
    """

    def __init__(self, device: Device, data: npt.NDArray[np.uint8], *, mapped: bool) -> None:
        self._register = device.register_host if device.registers_files and mapped else None
        self._data = data.view()
        # Otherwise registering would make a copy of each page for this process.
        self._data.flags.writeable = False
        self._open: dict[int, AbstractContextManager[None]] = {}

    def pieces(self, offset: int, size: int, most: int) -> Iterator[tuple[int, int]]:
        """Cut a tensor into pieces; yield the begin and end of each, relative to ``offset``.

        Args:
            offset: of the tensor, in the file.
            size: bytes of the tensor.
            most: bytes of a piece. No piece lies in two windows, because drivers copy from a single
                registration.
        """
        begin = 0
        while begin < size:
            end = min(size, begin + most)
            if self._register is not None:
                end = min(end, ((offset + begin) // WINDOW + 1) * WINDOW - offset)
            yield begin, end
            begin = end

    async def reach(self, offset: int, under_way: Iterable[int]) -> None:
        """Register the window that holds a byte; release windows that no copy reads any more.

        Args:
            offset: of the byte, in the file.
            under_way: bytes, one of each piece that is being copied.
        """
        number = offset // WINDOW
        if self._register is None or number in self._open:
            return
        await self._give_back(set(self._open) - {place // WINDOW for place in under_way})
        manager = self._register(self._data[number * WINDOW : (number + 1) * WINDOW])
        try:
            await anyio.to_thread.run_sync(manager.__enter__)
        except (AllocFailed, DeviceError):
            self._register = None
        else:
            self._open[number] = manager

    async def close(self, under_way: Iterable[Future[None]]) -> None:
        """Give all of them back, once what is being copied has come or failed."""
        if not self._open:
            return
        with anyio.CancelScope(shield=True):
            for future in under_way:
                with contextlib.suppress(AggmlError):
                    await future
            await self._give_back(set(self._open))

    async def _give_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            await anyio.to_thread.run_sync(self._open.pop(number).__exit__, None, None, None)
