"""What clients of llama.cpp's server rely on beside its routes: forms, times, settings, CORS.

Not here: its routes and prompts (test_protocols.py), keys and limits (test_operating.py).
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from serve.support import GREEDY, LOOPS, events, serving, started

from aggml import InvalidArgument
from aggml.models.small import write_small
from aggml.serve import Limits
from aggml.serve.http import Options, application

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "hello"}]
PREFLIGHT = {"access-control-request-method": "POST"}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def ask(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_completions_without_version_speak_as_they_are_spoken_to(file: Path) -> None:
    async with serving(models=[file], api_key="k") as (_, client):
        refused = await client.post("/completions", json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            401, "authentication_error",
        )  # fmt: skip
        client.headers["x-api-key"] = "k"
        native = await ask(client, "/completions", prompt="a", n_predict=2, **GREEDY)
        openai = await ask(client, "/completions", prompt="a", max_tokens=2, model="small")
        null = await ask(client, "/completions", prompt="a", n_predict=2, model=None, **GREEDY)
        assert null["content"] == native["content"]  # null stands for a field that is not there
        assert native["tokens_predicted"] == 2
        assert openai["object"] == "text_completion"
        long = {"prompt": "a " * 900}
        errors = [
            (await client.post("/completions", json=long | more)).json()["error"]
            for more in ({}, {"model": "small"})
        ]
        assert [x["code"] for x in errors] == [400, "context_length_exceeded"]
        broken = await client.post("/completions", content=b"[")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, 400)


async def test_times_of_an_answer_count_its_own_steps(file: Path) -> None:
    """The step of the prompt gives the first token, so one token alone has no rate."""
    async with serving(models=[file]) as (_, client):
        for n in (1, 5):
            told = (await ask(client, "/completion", prompt="abc", n_predict=n, **GREEDY))[
                "timings"
            ]
            assert all(x >= 0 for x in told.values())
            assert told["prompt_ms"] > 0
            assert told["predicted_n"] == n
            rate = 1000 * (n - 1) / told["predicted_ms"] if n > 1 else 0
            assert told["predicted_per_second"] == pytest.approx(rate)
        chat = {"messages": MESSAGES, "max_tokens": 5, "n": 2, **GREEDY}
        assert "timings" not in await ask(client, "/v1/chat/completions", **chat)
        whole = await ask(client, "/v1/chat/completions", **chat, timings_per_token=True)
        assert whole["timings"]["predicted_n"] == 10
        usage = whole["usage"]
        told = whole["timings"]
        assert told["prompt_n"] + told["cache_n"] == usage["prompt_tokens"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with client.stream(
            "POST",
            "/v1/chat/completions",
            json=chat | options | {"timings_per_token": True, "n": 1},
        ) as response:
            first, *others = await events(response)
        assert "timings" not in first
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
        counts = [x["timings"]["predicted_n"] for x in others]
        assert counts == sorted(counts)
        assert (counts[-1], others[-1]["choices"]) == (5, [])


async def test_tokens_that_end_a_text_are_not_drawn_if_they_are_ignored(file: Path) -> None:
    given = {"prompt": "a", "n_predict": 20, "temperature": 0, "return_tokens": True}
    async with serving(models=[file]) as (_, client):
        towards = [[2, 1e6]]  # the token that ends a text
        free = await ask(client, "/completion", **given, logit_bias=towards)
        assert (free["tokens_predicted"], free["stop_type"]) == (0, "eos")
        settings = free["generation_settings"]["logit_bias"]
        assert settings == [{"token": 2, "bias": 1e6}]
        found = await ask(client, "/completion", **given, logit_bias=towards, ignore_eos=True)
        assert found["generation_settings"]["logit_bias"] == [{"token": 2, "bias": None}]
        assert len(found["tokens"]) == 20
        assert 2 not in found["tokens"]


@pytest.mark.parametrize(
    ("allowed", "origin", "may"),
    [
        ("localhost", "http://localhost:8080", True),
        ("localhost", "https://127.0.0.1", True),
        ("localhost", "http://[::1]:3000", True),
        ("localhost", "http://localhost.evil.example", False),
        ("localhost", "http://notlocalhost", False),
        ("localhost", "http://localhost:80@evil.example", False),
        ("https://chat.example", "https://chat.example", True),
        ("https://chat.example", "http://localhost", False),
        ("*", "https://anybody.example", True),
    ],
)
async def test_a_preflight_has_headers_only_for_origins_that_may_ask(
    file: Path, allowed: str, origin: str, may: bool
) -> None:
    asked = {"origin": origin, "access-control-request-headers": "authorization, x-other"}
    async with serving(models=[file], cors=[allowed], api_key="k") as (_, client):
        answer = await client.options("/v1/chat/completions", headers=PREFLIGHT | asked)
        later = await client.get("/v1/models", headers={"origin": origin})
    assert answer.status_code == 200
    assert later.status_code == 401  # pages can read it, too
    for one in (answer, later):
        assert one.headers["vary"] == "Origin"
        assert one.headers.get("access-control-allow-origin") == (origin if may else None)
        credentials = "true" if may and allowed != "*" else None
        assert one.headers.get("access-control-allow-credentials") == credentials
    if may:
        assert answer.headers["access-control-allow-headers"] == "authorization, x-other"
        assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"


async def test_routes_can_be_left_out(file: Path) -> None:
    async with serving(models=[file], without=["/slots", "/completions"]) as (_, client):
        for answer in (await client.get("/slots"), await client.post("/completions", json={})):
            assert answer.status_code == 501
            assert answer.json()["error"]["type"] == "not_supported_error"
        assert (await client.get("/props")).status_code == 200
    with pytest.raises(InvalidArgument, match="without has '/slot', which is the path of no route"):
        application(Options([file], without=["/slot"]))


async def test_aliases_are_listed_instead_of_the_name_of_the_file(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        assert [x["id"] for x in (await client.get("/models")).json()["data"]] == ["small"]
    async with serving(models=[file], aliases=["b", "a", "*"]) as (_, client):
        told = (await client.get("/models")).json()["data"]
        assert [x["id"] for x in told] == ["b", "a"]
        assert [x["aliases"] for x in told] == [["b", "a"]] * 2
        for name in ("a", "small", "other"):
            await ask(client, "/v1/completions", prompt="a", max_tokens=1, model=name)
    async with serving(models=[file], aliases=["small", "x", "x"]) as (_, client):
        told = (await client.get("/models")).json()["data"]
        assert [x["id"] for x in told] == ["small", "x"]


async def test_models_have_tags(file: Path, tmp_path: Path) -> None:
    other = write_small(tmp_path / "other.gguf", seed=2)
    tags = ["fim", "chat", "draft=other"]
    async with serving(models=[file, other], tags=tags) as (_, client):
        told = (await client.get("/models")).json()["data"]
        assert {x["id"]: x["tags"] for x in told} == {"small": ["fim", "chat"], "other": ["draft"]}
        one = (await client.get("/v1/models/other")).json()
        assert one["tags"] == ["draft"]
    for wrong in ("chat=nobody", "=other", ""):
        with pytest.raises(InvalidArgument, match=r"the tag '.*' names no model"):
            application(Options(models=[file], tags=[wrong]))


async def test_a_last_message_of_the_assistant_is_continued_as_by_llama_server(file: Path) -> None:
    """As llama-server does unless it is told otherwise: by a field, or for all requests."""
    said = {"role": "assistant", "content": "hi"}
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    more = [*MESSAGES, said]
    auto = {"continue_final_message": "auto"}
    path = "/apply-template"
    async with serving(models=[file], chat_template=TEMPLATE) as (_, client):
        new = (await ask(client, path, messages=more))["prompt"]
        assert new == "[user]hello[assistant]hi[assistant]"
        assert (await ask(client, path, messages=MESSAGES, **auto))["prompt"] == (
            "[user]hello[assistant]"
        )
    async with serving(models=[file], chat_template=TEMPLATE, defaults=auto) as (_, client):
        assert (await ask(client, path, messages=more))["prompt"] == "[user]hello[assistant]hi"
        told = await ask(client, "/v1/chat/completions", messages=more, max_tokens=1, verbose=True)
        assert told["__verbose"]["prompt"] == "<s> [user]hello[assistant]hi"
        for begins in ({"continue_final_message": False}, {"add_generation_prompt": True}):
            assert (await ask(client, path, messages=more, **begins))["prompt"] == new
        calls = [*MESSAGES, said | {"tool_calls": [called]}]
        assert (await ask(client, path, messages=calls))["prompt"].endswith("[assistant]")
        for path in ("/apply-template", "/v1/chat/completions"):
            twice = await client.post(path, json={"messages": [*more, said]})
            assert (twice.status_code, twice.json()["error"]["param"]) == (400, "messages")


async def test_a_stream_with_probabilities_has_an_event_for_each_token(file: Path) -> None:
    """Also of tokens whose text is held back: bytes of one letter, or what may be a stop text."""
    given = {"prompt": "ab", "n_predict": 12, "temperature": 0, "n_probs": 3}
    async with serving(models=[file]) as (_, client):
        ids = (await ask(client, "/tokenize", content="日本é"))["tokens"]
        free = await ask(client, "/completion", **given, return_tokens=True, ignore_eos=True)
        text = free["content"]
        for more in (
            {"logit_bias": [[x, 30.0] for x in ids]},
            {"stop": [text[2:5] + "☃"], "ignore_eos": True},
        ):
            whole = await ask(client, "/completion", **given, **more, return_tokens=True)
            lines = (await client.post("/completion", json=given | more | {"stream": True})).text
            found = [json.loads(x[6:]) for x in lines.split("\n\n") if x]
            assert [x["stop"] for x in found] == [False] * (len(found) - 1) + [True]
            told = [x["completion_probabilities"] for x in found[:-1]]
            assert [len(x) for x in told] == [1] * 12
            assert [x for (x,) in told] == whole["completion_probabilities"]
            assert [y for x in found for y in x["tokens"]] == whole["tokens"]
            assert "".join(x["content"] for x in found) == whole["content"]


async def test_a_prompt_ends_where_it_is_asked_to(file: Path) -> None:
    more = [*MESSAGES, {"role": "assistant", "content": "hi"}]
    path = "/apply-template"
    async with serving(models=[file], chat_template=TEMPLATE) as (_, client):
        begun = await ask(client, path, messages=MESSAGES)
        assert begun["prompt"] == "[user]hello[assistant]"
        plain = await ask(client, path, messages=MESSAGES, add_generation_prompt=False)
        assert plain["prompt"] == "[user]hello"
        within = await ask(client, path, messages=more, continue_final_message=True)
        assert within["prompt"] == "[user]hello[assistant]hi"
        both = {"messages": more, "add_generation_prompt": True, "continue_final_message": True}
        for path in ("/apply-template", "/tokenize", "/v1/chat/completions"):
            refused = await client.post(path, json=both)
            assert (refused.status_code, refused.json()["error"]["param"]) == (
                400, "continue_final_message",
            )  # fmt: skip
        ids = await ask(client, "/tokenize", messages=MESSAGES, add_generation_prompt=False,
                        return_token_strs=True)  # fmt: skip
        assert "".join(ids["token_strs"]) == "<s>\u2581[user]hello"
        shown = await ask(client, "/v1/chat/completions", messages=MESSAGES, max_tokens=1,
                          verbose=True)  # fmt: skip
        assert shown["__verbose"]["prompt"] == "<s> [user]hello[assistant]"


async def test_a_template_may_ask_for_the_date(file: Path) -> None:
    template = "{% if tools %}functools[{% endif %}Today is {{ datetime }}.{{ functions[2:] }}"
    template += "{{ messages[0].content }}"
    async with serving(models=[file], chat_template=template) as (_, client):
        told = (await ask(client, "/apply-template", messages=MESSAGES))["prompt"]
        assert re.fullmatch(r"Today is [A-Z][a-z]{2} \d\d \d{4}\.hello", told)
        named = await ask(client, "/apply-template", messages=MESSAGES,
                          chat_template_kwargs={"datetime": "never"})  # fmt: skip
        assert named["prompt"] == "Today is never.hello"


async def test_embeddings_without_pooling_are_those_of_tokens(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        rows = await ask(client, "/embeddings", content=["ab", "c"], pooling="none")
        tokens = await ask(client, "/pooling", input=["ab", "c"], normalize=False)
        assert [x["embedding"] for x in rows] == [x["data"] for x in tokens["data"]]
        refused = await client.post("/embeddings", json={"content": [1, 2], "pooling": "none"})
        assert refused.json()["error"]["param"] == "content"
        pooled = await client.post("/v1/embeddings", json={"input": "ab", "pooling": "none"})
        assert (pooled.status_code, pooled.json()["error"]["param"]) == (400, "pooling")
    async with serving(models=[file], defaults={"pooling": "none"}) as (_, client):
        assert await ask(client, "/embeddings", content=["ab", "c"]) == rows
        assert (await client.post("/v1/embeddings", json={"input": "ab"})).status_code == 400


async def test_a_model_that_sleeps_is_described_without_waking_it(file: Path) -> None:
    async with serving(models=[file], memory=1 << 30, api_key="k") as (app, client):
        client.headers["x-api-key"] = "k"
        assert (await client.get("/props")).json()["is_sleeping"] is True
        assert (await client.get("/models")).json()["data"][0]["status"]["value"] == "unloaded"
        await ask(client, "/completion", prompt="a", n_predict=1)
        assert (await client.get("/props")).json()["is_sleeping"] is False
        uses = app.state.service.host.models["small"].uses
        assert (await client.get("/props")).json()["total_slots"] >= 1
        assert app.state.service.host.models["small"].uses == uses


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("server", LOOPS)
def test_a_server_listens_on_several_addresses(file: Path, server: str) -> None:
    hosts = ("--host", "127.0.0.1, 127.0.0.2")
    with started([file], server, more=hosts) as (_, address):
        port = address.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.2"):
            answer = httpx.get(f"http://{host}:{port}/health")
            assert answer.json()["status"] == "ok"


async def test_logprobs_of_a_completion_have_the_token_that_was_drawn(file: Path) -> None:
    """OpenAI: the drawn token is always there, so a place has one more token than was asked for."""
    given = {"prompt": "ab", "max_tokens": 4, "temperature": 100, "top_k": 0, "seed": 1}
    async with serving(models=[file]) as (_, client):
        for n in (0, 2):
            told = (await ask(client, "/v1/completions", **given, logprobs=n))["choices"][0]
            rows = told["logprobs"]
            for token, p, best in zip(
                rows["tokens"], rows["token_logprobs"], rows["top_logprobs"], strict=True
            ):
                assert best[token] == p
                assert max(n, 1) <= len(best) <= n + 1


async def test_usage_in_every_event_needs_usage_at_all(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for path, more in (
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": MESSAGES}),
        ):
            given = more | {"max_tokens": 2, **GREEDY}
            for includes in (True, False):
                options = {"include_usage": includes, "continuous_usage_stats": True}
                body = given | {"stream": True, "stream_options": options}
                async with client.stream("POST", path, json=body) as response:
                    told = ["usage" in x for x in await events(response)]
                assert told == [includes] * len(told)


async def test_tokens_of_a_prompt_are_told_once(file: Path) -> None:
    given = {"max_tokens": 2, "return_token_ids": True, **GREEDY}
    async with serving(models=[file]) as (_, client):
        ids = (await ask(client, "/tokenize", content="ab", add_special=True))["tokens"]
        text = await ask(client, "/v1/completions", prompt="ab", **given)
        assert text["choices"][0]["prompt_token_ids"] == ids
        chat = await ask(client, "/v1/chat/completions", messages=MESSAGES, **given)
        asked = (await ask(client, "/tokenize", messages=MESSAGES))["tokens"]
        assert chat["prompt_token_ids"] == asked
        for path, more in (
            ("/v1/completions", {"prompt": ["ab", "ab"]}),
            ("/v1/chat/completions", {"messages": MESSAGES}),
        ):
            body = given | more | {"stream": True}
            async with client.stream("POST", path, json=body) as response:
                pieces = await events(response)
            whole = [x["prompt_token_ids"] for x in pieces if "prompt_token_ids" in x]
            each = [
                x["choices"][0]["prompt_token_ids"]
                for x in pieces
                if "prompt_token_ids" in x["choices"][0]
            ]
            assert (whole, each) == (([], [ids, ids]) if "prompt" in more else ([asked], []))


async def test_probabilities_after_sampling_have_names_of_their_own(file: Path) -> None:
    given = {"prompt": "ab", "n_predict": 4, "n_probs": 10, "temperature": 1.0, "seed": 5}
    async with serving(models=[file]) as (_, client):
        told = await ask(client, "/completion", **given, post_sampling_probs=True, top_k=4,
                         top_p=1, min_p=0)  # fmt: skip
        assert len(told["completion_probabilities"]) == 4
        for x in told["completion_probabilities"]:
            assert set(x) == {"id", "token", "bytes", "prob", "top_probs"}
            assert x["prob"] in [y["prob"] for y in x["top_probs"]]
            assert sum(y["prob"] for y in x["top_probs"]) == pytest.approx(1)
        plain = await ask(client, "/completion", **given)
        assert all(len(x["top_logprobs"]) == 10 for x in plain["completion_probabilities"])


def figures(text: str) -> dict[str, float]:
    """The figures by llama-server's names; each has its type and a line of help."""
    found = {}
    kinds = dict(re.findall(r"^# TYPE (llamacpp:\S+) (counter|gauge)$", text, re.MULTILINE))
    for name, value in re.findall(r"^llamacpp:(\S+) (\S+)$", text, re.MULTILINE):
        assert f"llamacpp:{name}" in kinds
        assert f"# HELP llamacpp:{name} " in text
        found[name] = float(value)
    assert len(found) == len(kinds)
    return found


