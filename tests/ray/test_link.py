"""Connections between stages: messages arrive whole and in order, strangers are refused."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing
from hypothesis import given
from hypothesis import strategies as st

import aggml
import aggml.ray.link
from aggml.ray.frames import Frames, MessageKind, pack_message
from aggml.ray.link import KEY_BYTES, Link, Role, connect, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.ray.frames import Frame

KEY = secrets.token_bytes(KEY_BYTES)
DTYPES = ("<f4", "<i4", "|u1", "<f2")


class _Peer:
    """Keeps the messages and connections that arrive."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.links: list[Link] = []
        self.over = 0
        self.changed = asyncio.Event()

    def on_frame(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)
        self.changed.set()

    def on_end(self, link: Link) -> None:
        self.over += 1
        self.changed.set()

    def accepted(self, found: Link) -> None:
        self.links.append(found)
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.long
@given(st.data())
def test_frames_are_put_together_however_their_bytes_come(data: st.DataObject) -> None:
    shapes = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
    arrays = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=3)
    sent = data.draw(st.lists(st.tuples(st.sampled_from([*MessageKind]), arrays), max_size=6))
    made: list[tuple[MessageKind, int, list[Any]]] = []
    stream = bytearray()
    for i, (kind, described) in enumerate(sent):
        values = [
            np.arange(np.prod(shape), dtype=np.int64).astype(dtype).reshape(shape)
            for dtype, shape in described
        ]
        made.append((kind, i, values))
        for piece in pack_message(kind, i, values):
            stream += piece
    frames, got, at = Frames(), [], 0
    while at < len(stream):
        room = frames.room()
        n = min(len(room), len(stream) - at, data.draw(st.integers(1, 5000)))
        room[:n] = stream[at : at + n]
        got += frames.receive(n)
        at += n
    assert [(x.kind, x.value) for x in got] == [(kind, i) for kind, i, _ in made]
    for frame, (_, _, values) in zip(got, made, strict=True):
        for a, b in zip(frame.arrays, values, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_value_larger_than_a_block_and_an_array_larger_than_that() -> None:
    value, array = b"x" * 300_000, np.arange(200_000, dtype=np.float32)
    stream = b"".join(pack_message(MessageKind.STEP, value, [array[::2], array]))
    frames, got, at = Frames(), [], 0
    while at < len(stream):
        room = frames.room()
        n = min(len(room), len(stream) - at)
        room[:n] = stream[at : at + n]
        got += frames.receive(n)
        at += n
    (frame,) = got
    assert frame.value == value
    np.testing.assert_array_equal(frame.arrays[0], array[::2])
    np.testing.assert_array_equal(frame.arrays[1], array)
    # A device can use the array's memory without copying it.
    buffer = aggml.get_device("CPU").buffer_from_host(frame.arrays[0])
    assert buffer.size == frame.arrays[0].nbytes


# These tests run on asyncio only, as the connections do: a driver has a thread with a loop for
# them.


def test_messages_come_in_order_and_a_slow_reader_holds_the_sender_back() -> None:
    async def run() -> None:
        here, there = _Peer(), _Peer()
        server, port = await listen("127.0.0.1", KEY, there, there.accepted)
        one = await connect(("127.0.0.1", port), KEY, here, Role.BEFORE, 3)
        await there.until(lambda: len(there.links) == 1)
        (other,) = there.links
        assert (other.role, other.epoch) == (Role.BEFORE, 3)
        big = np.arange(1 << 20, dtype=np.float32)
        other._transport.pause_reading()
        sent = 0
        for i in range(64):  # 4 MB each
            try:
                await asyncio.wait_for(one.drain(), 0.2)
            except TimeoutError:
                break
            one.send(MessageKind.STEP, i, [big])
            sent += 1
        assert sent < 64
        other._transport.resume_reading()
        await there.until(lambda: len(there.frames) == sent)
        assert [x.value for x in there.frames] == list(range(sent))
        np.testing.assert_array_equal(there.frames[-1].arrays[0], big)
        other.send(MessageKind.DONE, "back")
        await here.until(lambda: len(here.frames) == 1)
        one.close()
        await there.until(lambda: there.over == 1)
        server.close()

    asyncio.run(run())


def test_who_does_not_know_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(aggml.ray.link, "PROVING", 0.5)
        here, there = _Peer(), _Peer()
        server, port = await listen("127.0.0.1", KEY, there, there.accepted)
        with pytest.raises(ConnectionError):
            await connect(("127.0.0.1", port), secrets.token_bytes(32), here, Role.BEFORE, 0)
        # a client of another protocol; a client that sends nothing
        for said in (b"GET / HTTP/1.1\r\n\r\n" * 8, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert len(await asyncio.wait_for(reader.read(), 10)) <= 16
            writer.close()
        assert there.links == []
        assert there.frames == []
        server.close()

    asyncio.run(run())


def test_a_listener_that_does_not_know_the_key_gets_no_message() -> None:
    """The listener may have taken over the address of a stage that died."""

    async def run() -> None:
        here, there = _Peer(), _Peer()
        server, port = await listen("127.0.0.1", secrets.token_bytes(32), there, there.accepted)
        with pytest.raises(ConnectionError):
            await connect(("127.0.0.1", port), KEY, here, Role.BEFORE, 0)
        server.close()
        impostor = socket.create_server(("127.0.0.1", 0))
        impostor.setblocking(False)
        port = impostor.getsockname()[1]
        loop = asyncio.get_running_loop()

        async def pretend() -> None:
            met, _ = await loop.sock_accept(impostor)
            with met:
                await loop.sock_sendall(met, b"n" * 16)
                await loop.sock_recv(met, 1000)
                await loop.sock_sendall(met, b"p" * 32)

        pretending = asyncio.create_task(pretend())
        with pytest.raises(ConnectionError, match="does not know the key"):
            await connect(("127.0.0.1", port), KEY, here, Role.BEFORE, 0)
        await pretending
        impostor.close()

    asyncio.run(run())
