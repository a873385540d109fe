"""examples/serve over HTTP: forms and errors in process, clients and signals with servers."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx
import numpy as np
import openai
import pytest
from serve.app import Options, application
from serve.forms import event_of
from serve.small import write_small
from serve.streams import LARGEST, TooLargeError, body_of
from starlette.requests import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, MutableMapping

    from starlette.applications import Starlette

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Starlette, httpx.AsyncClient]]:
    app = application(Options(threads=2, ctx=512, **options))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            with anyio.fail_after(PATIENCE):
                yield app, client


async def events(response: httpx.Response) -> list[Any]:
    lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


async def test_streamed_and_whole_say_the_same(file: Path) -> None:
    async with serving(model=file, embeddings=False) as (_, client):
        given = {"prompt": "hello", "max_tokens": 12, **GREEDY}
        whole = (await client.post("/v1/completions", json=given)).json()
        more = {"stream": True, "stream_options": {"include_usage": True}}
        response = await client.post("/v1/completions", json=given | more)
        assert response.headers["content-type"].startswith("text/event-stream")
        streamed = await events(response)
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "".join(x["choices"][0]["text"] for x in streamed[:-1]) == choice["text"]
    assert streamed[-2]["choices"][0]["finish_reason"] == "length"
    assert streamed[-1]["usage"] == whole["usage"]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 19}


def test_an_event_is_one_line_for_everyone() -> None:
    text = "a\u2028b\x85c\u2029d\ne\u00e9"
    event = event_of({"text": text})
    assert event.endswith(b"\n\n")
    assert len(event.decode().splitlines()) == 2
    assert json.loads(event[6:]) == {"text": text}


async def test_chats_choices_seeds_and_stops(file: Path) -> None:
    async with serving(model=file, embeddings=False) as (_, client):

        async def ask(**more: Any) -> Any:
            given = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10, **more}
            response = await client.post("/v1/chat/completions", json=given)
            assert response.status_code == 200, response.text
            return response.json()

        several = await ask(n=3, seed=5, temperature=2.0, top_k=0, ignore_eos=True)
        texts = [x["message"]["content"] for x in several["choices"]]
        assert [x["index"] for x in several["choices"]] == [0, 1, 2]
        assert len(set(texts)) == 3
        again = await ask(n=3, seed=5, temperature=2.0, top_k=0, ignore_eos=True)
        assert [x["message"]["content"] for x in again["choices"]] == texts
        whole = (await ask(**GREEDY))["choices"][0]["message"]["content"]
        stop = whole[3:5]
        stopped = (await ask(**GREEDY, stop=["never there", stop]))["choices"][0]
        assert stopped["message"]["content"] == whole[: whole.index(stop)]
        assert stopped["finish_reason"] == "stop"


async def test_several_prompts_as_texts_and_as_tokens(file: Path) -> None:
    async with serving(model=file, embeddings=False) as (_, client):
        texts = {"prompt": ["ab", "c"], "max_tokens": 4, **GREEDY}
        one = (await client.post("/v1/completions", json=texts)).json()
        letter = {c: 260 + ord(c) - 33 for c in "abc"}
        ids = [[1, 259, letter["a"], letter["b"]], [1, 259, letter["c"]]]
        other = (await client.post("/v1/completions", json=texts | {"prompt": ids})).json()
    assert [x["text"] for x in one["choices"]] == [x["text"] for x in other["choices"]]
    assert one["usage"]["prompt_tokens"] == 7


async def test_embeddings_as_numbers_and_as_base64() -> None:
    async with serving() as (_, client):
        given = {"input": ["A cat sleeps.", "The kitten dozes.", "Rates rose."]}
        plain = (await client.post("/v1/embeddings", json=given)).json()
        packed = given | {"encoding_format": "base64"}
        coded = (await client.post("/v1/embeddings", json=packed)).json()
        single = (await client.post("/v1/embeddings", json={"input": "Rates rose."})).json()
    vectors = np.array([x["embedding"] for x in plain["data"]], np.float32)
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    for i, x in enumerate(coded["data"]):
        got = np.frombuffer(base64.b64decode(x["embedding"]), "<f4")
        np.testing.assert_allclose(got, vectors[i], atol=1e-6)
    np.testing.assert_allclose(single["data"][0]["embedding"], vectors[2], atol=1e-5)
    assert plain["usage"]["prompt_tokens"] > single["usage"]["prompt_tokens"] > 3


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", "{", 400, "truncated"),
        ("completions", "{}", 400, "prompt"),
        ("completions", '{"prompt": 5}', 400, "input 0 is neither"),
        ("completions", '{"prompt": [true]}', 400, "input 0 is neither"),
        ("completions", '{"prompt": [' + "1," * 512 + "1]}", 400, "some 513 tokens, of 511"),
        ("completions", '{"prompt": []}', 400, "0 inputs"),
        ("completions", '{"prompt": [[]]}', 400, "input 0 is neither"),
        ("completions", '{"prompt": ["a", [1, "b"]]}', 400, "input 1 is neither"),
        ("completions", '{"prompt": [5000]}', 400, "5000 is no token of 354"),
        ("completions", '{"prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
        ("completions", '{"prompt": "a", "max_tokens": 600}', 400, "do not fit a context of 511"),
        ("completions", '{"prompt": "a", "temperature": -1}', 400, "temperature"),
        ("completions", '{"prompt": "a", "top_p": 0}', 400, "top_p"),
        ("completions", '{"prompt": "a", "n": 99}', 400, r"\$.n"),
        ("completions", '{"prompt": "a", "echo": true}', 400, "echo"),
        ("completions", '{"prompt": [[-1]]}', 400, "input 0 is neither"),
        ("completions", '{"prompt": [1, 100000000000000000000]}', 400, "is no token of 354"),
        ("completions", '{"prompt": ' + "[" * 100_000, 400, ""),
        ("completions", '{"prompt": "a\\ud800"}', 400, "truncated"),
        (
            "completions",
            '{"prompt": ' + str(["a"] * 20).replace("'", '"') + ', "n": 16}',
            400,
            "320",
        ),
        ("chat/completions", '{"messages": []}', 400, "messages"),
        ("chat/completions", '{"messages": [{"content": "a"}]}', 400, "role"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            400,
            "image_url",
        ),
        ("embeddings", '{"input": "a"}', 404, "no model for embeddings"),
        ("completions", '{"prompt": "a", "timeout": 1e-9, "max_tokens": 500}', 504, "deadline"),
    ],
)
async def test_bad_requests_are_told_why(
    file: Path, path: str, body: str, status: int, message: str
) -> None:
    async with serving(model=file, embeddings=False) as (_, client):
        response = await client.post(f"/v1/{path}", content=body)
        assert response.status_code == status
        assert re.search(message, response.json()["error"]["message"])
        good = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert good.status_code == 200


async def test_a_body_is_read_no_further_than_it_may_be_large() -> None:
    parts = iter(range(LARGEST // 1000 + 9))

    async def receive() -> dict[str, object]:
        next(parts)
        return {"type": "http.request", "body": b"a" * 1000, "more_body": True}

    with pytest.raises(TooLargeError, match=str(LARGEST)):
        await body_of(Request({"type": "http", "method": "POST"}, receive))
    assert list(parts) != []


async def test_what_no_route_takes_is_told_as_other_errors(file: Path) -> None:
    async with serving(model=file, embeddings=False) as (_, client):
        for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
            response = await client.request(method, path)
            assert response.status_code == status
            assert path in response.json()["error"]["message"]


async def test_any_whole_number_is_a_seed(file: Path) -> None:
    async with serving(model=file, embeddings=False) as (_, client):
        texts = []
        for seed in (-1, -1, 1 << 63):
            given = {"prompt": "a", "max_tokens": 8, "seed": seed, "temperature": 5.0, "top_p": 1.0}
            response = await client.post("/v1/completions", json=given | {"ignore_eos": True})
            texts.append(response.json()["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


async def test_a_full_queue_answers_503(file: Path) -> None:
    async with serving(model=file, embeddings=False, slots=1, max_waiting=1) as (app, client):
        engine = app.state.service.engine
        long = {"prompt": "a", "max_tokens": 400, **GREEDY}
        async with anyio.create_task_group() as tasks:
            for waiting in (0, 1):
                tasks.start_soon(lambda: client.post("/v1/completions", json=long))
                while engine.active + engine.queued <= waiting or not engine.active:
                    await anyio.lowlevel.checkpoint()
            response = await client.post("/v1/completions", json=long)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_slot(file: Path, stream: bool) -> None:
    """As a server tells it: http.disconnect while the answer is made."""
    body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": stream, **GREEDY}).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    async with serving(model=file, embeddings=False) as (app, client):
        engine = app.state.service.engine
        read = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal read
            if not read:
                read = True
                return {"type": "http.request", "body": body, "more_body": False}
            while not engine.counters.tokens:
                await anyio.lowlevel.checkpoint()
            return {"type": "http.disconnect"}

        async def send(_: MutableMapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()

        await app(scope, receive, send)
        steps = engine.counters.steps
        while engine.pages.used:
            await anyio.lowlevel.checkpoint()
        assert engine.counters.steps <= steps + 1
        assert engine.counters.tokens < 400
        metrics = (await client.get("/metrics")).text
        assert "aggml_hung_up_total 1.0" in metrics


async def test_health_models_and_metrics(file: Path) -> None:
    async with serving(model=file) as (app, client):
        await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 5, **GREEDY})
        assert (await client.get("/health")).json()["status"] == "ok"
        names = [x["id"] for x in (await client.get("/v1/models")).json()["data"]]
        assert names == ["all-MiniLM-L6-v2", "small-random-llama"]
        metrics = (await client.get("/metrics")).text
        for line in ("aggml_tokens 5.0", "aggml_prompt_tokens 3.0", "aggml_pages_used 0.0"):
            assert line in metrics
        assert re.search(r"aggml_loop_lag_max_seconds \d", metrics)
        app.state.service.stopping = True
        assert (await client.get("/health")).status_code == 503


# -- real servers


@contextmanager
def started(file: Path, server: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "examples/serve", "--model", str(file), "--server", server]
    process = subprocess.Popen(
        [*command, "--port", "0", "--drain", "30", "--threads", "2"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    lines: list[str] = []
    reader: threading.Thread | None = None
    assert process.stderr is not None
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise AssertionError("".join(lines))
        reader = threading.Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        yield process, f"http://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.wait(PATIENCE)
        if reader is not None:
            reader.join(PATIENCE)
        process.stderr.close()


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_openai_s_client_talks_to_it(file: Path, server: str) -> None:
    with started(file, server) as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=PATIENCE)
        assert [x.id for x in client.models.list()][1] == "small-random-llama"
        chat = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "hi"}], max_tokens=6, temperature=0
        )
        wanted = chat.choices[0].message.content
        stream = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "hi"}], max_tokens=6, temperature=0,
            stream=True,
        )  # fmt: skip
        assert "".join(x.choices[0].delta.content or "" for x in stream) == wanted
        text = client.completions.create(model="any", prompt="hi", max_tokens=6)
        assert text.usage is not None
        assert text.usage.prompt_tokens == 4
        vectors = client.embeddings.create(model="any", input=["a cat", "a kitten"])
        assert len(vectors.data[1].embedding) == 384
        with pytest.raises(openai.BadRequestError, match="no token of 354"):
            client.completions.create(model="any", prompt=[999])
        with pytest.raises(openai.APIStatusError, match="more than 1048576 bytes"):
            client.completions.create(model="any", prompt="x" * (5 << 20))


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_sigterm_lets_answers_end(file: Path, server: str) -> None:
    given = {"prompt": "a", "max_tokens": 300, "stream": True, **GREEDY}
    with started(file, server) as (process, address):
        with httpx.stream(
            "POST", f"{address}/v1/completions", json=given, timeout=PATIENCE
        ) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/health", timeout=PATIENCE)
