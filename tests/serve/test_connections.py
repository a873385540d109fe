"""Connections over real sockets: half-closed clients, HTTP/1.0, heads and bodies that never end.

Not here: hang-ups in the middle of an answer (test_ends.py).
"""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import httpx
import pytest
from serve.support import GREEDY, PATIENCE, started
from waiting import wait_until

from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = ["--header-timeout", "1", "--body-timeout", "1", "--ctx", "4096", "--ping", "0.2"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    file = write_small(tmp_path_factory.mktemp("models") / "small.gguf")
    with started([file], "uvicorn", more=SHORT) as (_, url):
        yield "127.0.0.1", int(url.rpartition(":")[2])


def request(body: dict[str, object], version: str = "1.1") -> bytes:
    data = json.dumps({"prompt": "a", "max_tokens": 8, **GREEDY, **body}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: here\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


def read(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    connection.settimeout(PATIENCE)
    found = b""
    while part := connection.recv(1 << 16):
        found += part
    return found


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_closed_its_sending_half_gets_the_whole_answer(
    address: tuple[str, int], version: str, stream: bool
) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(request({"stream": stream, "max_tokens": 60}, version))
        connection.shutdown(socket.SHUT_WR)
        found = read(connection)
    head, _, body = found.rpartition(b"\r\n\r\n") if not stream else found.partition(b"200 OK")
    assert b" 200 OK" in found
    if version == "1.0":
        assert b"102 Processing" not in found  # such clients know no interim responses
    if stream:
        assert b"data: [DONE]" in body
    else:
        assert json.loads(body)["usage"]["completion_tokens"] == 60, head


def test_a_client_that_has_gone_without_a_word_is_noticed(address: tuple[str, int]) -> None:
    url = f"http://{address[0]}:{address[1]}"
    with socket.create_connection(address) as connection:
        connection.sendall(request({"max_tokens": 4000}))
        busy(url, 1.0)
    busy(url, 0.0)


def busy(url: str, wanted: float) -> None:
    """Wait until so many sequences have a slot."""
    line = f'aggml_active{{model="small"}} {wanted}'
    wait_until(lambda: line in httpx.get(f"{url}/metrics").text, PATIENCE)


def test_a_stream_over_http_1_0_ends_with_the_connection(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(request({"stream": True}, "1.0"))
        head, _, body = read(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    lines = body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(x.startswith(("data: ", ": ")) for x in lines[:-1])


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("part", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nX-Lo"])
def test_a_head_that_never_ends_is_closed_after_a_time(
    address: tuple[str, int], part: bytes
) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(part)
        assert b" 408 " in read(connection)


@pytest.mark.long
def test_a_head_that_comes_byte_by_byte_is_closed_after_a_time(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.1):
                try:
                    connection.sendall(b"X")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        thread.start()
        try:
            assert b" 408 " in read(connection)
        except ConnectionResetError:
            pass  # it closed while a byte was on its way
        finally:
            ended.set()
            thread.join()


@pytest.mark.long
def test_a_body_that_never_ends_is_closed_after_a_time(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(request({})[:-5])
        found = read(connection)
    assert b" 408 " in found
    assert b"the next part of the body did not come within 1 s" in found


def test_a_kept_connection_answers_several_requests(address: tuple[str, int]) -> None:
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        for _ in range(3):
            assert client.get("/health").status_code == 200
