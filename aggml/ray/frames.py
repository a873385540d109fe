"""Frames: the bytes of one message between stages.

A frame is a head of fixed size, a pickled value, then a body of arrays. An array begins at a
multiple of 64 bytes of the body, so that a device can use it where it was received. Here: bytes
from values and values from bytes. Not here: sockets (link.py), the meaning of messages
(neighbours.py, wire.py).
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

import aggml

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Frame", "Frames", "MessageKind", "pack_message"]

Array = Any  # numpy's, of one of several types

HEAD: Final = struct.Struct("<BIQ")  # kind, bytes of the pickled value, bytes of the arrays
ALIGN: Final = 64
BLOCK: Final = 64 << 10  # bytes of the block in which small frames are received


class MessageKind(IntEnum):
    """Kinds of messages."""

    STEP = 1  # value: (number, step); arrays: the results of the previous stage
    DONE = 2  # value: number of the step; arrays: its results
    FAILED = 3  # value: (number of the step, exception)
    CANCEL = 4  # value: number of the step
    LOST = 5  # value: (number of the stage to which a neighbour lost its connection, why)
    PING = 6  # value: when it was sent, by the clock of the sender
    PONG = 7  # value: (the value of the ping, when it was answered by the clock there)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: MessageKind
    value: Any
    arrays: list[Array]


def _pad_size(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def pack_message(
    kind: MessageKind, value: object, arrays: Sequence[Array] = ()
) -> list[bytes | memoryview]:
    """The bytes of a message, in pieces: arrays are not copied if they are contiguous."""
    whole = [np.ascontiguousarray(x) for x in arrays]
    meta = pickle.dumps((value, [(x.dtype.str, x.shape) for x in whole]), pickle.HIGHEST_PROTOCOL)
    body: list[bytes | memoryview] = []
    for x in whole:
        if x.nbytes:
            body.append(x.reshape(-1).view(np.uint8).data)
            body.append(bytes(_pad_size(x.nbytes) - x.nbytes))
    size = sum(len(x) for x in body)
    return [HEAD.pack(kind, len(meta), size) + meta, *body]


class Frames:
    """Puts frames together from bytes as they come.

    Small frames are copied out of one block, in which many of them are received. The rest of a
    large frame's body is received directly into the memory of its arrays.
    """

    def __init__(self) -> None:
        self._block = bytearray(BLOCK)
        self._view = memoryview(self._block)
        self._have = 0  # bytes in the block
        self._head: tuple[MessageKind, Any, list[tuple[str, tuple[int, ...]]]] | None = None
        self._body: Array = None  # of the frame whose head was read
        self._got = 0  # bytes of the body that were received

    def room(self) -> memoryview:
        """The memory for the next bytes; `receive` is then told how many were received."""
        if self._head is not None:
            rest: memoryview = self._body[self._got :].data
            return rest
        return self._view[self._have :]

    def receive(self, n: int) -> list[Frame]:
        """Return the frames that are complete after ``n`` more bytes were written to `room`."""
        found: list[Frame] = []
        if self._head is not None:
            self._got += n
            if self._got < len(self._body):
                return found
            found.append(self._whole())
            return found
        self._have += n
        at = 0
        while used := self._begin(at):
            at += used
            if self._got < len(self._body):
                break  # the rest of the body is received into its own memory
            found.append(self._whole())
        if at:
            self._view[: self._have - at] = bytes(self._view[at : self._have])
            self._have -= at
        if not at and self._have == len(self._block):  # a head and its value do not fit the block
            self._grow()
        return found

    def _begin(self, at: int) -> int:
        """Begin the frame at ``at`` in the block; returns how many of its bytes the block has.

        0: the head or the value is not complete.
        """
        have = self._have - at
        if have < HEAD.size:
            return 0
        kind, meta, size = cast("tuple[int, int, int]", HEAD.unpack_from(self._block, at))
        if have < HEAD.size + meta:
            return 0
        start = at + HEAD.size
        value, shapes = pickle.loads(self._view[start : start + meta])
        self._head = MessageKind(kind), value, shapes
        self._body = aggml.empty((size,), np.uint8)
        self._got = min(size, have - HEAD.size - meta)
        start += meta
        self._body[: self._got] = np.frombuffer(self._view[start : start + self._got], np.uint8)
        return HEAD.size + meta + self._got

    def _whole(self) -> Frame:
        assert self._head is not None
        kind, value, shapes = self._head
        arrays, at = [], 0
        for dtype, shape in shapes:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(self._body[at : at + size].view(dtype).reshape(shape))
            at += _pad_size(size)
        self._head, self._body, self._got = None, None, 0
        return Frame(kind, value, arrays)

    def _grow(self) -> None:
        block = bytearray(2 * len(self._block))
        block[: self._have] = self._view
        self._block, self._view = block, memoryview(block)
