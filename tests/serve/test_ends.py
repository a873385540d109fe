"""aggml.serve: clients that hang up or stop in mid-upload, servers that are told to stop."""

from __future__ import annotations

import gc
import json
import signal
import socket
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from serve.support import GREEDY, PATIENCE, SMALL, engine_of, serving, started
from starlette.requests import Request
from waiting import until, wait_until

from aggml.models.small import write_small
from aggml.serve.http.streams import LARGEST, TooLargeError, body_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from aggml.models.engine.engine import Engine


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.mark.long(cases=1)
async def test_a_body_is_read_no_further_than_it_may_be_large() -> None:
    parts = iter(range(LARGEST // 1000 + 9))

    async def receive() -> dict[str, object]:
        next(parts)
        return {"type": "http.request", "body": b"a" * 1000, "more_body": True}

    with pytest.raises(TooLargeError, match=str(LARGEST)):
        await body_of(Request({"type": "http", "method": "POST"}, receive))
    assert list(parts) != []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_slot(file: Path, stream: bool) -> None:
    """A server reports it by http.disconnect while the answer is made."""
    body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": stream, **GREEDY}).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    async with serving(models=[file]) as (app, client):
        engine = engine_of(app)
        read = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal read
            if not read:
                read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await until(lambda: engine.counters.tokens)
            return {"type": "http.disconnect"}

        async def send(_: MutableMapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()

        await app(scope, receive, send)
        steps = engine.counters.steps
        await until(lambda: not engine.active)
        assert engine.counters.steps <= steps + 1
        assert engine.counters.tokens < 400
        metrics = (await client.get("/metrics")).text
        assert "aggml_hung_up_total 1.0" in metrics


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize("anyio_backend", ["trio"])  # asyncio's own tasks leave cycles
async def test_a_request_that_has_ended_is_freed_without_the_collector(
    file: Path, *, hangs_up: bool
) -> None:
    """Else a service keeps what it was, as the collector seldom searches all objects."""
    n = 400 if hangs_up else 3
    body = json.dumps({"prompt": "a", "max_tokens": n, "stream": True, **GREEDY}).encode()

    class Cycle:
        """A request as servers have it: the scope, and methods for the application."""

        def __init__(self, engine: Engine) -> None:
            self.scope: dict[str, Any] = {**POST, "state": {}}
            self.engine = engine
            self.read = False

        async def receive(self) -> MutableMapping[str, Any]:
            if not self.read:
                self.read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await until(lambda: self.engine.counters.tokens >= 3)
            if not hangs_up:
                await anyio.sleep_forever()
            return {"type": "http.disconnect"}

        async def send(self, _: MutableMapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()

    async with serving(models=[file]) as (app, _):
        cycle = Cycle(engine_of(app))
        found = weakref.ref(cycle)
        gc.collect()
        gc.disable()
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
            assert cycle.scope["state"]["exchange"].model == SMALL
            del cycle
            await anyio.wait_all_tasks_blocked()
            assert found() is None
        finally:
            gc.enable()


POST = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "headers": [],
    "query_string": b"",
}


async def test_a_client_that_leaves_in_mid_upload_is_no_failure(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b'{"prompt": "a', "more_body": True},
        {"type": "http.disconnect"},
    ]
    async with serving(models=[file]) as (app, client):

        async def receive() -> MutableMapping[str, Any]:
            await anyio.lowlevel.checkpoint()
            return parts.pop(0)

        async def send(_: MutableMapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()

        await app(POST, receive, send)
        metrics = (await client.get("/metrics")).text
        assert "aggml_hung_up_total 1.0" in metrics
        assert 'status="499"' in metrics
    assert caplog.records == []


async def test_a_stream_that_cannot_be_sent_is_no_failure(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers raise OSError when they send to a client that has hung up."""
    body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": True, **GREEDY}).encode()
    async with serving(models=[file]) as (app, client):
        asked = anyio.Event()

        async def receive() -> MutableMapping[str, Any]:
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": body, "more_body": False}
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()
            if message["type"] == "http.response.body":
                raise BrokenPipeError

        await app(POST, receive, send)
        await until(lambda: not engine_of(app).active)
        assert engine_of(app).counters.tokens < 400
        assert "aggml_hung_up_total 1.0" in (await client.get("/metrics")).text
    assert caplog.records == []


@pytest.mark.long(cases=1)
async def test_while_it_drains_new_requests_are_told_to_come_back(file: Path) -> None:
    given = {"prompt": "a", "max_tokens": 200, **GREEDY}
    async with serving(models=[file]) as (app, client):
        service = app.state.service
        answers: list[httpx.Response] = []
        drained = False

        async def ask() -> None:
            answers.append(await client.post("/v1/completions", json=given))

        async def drain() -> None:
            nonlocal drained
            await service.drain(PATIENCE)
            drained = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: engine_of(app).counters.tokens)
            tasks.start_soon(drain)
            while not service.stopping:
                await anyio.lowlevel.checkpoint()
            # keeps the answer from being finished
            with engine_of(app).decoder.site.host.stream.hold():
                for path in ("completions", "chat/completions", "embeddings"):
                    refused = await client.post(f"/v1/{path}", json=given)
                    assert refused.status_code == 503
                    assert int(refused.headers["retry-after"]) >= 1
                    assert "stopping" in refused.json()["error"]["message"]
                health = await client.get("/health")
                assert (health.status_code, health.json()["status"]) == (503, "stopping")
                assert int(health.headers["retry-after"]) >= 1
                assert (await client.get("/v1/models")).status_code == 200
                assert not drained
    assert drained
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_done_when_the_time_is_over_is_told_so(file: Path, stream: bool) -> None:
    given = {"prompt": "a", "max_tokens": 400, "stream": stream, **GREEDY}
    async with serving(models=[file]) as (app, client):
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await client.post("/v1/completions", json=given))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: engine_of(app).counters.tokens)
            await app.state.service.drain(0)
    assert "the server has stopped" in answers[0].text
    assert "[DONE]" not in answers[0].text
    assert answers[0].status_code == (200 if stream else 500)


# -- real servers


def uploading(address: str) -> socket.socket:
    """A connection on which a request has begun, whose body never ends."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(head.encode() + b'{"prompt": "a')
    return connection


def wait_for(address: str, line: str) -> None:
    """Wait until the metrics have this line."""
    wait_until(lambda: line in httpx.get(f"{address}/metrics", timeout=PATIENCE).text)


@pytest.mark.long
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_sigterm_lets_answers_end_and_answers_others_503(file: Path, server: str) -> None:
    given = {"prompt": "a", "max_tokens": 300, "stream": True, **GREEDY}
    with started([file], server) as (process, address), httpx.Client(timeout=PATIENCE) as client:
        # the server waits for this request, even if the other one ends soon
        with uploading(address):
            wait_for(address, "aggml_under_way 1.0")
            with client.stream("POST", f"{address}/v1/completions", json=given) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                while (
                    answer := httpx.get(f"{address}/health", timeout=PATIENCE)
                ).status_code == 200:
                    pass  # until the signal has arrived
                assert answer.status_code == 503
                answer = httpx.post(f"{address}/v1/completions", json=given, timeout=PATIENCE)
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        client.close()
        assert process.wait(PATIENCE) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/health", timeout=PATIENCE)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_a_second_signal_cuts_off_what_is_under_way(file: Path, server: str) -> None:
    given = {"prompt": "a", "max_tokens": 4000, "n": 16, "stream": True, **GREEDY}
    with started([file], server) as (process, address):
        with (
            httpx.Client(timeout=PATIENCE) as client,
            client.stream("POST", f"{address}/v1/completions", json=given) as response,
        ):
            # a reference is kept, since the client hangs up without it
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            health = f"{address}/health"
            wait_until(lambda: httpx.get(health, timeout=PATIENCE).status_code != 200)
            process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert "the server has stopped" in rest[-1]
        assert process.wait(PATIENCE) == 0


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_uploads_that_break_off_leave_no_trace_in_the_log(file: Path, server: str) -> None:
    said: list[str] = []
    with started([file], server, said) as (_, address):
        for _ in range(3):
            uploading(address).close()
        wait_for(address, "aggml_hung_up_total 3.0")
    assert "Traceback" not in "".join(said)
    assert "a request failed" not in "".join(said)
