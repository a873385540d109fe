"""What operators set: keys from a file, shares, CORS, limits, comments, models of a host, metrics.

Not here: connections (test_connections.py), what a request asks (test_fields.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from models.all_drafts import verify_all_drafts
from serve.support import GREEDY, engine_of, serving
from starlette.routing import Route
from waiting import until

from aggml import InvalidArgument
from aggml.models.small import write_small
from aggml.serve.http import Options, application
from aggml.serve.http.keys import ClientShares, read_keys
from aggml.serve.http.page import STATIC
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = {"prompt": "hello", "max_tokens": 2, **GREEDY}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_keys_come_from_a_file_with_names(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# for tests\nann k1\n\nk2\n")
    assert read_keys(keys) == [("ann", "k1"), ("key2", "k2")]
    async with serving(models=[file], api_key=["k0"], api_key_file=keys) as (_, client):
        for key, status in (("k0", 200), ("k1", 200), ("k2", 200), ("ann", 401), ("", 401)):
            answer = await client.post("/v1/completions", json=GIVEN, headers=bearer(key))
            assert answer.status_code == status, key
    for text, why in (("a b c", "line 1 .* has 3 words"), ("# none\n", "has no key")):
        keys.write_text(text)
        with pytest.raises(InvalidArgument, match=why):
            application(Options([file], api_key_file=keys))


def test_shares_are_counted_for_each_client() -> None:
    now = 0.0
    shares = ClientShares(rate=2, at_once=None, clock=lambda: now)

    def ask(client: str) -> float | None:
        try:
            with shares.take(client):
                return None
        except RequestError as error:
            return error.retry if error.status == 429 else None

    assert [ask("a"), ask("a"), ask("b")] == [None, None, None]
    assert ask("a") == pytest.approx(30)
    now = 30.0
    assert [ask("a"), ask("a")] == [None, pytest.approx(30)]
    now = 1e6
    assert [ask("a"), ask("a"), ask("a")] == [None, None, pytest.approx(30)]
    at_once = ClientShares(rate=None, at_once=1)
    with at_once.take("a"), at_once.take("b"), pytest.raises(RequestError), at_once.take("a"):
        pass
    with at_once.take("a"):
        pass


async def test_a_client_has_so_many_requests_under_way(file: Path) -> None:
    async with serving(models=[file], concurrency=1, api_key=["k1", "k2"]) as (app, client):
        engine = engine_of(app)
        long = GIVEN | {"max_tokens": 400}
        async with anyio.create_task_group() as tasks:
            post = client.post
            tasks.start_soon(lambda: post("/v1/completions", json=long, headers=bearer("k1")))
            await until(lambda: engine.active)
            refused = await post("/v1/completions", json=GIVEN, headers=bearer("k1"))
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            other = await post("/v1/completions", json=GIVEN, headers=bearer("k2"))
            assert other.status_code == 200
            tasks.cancel_scope.cancel()
        await until(lambda: not engine.active)
        again = await client.post("/v1/completions", json=GIVEN, headers=bearer("k1"))
        assert again.status_code == 200


async def test_pages_of_other_origins_ask_only_if_they_may(file: Path) -> None:
    head = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    async with serving(models=[file]) as (_, client):
        answer = await client.post("/v1/completions", json=GIVEN, headers=head)
        assert "access-control-allow-origin" not in answer.headers
    async with serving(models=[file], cors=["https://chat.example"]) as (_, client):
        for origin, allowed in (("https://chat.example", True), ("https://evil.example", False)):
            answer = await client.options("/v1/completions", headers=head | {"origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed


async def test_limits_of_bodies_and_inputs_are_options(file: Path) -> None:
    async with serving(models=[file], max_body=2000, max_inputs=3) as (_, client):
        answer = await client.post("/v1/completions", json=GIVEN | {"prompt": "a" * 3000})
        assert answer.status_code == 413
        for path, body in (
            ("completions", {"prompt": ["a"] * 4}),
            ("embeddings", {"input": ["a"] * 4}),
        ):
            answer = await client.post(f"/v1/{path}", json=body)
            assert answer.status_code == 400
            assert "1 to 3" in answer.json()["error"]["message"]


@pytest.mark.long
async def test_2048_texts_are_embedded_in_one_request(minilm: Path) -> None:
    async with serving(models=[minilm]) as (_, client):
        answer = await client.post("/v1/embeddings", json={"input": ["a"] * 2048, "dimensions": 2})
        assert len(answer.json()["data"]) == 2048
        answer = await client.post("/v1/embeddings", json={"input": ["a"] * 2049})
        assert answer.status_code == 400


async def test_ids_are_never_the_same_and_those_of_clients_come_back(file: Path) -> None:
    seen = set()
    for _ in range(2):  # two services: replicas of one
        async with serving(models=[file]) as (_, client):
            for _ in range(2):
                answer = await client.post("/v1/completions", json=GIVEN)
                seen |= {answer.json()["id"], answer.headers["x-request-id"]}
            named = await client.post("/v1/completions", json=GIVEN,
                                      headers={"x-request-id": "mine-1"})  # fmt: skip
            assert named.headers["x-request-id"] == "mine-1"
            odd = await client.get("/health", headers={"x-request-id": "a b\x01" * 90})
            assert odd.headers["x-request-id"].startswith("req_")
    assert len(seen) == 8


async def test_a_silent_stream_gets_comments(file: Path) -> None:
    """While a prompt waits for a slot, nothing else is sent."""
    async with serving(models=[file], slots=1, ping=0.01) as (app, client):
        engine = engine_of(app)
        lines: list[str] = []
        long = GIVEN | {"max_tokens": 400}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post("/v1/completions", json=long))
            await until(lambda: engine.active)
            answer = await client.post("/v1/completions", json=GIVEN | {"stream": True})
            lines += [x for x in answer.text.split("\n\n") if x]
    assert lines.count(": still here") >= 1
    assert all(x.startswith(("data: ", ": ")) for x in lines)
    assert lines[-1] == "data: [DONE]"


async def test_figures_have_vllm_s_names_where_they_mean_the_same(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        await client.post("/v1/completions", json=GIVEN)
        text = (await client.get("/metrics")).text
    for name, value in (("generation_tokens_total", 2), ("prompt_tokens_total", 7),
                        ("num_requests_running", 0), ("num_requests_waiting", 0),
                        ("kv_cache_usage_perc", 0)):  # fmt: skip
        assert f'vllm:{name}{{model_name="small"}} {float(value)}' in text


async def test_drafts_are_counted_by_vllm_s_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_all_drafts(monkeypatch)
    async with serving(models=[file], draft=str(file)) as (_, client):
        await client.post("/v1/completions", json=GIVEN | {"max_tokens": 20, "ignore_eos": True})
        text = (await client.get("/metrics")).text
    found = {}
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        line = f'vllm:spec_decode_num_{name}_total{{model_name="small"}} '
        found[name] = float(text.split(line)[1].split()[0])
    assert found["accepted_tokens"] == found["draft_tokens"] > found["drafts"] > 3


async def test_models_of_a_host_are_loaded_when_they_are_asked_for(
    file: Path, tmp_path: Path
) -> None:
    other = write_small(tmp_path / "other.gguf", seed=1)
    async with serving(models=[file, other], memory=1 << 30, api_key="k") as (_, client):
        client.headers.update(bearer("k"))

        async def states() -> dict[str, str]:
            data = (await client.get("/v1/models")).json()["data"]
            return {x["id"]: x["status"]["value"] for x in data}

        assert await states() == {"small": "unloaded", "other": "unloaded"}
        answer = await client.post("/v1/completions", json=GIVEN | {"model": "other"})
        assert answer.json()["model"] == "other"
        stream = await client.post(
            "/v1/completions", json=GIVEN | {"model": "other", "stream": True}
        )
        assert stream.text.endswith("data: [DONE]\n\n")
        assert await states() == {"small": "unloaded", "other": "loaded"}
        assert (await client.post("/models/load", json={"model": "small"})).json() == {
            "success": True
        }
        assert (await client.post("/models/unload", json={"model": "other"})).status_code == 200
        assert await states() == {"small": "loaded", "other": "unloaded"}
        missing = await client.post("/models/load", json={"model": "nothing"})
        assert missing.status_code == 404
        again = await client.post("/v1/completions", json=GIVEN | {"model": "other"})
        assert again.json()["choices"] == answer.json()["choices"]


async def test_models_that_stay_are_not_unloaded(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        answer = await client.post("/models/unload", json={"model": "small"})
        assert answer.status_code == 403  # without keys everybody could ask
    async with serving(models=[file], api_key="k") as (_, client):
        answer = await client.post("/models/unload", json={"model": "small"}, headers=bearer("k"))
        assert answer.status_code == 400
        assert "--memory" in answer.json()["error"]["message"]


async def test_the_page_asks_nobody_else(file: Path) -> None:
    async with serving(models=[file], api_key="k") as (_, client):
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"),
                           ("/page.css", "text/css"), ("/docs", "text/html")):  # fmt: skip
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert not re.search(r"https?://", answer.text), path
            assert not re.search(r"<script>|style=|\son[a-z]+=", answer.text), path
        described = (await client.get("/openapi.json")).json()
    assert sum(x.stat().st_size for x in STATIC.iterdir()) < 40_000
    assert described["openapi"] == "3.1.0"
    async with serving(models=[file], page=False) as (_, client):
        assert (await client.get("/")).status_code == 404


def references(value: Any) -> set[str]:
    """All references of a description."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    if isinstance(value, list):
        return set[str]().union(*map(references, value))
    return set()


async def test_the_description_names_every_route_and_has_all_it_refers_to(file: Path) -> None:
    async with serving(models=[file]) as (app, client):
        described = (await client.get("/openapi.json")).json()
        routes = [x for x in app.routes if isinstance(x, Route)]
        paths = {x.path.replace("{name:path}", "{name}") for x in routes}
    assert {*described["paths"]} == paths
    names = {f"#/components/schemas/{x}" for x in described["components"]["schemas"]}
    assert references(described) <= names


async def test_health_tells_loading_serving_and_stopping(file: Path) -> None:
    async with serving(models=[file]) as (app, client):
        service = app.state.service
        assert (await client.get("/health")).status_code == 200
        service.is_open = False
        loading = await client.get("/readyz")
        assert (loading.status_code, loading.json()["status"]) == (503, "loading model")
        assert (await client.get("/livez")).status_code == 200
        service.is_open, service.stopping = True, True
        stopping = await client.get("/health")
        assert (stopping.status_code, stopping.json()["status"]) == (503, "stopping")
        assert "retry-after" in stopping.headers
        service.stopping = False