async def test_metrics_have_figures_by_llama_server_s_names(file: Path) -> None:
    async with serving(models=[file], slots=2) as (_, client):
        empty = figures((await client.get("/metrics")).text)
        assert set(empty.values()) == {0.0}
        said = [
            await ask(client, "/completion", prompt="the quick brown fox " * 8, n_predict=n)
            for n in (1, 4, 9)
        ]
        timings = [x["timings"] for x in said]
        answer = await client.get("/metrics")
        assert int(answer.headers["process-start-time-unix"]) <= time.time()
        once = figures(answer.text)
        again = figures((await client.get("/metrics")).text)
    assert once["prompt_tokens_total"] == sum(x["prompt_n"] for x in timings)
    assert once["prompt_tokens_cached_total"] == sum(x["cache_n"] for x in timings) > 0
    assert once["tokens_predicted_total"] == sum(x["predicted_n"] for x in timings) == 14
    # The last token of an answer is not computed.
    assert once["n_tokens_max"] == said[-1]["tokens_evaluated"] + 8
    assert once["n_decode_total"] >= 14
    assert once["n_busy_slots_per_decode"] == 1
    assert once["prompt_seconds_total"] > 0 < once["tokens_predicted_seconds_total"]
    rates = ("prompt_tokens_seconds", "predicted_tokens_seconds")
    assert all(once[x] > 0 for x in rates)
    assert once["requests_processing"] == once["requests_deferred"] == 0
    # Nothing has happened since.
    assert again == once | dict.fromkeys(rates, 0.0)


