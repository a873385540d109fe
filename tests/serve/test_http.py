"""aggml.serve over HTTP: answers and errors in process, OpenAI's client with real servers.

Not here: each field of a request (test_fields.py), hang-ups and stops (test_ends.py).
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from serve.support import GREEDY, PATIENCE, SMALL, engine_of, events, serving, started

from aggml.models import DeadlineError, FullError, ModelError
from aggml.models.small import write_small
from aggml.serve.http import Options, application
from aggml.serve.http.forms import Failure, event_of

if TYPE_CHECKING:
    from pathlib import Path

    import httpx


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.mark.either_loop
async def test_streamed_and_whole_say_the_same(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
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
    assert whole["usage"] == {
        "prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_an_event_is_one_line_for_everyone() -> None:
    text = "a\u2028b\x85c\u2029d\ne\u00e9"
    event = event_of({"text": text})
    assert event.endswith(b"\n\n")
    assert len(event.decode().splitlines()) == 2
    assert json.loads(event[6:]) == {"text": text}


@pytest.mark.either_loop
async def test_chats_choices_seeds_and_stops(file: Path) -> None:
    async with serving(models=[file]) as (_, client):

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


@pytest.mark.either_loop
async def test_several_prompts_as_texts_and_as_tokens(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        texts = {"prompt": ["ab", "c"], "max_tokens": 4, **GREEDY}
        one = (await client.post("/v1/completions", json=texts)).json()
        letter = {c: 260 + ord(c) - 33 for c in "abc"}
        ids = [[1, 259, letter["a"], letter["b"]], [1, 259, letter["c"]]]
        other = (await client.post("/v1/completions", json=texts | {"prompt": ids})).json()
    assert [x["text"] for x in one["choices"]] == [x["text"] for x in other["choices"]]
    assert one["usage"]["prompt_tokens"] == 7


@pytest.mark.either_loop
async def test_embeddings_as_numbers_and_as_base64(minilm: Path) -> None:
    async with serving(models=[minilm]) as (_, client):
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


@pytest.mark.long(cases=6)
@pytest.mark.either_loop
@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", "{", 400, "truncated"),
        ("completions", "{}", 400, "prompt"),
        ("completions", '{"prompt": 5}', 400, "input 0 is neither"),
        ("completions", '{"prompt": [true]}', 400, "input 0 is neither"),
        (
            "completions",
            '{"prompt": [' + "1," * 512 + "1]}",
            400,
            "maximum context length is 512 tokens, but the prompt has 513",
        ),
        ("completions", '{"prompt": []}', 400, "0 inputs"),
        ("completions", '{"prompt": [[]]}', 400, "input 0 is neither"),
        ("completions", '{"prompt": ["a", [1, "b"]]}', 400, "input 1 is neither"),
        ("completions", '{"prompt": [5000]}', 400, "no token 5000, the model has 0 to 353"),
        ("completions", '{"prompt": "a", "max_tokens": -3}', 400, "max_tokens"),
        ("completions", '{"prompt": "a", "temperature": -2}', 400, "temperature"),
        ("completions", '{"prompt": "a", "top_p": -0.1}', 400, "top_p"),
        ("completions", '{"prompt": "a", "n": 99}', 400, "^n: Expected .int. <= 64"),
        ("completions", '{"prompt": "a", "echo": 5}', 400, "echo"),
        ("completions", '{"prompt": "a", "suffix": "b"}', 400, "filling a gap"),
        ("completions", '{"prompt": [[-1]]}', 400, "input 0 is neither"),
        ("completions", '{"prompt": [1, 100000000000000000000]}', 400, "the model has 0 to 353"),
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
        ("rerank", '{"query": "a", "documents": ["b"]}', 404, "no model for rerank"),
        ("completions", '{"prompt": "a", "timeout": 1e-9, "max_tokens": 500}', 504, "deadline"),
    ],
)
async def test_bad_requests_are_told_why(
    file: Path, path: str, body: str, status: int, message: str
) -> None:
    async with serving(models=[file]) as (_, client):
        response = await client.post(f"/v1/{path}", content=body)
        assert response.status_code == status
        assert re.search(message, response.json()["error"]["message"])
        good = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert good.status_code == 200


@pytest.mark.either_loop
async def test_what_no_route_takes_is_told_as_other_errors(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
            response = await client.request(method, path)
            assert response.status_code == status
            assert path in response.json()["error"]["message"]
        response = await client.request("PUT", "/v1/models/load")  # fits /v1/models/{name}, too
        assert response.headers["allow"] == "GET, HEAD, POST"
        response = await client.request("PUT", "/v1/responses/x")
        assert response.headers["allow"] == "DELETE, GET, HEAD"


@pytest.mark.either_loop
async def test_any_whole_number_is_a_seed(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        texts = []
        for seed in (-2, -2, 1 << 63):
            given = {"prompt": "a", "max_tokens": 8, "seed": seed, "temperature": 5.0, "top_p": 1.0}
            response = await client.post("/v1/completions", json=given | {"ignore_eos": True})
            texts.append(response.json()["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


async def test_a_full_queue_answers_503(file: Path) -> None:
    async with serving(models=[file], slots=1, max_waiting=1) as (app, client):
        engine = engine_of(app)
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


@pytest.mark.either_loop
async def test_health_models_and_metrics(minilm: Path, file: Path) -> None:
    async with serving(models=[file, minilm]) as (app, client):
        await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 5, **GREEDY})
        assert (await client.get("/health")).json()["status"] == "ok"
        names = [x["id"] for x in (await client.get("/v1/models")).json()["data"]]
        assert names == ["small", "minilm"]
        metrics = (await client.get("/metrics")).text
        for line in (
            'aggml_tokens{model="small"} 5.0',
            'aggml_prompt_tokens{model="small"} 3.0',
            'aggml_pages_used{model="small"} 0.0',
        ):
            assert line in metrics
        assert re.search(r"aggml_loop_lag_max_seconds \d", metrics)
        app.state.service.stopping = True
        assert (await client.get("/health")).status_code == 503


@pytest.mark.either_loop
async def test_requests_bring_the_key_of_the_server(file: Path) -> None:
    async with serving(models=[file], api_key="s3cret") as (_, client):
        given = {"prompt": "hello", "max_tokens": 2}
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic s3cret"}):
            for path in ("completions", "models"):
                method = "GET" if path == "models" else "POST"
                answer = await client.request(method, f"/v1/{path}", json=given, headers=wrong)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer s3cret"}
        answer = await client.post("/v1/completions", json=given, headers=right)
        assert answer.status_code == 200
        assert (await client.get("/health")).json() == {"status": "ok"}  # no names of models
        for path in ("/metrics", "/v1/models", "/models", "/props", "/slots", "/api/tags"):
            assert (await client.get(path)).status_code == 401, path
            assert (await client.get(path, headers=right)).status_code == 200, path
        for other in ({"X-Api-Key": "s3cret"}, {"api-key": "s3cret"}):
            answer = await client.post("/v1/completions", json=given, headers=other)
            assert answer.status_code == 200


@pytest.mark.either_loop
async def test_models_are_asked_by_name(file: Path, tmp_path: Path) -> None:
    other = write_small(tmp_path / "other.gguf", seed=1, name="other")
    async with serving(models=[file, other]) as (_, client):

        async def ask(**model: str) -> Any:
            given = {"prompt": "hello", "max_tokens": 6, **GREEDY, **model}
            return (await client.post("/v1/completions", json=given)).json()

        first, second = await ask(), await ask(model="other")
        assert (first["model"], second["model"]) == (SMALL, "other")
        assert first["choices"] == (await ask(model=SMALL))["choices"]
        assert first["choices"] != second["choices"]


async def test_two_models_of_one_name_are_refused(file: Path) -> None:
    with pytest.raises(ModelError, match=r"two models have the name 'small'.*--alias"):
        application(Options(models=[file, file]))


@pytest.mark.either_loop
async def test_models_have_the_names_that_they_are_given(file: Path, tmp_path: Path) -> None:
    """Two files of one name are told apart by their aliases; the first alias is the one told."""
    other = write_small(tmp_path / file.name)
    aliases = ["gpt-4o", "chat", f"second={other}"]
    async with serving(models=[file, other], aliases=aliases) as (_, client):
        listed = [x["id"] for x in (await client.get("/v1/models")).json()["data"]]
        assert listed == ["gpt-4o", "chat", "second"]  # "small" would mean both
        for name, told in ((None, "gpt-4o"), ("chat", "chat"), ("second", "second")):
            given = {"prompt": "a", "max_tokens": 1, "model": name}
            answer = await client.post("/v1/completions", json=given)
            assert answer.json()["model"] == told
        missing = await client.post("/v1/completions", json={"prompt": "a", "model": "gpt-9"})
        assert missing.status_code == 404
        for name in listed:  # a client that guessed can see what there is
            assert repr(name) in missing.json()["error"]["message"]


# -- real servers


@pytest.mark.long
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_openai_s_client_talks_to_it(file: Path, minilm: Path, server: str) -> None:
    import openai  # imported here: it takes 0.7 s in each process that collects tests

    with started([file, minilm], server) as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=PATIENCE)
        assert next(x.id for x in client.models.list()) == SMALL
        chat = client.chat.completions.create(
            model=SMALL, messages=[{"role": "user", "content": "hi"}], max_tokens=6, temperature=0
        )
        wanted = chat.choices[0].message.content
        stream = client.chat.completions.create(
            model=SMALL, messages=[{"role": "user", "content": "hi"}], max_tokens=6, temperature=0,
            stream=True,
        )  # fmt: skip
        assert "".join(x.choices[0].delta.content or "" for x in stream) == wanted
        text = client.completions.create(model=SMALL, prompt="hi", max_tokens=6)
        assert text.usage is not None
        assert text.usage.prompt_tokens == 4
        vectors = client.embeddings.create(model="minilm", input=["a cat", "a kitten"])
        assert len(vectors.data[1].embedding) == 384
        with pytest.raises(openai.BadRequestError, match="the model has 0 to 353"):
            client.completions.create(model=SMALL, prompt=[999])
        assert client.models.retrieve(SMALL).id == SMALL
        with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served here") as caught:
            client.completions.create(model="gpt-9", prompt="hi")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="'functions' is not supported") as refused:
            client.chat.completions.create(
                model=SMALL, messages=[{"role": "user", "content": "hi"}],
                functions=[{"name": "f"}],
            )  # fmt: skip
        assert refused.value.param == "functions"
        told = client.chat.completions.create(
            model=SMALL, messages=[{"role": "user", "content": "hi"}], max_tokens=3, temperature=0,
            logprobs=True, top_logprobs=2, presence_penalty=0.5, logit_bias={"300": 1},
        )  # fmt: skip
        assert told.choices[0].logprobs is not None
        content = told.choices[0].logprobs.content
        assert content is not None
        assert [len(x.top_logprobs) for x in content] == [2, 2, 2]
        with pytest.raises(openai.APIStatusError, match="more than 16777216 bytes"):
            client.completions.create(model=SMALL, prompt="x" * (17 << 20))


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_find_a_free_slot_are_not_refused_for_the_queue(
    file: Path, stream: bool
) -> None:
    async with serving(models=[file], slots=8, max_waiting=1) as (_, client):
        found: list[httpx.Response] = []

        async def one(i: int) -> None:
            given = {"prompt": [1, 5 + i], "max_tokens": 4, "stream": stream, **GREEDY}
            found.append(await client.post("/v1/completions", json=given))

        for _ in range(2):
            del found[:]
            async with anyio.create_task_group() as tasks:
                for i in range(8):
                    tasks.start_soon(one, i)
            assert [x.status_code for x in found] == [200] * 8
            assert not any("error" in x.text for x in found)
        several = {"prompt": [1, 5], "max_tokens": 4, "n": 8, **GREEDY}
        assert (await client.post("/v1/completions", json=several)).status_code == 200
        answer = await client.post("/v1/completions", json=several | {"n": 10})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    "error", [DeadlineError("[generate] too late"), FullError("[generate] too late", 1)]
)
def test_clients_get_no_names_of_calls_in_python(error: Exception) -> None:
    assert Failure(error).message == "too late"
