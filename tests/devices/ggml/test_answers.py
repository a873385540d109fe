"""Answers of a server: each costs a round trip, so the backend asks for as few as possible.

Not here: values (test_conformance.py), servers that are lost (test_lost.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
from devices.ggml import builds

import aggml
import aggml.devices.ggml as ggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# An answer begins with its length. If nothing else is fetched, one byte is asked for.
SIZE, BYTE = 8, 1


class Line:
    """A port that forwards its connections to another port; counts the bytes that come back."""

    def __init__(self, to: int) -> None:
        self.answered = 0
        self._to = to
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._start(self._accept)

    def _start(self, call: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=call, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._pass_on, near, far, False)
                self._start(self._pass_on, far, near, True)

    def _pass_on(self, source: socket.socket, to: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if back:
                    self.answered += len(piece)
                to.sendall(piece)
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End all connections."""
        for end in (self._listening, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait there
        for thread in self._threads:
            thread.join()
        for end in (self._listening, *self._ends):
            end.close()


@contextlib.contextmanager
def line() -> Iterator[tuple[Line, aggml.Device]]:
    """A server behind a `Line`, and its device."""
    builds.devices()
    process, endpoint = builds.start_server()
    between = Line(int(endpoint.rpartition(":")[2]))
    try:
        yield between, ggml.connect(f"127.0.0.1:{between.port}")[0]
    finally:
        process.kill()
        process.wait()
        between.close()


async def test_what_is_fetched_behind_a_graph_tells_that_it_has_ended() -> None:
    with line() as (between, device):
        async with device.backend() as be:
            x, large = aggml.new_tensor("f32", ne=(4,)), aggml.new_tensor("f32", ne=(1 << 20,))
            y = ops.scale(x, 2.0)
            graph = Graph(y)
            be.alloc([x, large])
            be.alloc_graph(graph)
            data = np.arange(4, dtype=np.float32)
            await be.set(x, data)
            await be.graph_compute(graph)
            answers = set()
            for _ in range(20):
                before = between.answered
                # While this is sent the next operations are queued, so they are issued without a
                # gap.
                sent = be.set(large, np.zeros(1 << 20, np.float32))
                computed, got = be.graph_compute(graph), be.get(y)
                assert np.array_equal(await got, 2 * data)
                await sent
                await computed
                answers.add(between.answered - before)
            assert min(answers) == SIZE + y.nbytes, answers
            assert max(answers) <= 2 * SIZE + y.nbytes + BYTE, answers


async def test_a_graph_behind_which_nothing_is_fetched_is_asked_for_a_byte() -> None:
    with line() as (between, device):
        async with device.backend() as be:
            x = aggml.new_tensor("f32", ne=(4,))
            graph = Graph(ops.scale(x, 2.0))
            be.alloc([x])
            be.alloc_graph(graph)
            await be.set(x, np.zeros(4, np.float32))
            await be.graph_compute(graph)
            before = between.answered
            for _ in range(5):
                await be.graph_compute(graph)
            assert between.answered - before == 5 * (SIZE + BYTE)