async def test_vectors_are_counted_by_llama_server_s_names(file: Path, minilm: Path) -> None:
    async with serving(models=[file, minilm]) as (_, client):
        before = figures((await client.get("/metrics")).text)
        told = await ask(client, "/v1/embeddings", input=["hello world", "bye"])
        found = figures((await client.get("/metrics")).text)
    assert before["n_decode_total"] == before["prompt_tokens_total"] == 0
    assert found["prompt_tokens_total"] == told["usage"]["prompt_tokens"]
    assert found["n_decode_total"] >= 1
    assert found["prompt_seconds_total"] > 0 == found["tokens_predicted_total"]
    assert found["n_tokens_max"] < found["prompt_tokens_total"]


async def test_figures_of_a_model_that_was_unloaded_stay(file: Path) -> None:
    options = {"models": [file], "memory": 1 << 30, "api_key": "k"}
    async with serving(**options) as (_, client):
        client.headers["x-api-key"] = "k"
        tokens = []
        for _ in range(2):
            await ask(client, "/completion", prompt="a b", n_predict=5, ignore_eos=True)
            assert (await client.post("/models/unload", json={"model": "small"})).is_success
            found = figures((await client.get("/metrics")).text)
            tokens.append(found["tokens_predicted_total"])
    assert tokens == [5, 10]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    "path", ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/responses"]
)
async def test_streams_tell_the_progress_of_a_prompt(tmp_path: Path, path: str) -> None:
    file = write_small(tmp_path / "small.gguf")
    text = " ".join(f"word {i}" for i in range(110))  # more than one step
    forms: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/responses": {"input": text},
    }  # fmt: skip
    asked = forms.get(path, {"prompt": text})
    given = {"max_tokens": 4, "stream": True, **GREEDY} | asked
    given |= {"return_progress": True, "timings_per_token": True}
    app = application(Options(models=[file], threads=2, limits=Limits(ctx=4096, slots=2)))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            for turn in range(2):
                lines = (await client.post(path, json=given)).text.split("\n\n")
                found = [json.loads(x.split("data: ")[1]) for x in lines if "data: {" in x]
                told = [x["prompt_progress"] for x in found if "prompt_progress" in x]
                places = [i for i, x in enumerate(found) if "prompt_progress" in x]
                # That there is an answer comes before, or whose message it is.
                first = {"/v1/chat/completions": 1, "/v1/responses": 2}.get(path, 0)
                assert places == [*range(first, first + len(told))]
                assert len(told) > (1 if turn else 2)
                (total,) = {x["total"] for x in told}
                (cached,) = {x["cache"] for x in told}
                assert (cached > 500) is bool(turn)
                done = [x["processed"] for x in told]
                assert (done[0], done[-1]) == (cached, total)
                assert done == sorted(set(done))
                times = [found[i]["timings"] for i in places]
                assert [x["prompt_n"] for x in times] == [x - cached for x in done]
                assert times[0]["prompt_ms"] == 0 < times[-1]["prompt_ms"]
                assert {x["predicted_n"] for x in times} == {0}
                if path == "/v1/responses":
                    assert {found[i]["type"] for i in places} == {"response.in_progress"}
                    texts = [x for x in found if x["type"] == "response.output_text.delta"]
                    counts = [x["timings"]["predicted_n"] for x in texts]
                    assert counts == sorted(counts) != []
                    ends = [
                        x["timings"]["predicted_n"]
                        for x in found
                        if "usage" in x
                        or x["type"] in ("response.completed", "response.incomplete")
                    ]
                    assert ends == [4]
            plain = await client.post(path, json=given | {"return_progress": False})
            assert "prompt_progress" not in plain.text
            whole = await client.post(path, json=given | {"stream": False})
            assert whole.status_code == 200
            assert whole.json()["timings"]["predicted_n"] == 4
            if path != "/v1/responses":  # it has no grammars
                refused = await client.post(path, json=given | {"grammar": "root ::= x"})
                assert refused.status_code == 400
