"""Link: a connection between two stages, or between the driver and a stage.

One side listens on its node's address, the other side connects. First both prove that they know the
key of the pipeline, which the driver gave them over Ray: each answers the other's random number
with an HMAC. The key itself does not cross the connection. All later messages are neither encrypted
nor signed. Here: proving, sending, receiving, answering pings. Not here: the bytes of a message
(frames.py), the meaning of messages (neighbours.py, wire.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import struct
import sys
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from aggml.ray.frames import Frame, Frames, MessageKind, pack_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["KEY_BYTES", "Link", "Peer", "Role", "connect", "listen"]

KEY_BYTES: Final = 32
NONCE: Final = 16
MAGIC: Final = b"aggml-1\0"
HELLO: Final = struct.Struct(f"<8s{NONCE}sBq32s")  # magic, nonce, role, epoch, proof
PROVING: Final = 10.0  # seconds that a peer may take to prove that it knows the key
#: With these options a node that vanishes (power, cable) is noticed after some 20 seconds.
SILENCE: Final = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 20000,
}
#: Whether asyncio's `writelines` calls `pause_writing`. In Python 3.12.0 to 3.12.8, 3.13.0 and
#: 3.13.1 it does not (CVE-2024-12254), so a sender would fill its memory. `write` always does.
_PYTHON: Final[tuple[int, ...]] = tuple(sys.version_info[:3])
_PAUSES: Final = not ((3, 12) <= _PYTHON < (3, 12, 9) or (3, 13) <= _PYTHON < (3, 13, 2))


class Role(IntEnum):
    """What the connecting side is for the listening side."""

    BEFORE = 1  # it sends steps
    AFTER = 2  # it takes results
    CLOCK = 3  # it asks for the time


class Peer(Protocol):
    """The owner of links, which handles their messages."""

    def on_frame(self, link: Link, frame: Frame) -> None:
        """Called when a message has arrived."""
        ...

    def on_end(self, link: Link) -> None:
        """Called when the other side is gone or does not answer."""
        ...


class Link(asyncio.BufferedProtocol):
    """One side of a connection. All of it runs on one asyncio loop.

    Args:
        key: of the pipeline.
        peer: gets the messages and is told of the end.
        role, epoch: of the connecting side; a ``role`` of None means that this side listens.
        accepted: called on the listening side when the other side has proved that it knows the key.
    """

    def __init__(
        self,
        key: bytes,
        peer: Peer,
        role: Role | None = None,
        epoch: int = 0,
        accepted: Callable[[Link], None] | None = None,
    ) -> None:
        self._key = key
        self._peer = peer
        self._accepted = accepted
        self.role = role
        self.epoch = epoch
        self._listens = role is None
        self._mine = secrets.token_bytes(NONCE)
        self._theirs = b""
        self._proving = bytearray()  # received bytes of the other side's next message of the proof
        self._small = bytearray(HELLO.size)
        self._frames: Frames | None = None  # None: the other side has not proved itself yet
        self._loop = asyncio.get_running_loop()
        self.proved: asyncio.Future[None] = self._loop.create_future()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self, kind: MessageKind, value: object, arrays: Sequence[Any] = ()) -> None:
        """Send a message; messages stay in order. `drain` waits until there is room for more."""
        if self._transport is not None and not self._transport.is_closing():
            pieces = pack_message(kind, value, arrays)
            if _PAUSES:
                self._transport.writelines(pieces)
            else:
                for piece in pieces:
                    self._transport.write(piece)

    async def drain(self) -> None:
        """Wait until most of the sent bytes have left the buffer."""
        await self._flowing.wait()

    def close(self) -> None:
        """Close the connection after all buffered bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = transport
        _watch(transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(
            PROVING, self._refuse, f"it did not prove within {PROVING:g} s that it knows the key"
        )
        if self._listens:
            self._transport.write(self._mine)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._flowing.set()
        self._stop_timer()
        if not self.proved.done():
            self.proved.set_exception(ConnectionError(f"the connection was closed: {exc}"))
            self.proved.exception()  # marks it as seen: maybe nobody awaits it
        self._peer.on_end(self)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._flowing.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._flowing.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        if self._frames is not None:
            return self._frames.room()
        return memoryview(self._small)[: self._proof_bytes() - len(self._proving)]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._frames is not None:
            for frame in self._frames.receive(nbytes):
                self._handle(frame)
            return
        self._proving += self._small[:nbytes]
        if len(self._proving) == self._proof_bytes():
            got, self._proving = bytes(self._proving), bytearray()
            self._prove(got)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is MessageKind.PING:
            self.send(MessageKind.PONG, (frame.value, time.perf_counter()))
        else:
            self._peer.on_frame(self, frame)

    # -- proving

    def _proof_bytes(self) -> int:
        """How many bytes the other side's next message of the proof has."""
        if self._listens:
            return HELLO.size
        return len(self._proof(b"")) if self._theirs else NONCE

    def _proof(self, side: bytes) -> bytes:
        server, client = self._mine, self._theirs
        if not self._listens:
            server, client = client, server
        said = struct.pack("<Bq", self.role or 0, self.epoch)
        return hmac.digest(self._key, side + server + client + said, hashlib.sha256)

    def _prove(self, got: bytes) -> None:
        if self._listens:
            magic, self._theirs, role, self.epoch, proof = HELLO.unpack(got)
            if magic != MAGIC or role not in {*Role}:
                self._refuse("its first message is not that of a stage or driver of this version")
                return
            self.role = Role(role)
            if not hmac.compare_digest(proof, self._proof(b"connects")):
                self._refuse("it does not know the key of this pipeline")
                return
            self._transport.write(self._proof(b"listens"))
            self._accept_proof()
            assert self._accepted is not None
            self._accepted(self)
        elif not self._theirs:
            self._theirs = got
            assert self.role is not None
            self._transport.write(
                HELLO.pack(MAGIC, self._mine, self.role, self.epoch, self._proof(b"connects"))
            )
        elif hmac.compare_digest(got, self._proof(b"listens")):
            self._accept_proof()
        else:
            self._refuse("it does not know the key of this pipeline")

    def _accept_proof(self) -> None:
        self._stop_timer()
        self._frames = Frames()
        self.proved.set_result(None)

    def _refuse(self, why: str) -> None:
        self._stop_timer()
        if not self.proved.done():
            self.proved.set_exception(ConnectionError(f"the peer was refused: {why}"))
            self.proved.exception()  # marks it as seen: maybe nobody awaits it
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _watch(sock: Any) -> None:  # noqa: ANN401 a socket, as the loop wraps it
    """Set a socket's options: send small messages at once, notice a peer that vanishes."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE.items():
        option = getattr(socket, name, None)  # some exist on Linux only
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def listen(
    host: str, key: bytes, peer: Peer, accepted: Callable[[Link], None]
) -> tuple[asyncio.AbstractServer, int]:
    """Listen on an address of this node; returns the server and its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Link(key, peer, accepted=accepted), host, 0)
    return server, server.sockets[0].getsockname()[1]


async def connect(address: tuple[str, int], key: bytes, peer: Peer, role: Role, epoch: int) -> Link:
    """Connect to a stage.

    Raises:
        OSError: nobody listens there, or the other side has another key.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROVING):
        _, link = await loop.create_connection(lambda: Link(key, peer, role, epoch), *address)
        await link.proved
    return link
