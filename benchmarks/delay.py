"""A proxy with a delay: all bytes that arrive at one port are sent to another port later.

    python -m benchmarks.delay PORT TO SECONDS

Here: TCP connections on this machine, to simulate distant servers. Not here: the measurements that
use it (ggml_servers.py).
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time

_SPIN = 1.5e-4  # seconds; a sleep ends about 0.1 ms late


def _at(due: float) -> None:
    while (left := due - time.perf_counter()) > 0:
        if left > _SPIN:
            time.sleep(left - _SPIN)


def _pass_on(source: socket.socket, to: socket.socket, seconds: float) -> None:
    """Pass on each piece ``seconds`` after it came, until the end."""
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due, piece = pieces.get()
            _at(due)
            if not piece:
                with contextlib.suppress(OSError):
                    to.shutdown(socket.SHUT_WR)
                return
            with contextlib.suppress(ConnectionError):
                to.sendall(piece)

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        piece = b""
        with contextlib.suppress(ConnectionError):
            piece = source.recv(1 << 16)
        pieces.put((time.perf_counter() + seconds, piece))
        if not piece:
            return


def main() -> None:
    """Run the proxy until it is killed."""
    port, to, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            near, _ = listening.accept()
            far = socket.create_connection(("127.0.0.1", to))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(*pair, seconds), daemon=True).start()


if __name__ == "__main__":
    main()
