"""What clients of vLLM and of other servers send beside OpenAI's fields: what becomes of it.

Not here: its effect in the engine (tests/models/test_named_tokens.py), types and bounds
(test_fields.py, test_wrong_types.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from serve.support import GREEDY, events, serving

import aggml
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

TEXT = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, **GREEDY}
CHAT = {
    "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True,
    **GREEDY,
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], **more: Any) -> Any:
    answer = await client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    assert "x-aggml-ignored" not in answer.headers
    return answer.json()


async def refusal(client: httpx.AsyncClient, path: str, body: dict[str, Any], **more: Any) -> Any:
    answer = await client.post(path, json=body | more)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"]


async def test_the_tokens_of_prompts_are_told_by_their_ids(file: Path) -> None:
    async with aggml.models.load(file, ctx=256) as model:
        stream = model.generate("Once upon a time", max_tokens=1, prompt_logprobs=2)
        await anext(stream)
        wanted = stream.prompt_logprobs
    assert wanted is not None
    async with serving(models=[file]) as (_, client):
        told = await ask(
            client, "/v1/completions", TEXT, prompt=["Once upon a time", "x"], n=2,
            prompt_logprobs=2,
        )  # fmt: skip
        places = told["choices"][0]["prompt_logprobs"]
        assert places == told["choices"][1]["prompt_logprobs"]
        assert len(told["choices"][2]["prompt_logprobs"]) < len(places)
        assert places[0] is None
        for place, token in zip(places[1:], wanted[1:], strict=True):
            ids = [str(x) for x, _ in token.top]
            assert [*place][:2] == ids
            assert [place[x]["rank"] for x in ids] == [1, 2]
            own = place[str(token.id)]
            assert own["logprob"] == pytest.approx(token.logprob, abs=1e-4)
            assert own["rank"] == token.rank
        echoed = await ask(client, "/v1/completions", TEXT, echo=True, logprobs=2, max_tokens=0)
        logprobs = echoed["choices"][0]["logprobs"]["token_logprobs"]
        assert logprobs[0] is None
        assert logprobs[1:] == pytest.approx([x.logprob for x in wanted[1:]], abs=1e-4)
        chat = await ask(client, "/v1/chat/completions", CHAT, prompt_logprobs=0)
        assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
        assert all(len(x) == 1 for x in chat["prompt_logprobs"][1:])


async def test_tokens_are_called_by_their_ids(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for path, body, best in (
            ("/v1/completions", TEXT, {"logprobs": 2}),
            ("/v1/chat/completions", CHAT, {"logprobs": True, "top_logprobs": 2}),
        ):
            more = {**best, "return_tokens_as_token_ids": True, "return_token_ids": True}
            choice = (await ask(client, path, body, **more))["choices"][0]
            wanted = [f"token_id:{x}" for x in choice["token_ids"]]
            told = choice["logprobs"]
            if "tokens" in told:
                assert told["tokens"] == wanted
                assert all(x in y for x, y in zip(wanted, told["top_logprobs"], strict=True))
            else:
                assert [x["token"] for x in told["content"]] == wanted
                assert all(
                    y["token"].startswith("token_id:")
                    for x in told["content"] for y in x["top_logprobs"]
                )  # fmt: skip


@pytest.mark.long
async def test_fields_by_vllms_names_have_their_effect(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):

            async def text(**more: Any) -> str:
                choice = (await ask(client, path, body, **more))["choices"][0]  # noqa: B023
                found: str = choice["text"] if "text" in choice else choice["message"]["content"]
                return found

            plain = await text()
            pairs = [plain[i : i + 2] for i in range(1, len(plain) - 1)]
            stop = next(x for x in pairs if x.isascii())
            end = plain.index(stop) + len(stop)
            assert await text(stop=[stop], include_stop_str_in_output=True) == plain[:end]
            assert stop not in await text(bad_words=[stop])
            assert await text(allowed_token_ids=[300]) == (await text(allowed_ids=[300]))
            assert len(set(await text(allowed_token_ids=[300]))) == 1
            shown = await text(allowed_token_ids=[1], skip_special_tokens=False)
            assert shown == "<s>" * 8
            assert await text(add_special_tokens=True, spaces_between_special_tokens=False) == plain
            for more in (
                {"structured_outputs": {"structural_tag": "{}"}}, {"logprob_token_ids": [1]},
                {"guided_whitespace_pattern": " "}, {"logits_processors": ["x"]},
            ):  # fmt: skip
                assert await refusal(client, path, body, **more) == next(iter(more))


async def test_long_prompts_are_cut_to_their_last_tokens(file: Path) -> None:
    long = "Once upon a time " * 60
    async with serving(models=[file]) as (_, client):
        cut = await ask(client, "/v1/completions", TEXT, prompt=long, truncate_prompt_tokens=9)
        ids = (await ask(client, "/tokenize", {"prompt": long}))["tokens"]
        assert cut["usage"]["prompt_tokens"] == 9
        same = await ask(client, "/v1/completions", TEXT, prompt=ids[-9:])
        assert cut["choices"][0]["text"] == same["choices"][0]["text"]
        most = await ask(client, "/v1/completions", TEXT, prompt=long, truncate_prompt_tokens=-1)
        assert most["usage"]["completion_tokens"] == 8
        chat = CHAT | {"messages": [{"role": "user", "content": long}]}
        told = await ask(client, "/v1/chat/completions", chat, truncate_prompt_tokens=-1)
        assert told["usage"]["prompt_tokens"] > 9
        assert told["usage"]["completion_tokens"] == 8
        bare = await ask(client, "/v1/completions", TEXT, add_special_tokens=False)
        whole = await ask(client, "/v1/completions", TEXT)
        assert bare["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] - 1


async def test_fields_that_would_have_no_effect_are_refused(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
            for options in ({}, {"include_usage": True}, {"continuous_usage_stats": None}):
                for stream in ({}, {"stream": False}):
                    more = {"stream_options": options, **stream}
                    assert await refusal(client, path, body, **more) == "stream_options"
            right = {"truncate_prompt_tokens": 3, "truncation_side": "right"}
            assert await refusal(client, path, body, **right) == "truncation_side"
            await ask(client, path, body, **right | {"truncation_side": "left"})


async def test_of_several_answers_the_most_probable_ones_are_given(file: Path) -> None:
    drawn = TEXT | {"temperature": 2.0, "top_k": 0, "seed": 5, "logprobs": 0}
    async with serving(models=[file]) as (_, client):
        every = (await ask(client, "/v1/completions", drawn, n=4))["choices"]

        def mean(choice: Any) -> float:
            told: list[float] = choice["logprobs"]["token_logprobs"]
            return sum(told) / len(told)

        best = sorted(every, key=mean, reverse=True)[:2]
        given = await ask(client, "/v1/completions", drawn, n=2, best_of=4)
        assert [x["text"] for x in given["choices"]] == [x["text"] for x in best]
        assert [x["index"] for x in given["choices"]] == [0, 1]
        assert given["usage"]["completion_tokens"] == 32
        one = await ask(client, "/v1/completions", drawn, best_of=4, logprobs=None)
        assert [(x["text"], x["logprobs"]) for x in one["choices"]] == [(best[0]["text"], None)]


async def test_a_format_binds_completions_too(file: Path) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["u", "v"]}}}
    body = TEXT | {"max_tokens": 40, "response_format": form}
    async with serving(models=[file]) as (_, client):
        text = (await ask(client, "/v1/completions", body))["choices"][0]["text"]
        assert text in ('"u"', '"v"')
        assert await refusal(client, "/v1/completions", body, regex="a") == "response_format"


async def test_of_allowed_tools_alone_one_is_called(file: Path) -> None:
    pytest.importorskip("llguidance")
    names = ("one", "two")
    about: dict[str, Any] = {"parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": {"name": x, **about}} for x in names]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "two"}}]}
    chat = CHAT | {"tools": tools, "max_tokens": 200, "parallel_tool_calls": False}
    async with serving(models=[file]) as (_, client):
        choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
        told = await ask(client, "/v1/chat/completions", chat, tool_choice=choice)
        calls = told["choices"][0]["message"]["tool_calls"]
        assert {x["function"]["name"] for x in calls} == {"two"}
        wrong = {"type": "allowed_tools"}
        assert await refusal(client, "/v1/chat/completions", chat, tool_choice=wrong)
        flat = [{"type": "function", "name": x, **about} for x in names]
        choice = {"type": "allowed_tools", "mode": "required", "tools": [flat[1]]}
        asked = {"input": "x", "tools": flat, "tool_choice": choice, "parallel_tool_calls": False}
        told = await ask(client, "/v1/responses", asked, temperature=0)
        assert {x["name"] for x in told["output"] if x["type"] == "function_call"} == {"two"}


async def test_the_items_of_an_answer_are_listed(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        first = await ask(client, "/v1/responses", {"input": "a", "max_output_tokens": 2})
        more = {"input": "b", "max_output_tokens": 2, "previous_response_id": first["id"]}
        second = await ask(client, "/v1/responses", more)
        path = f"/v1/responses/{second['id']}/input_items"
        told = (await client.get(path, params={"order": "asc"})).json()
        assert [x["role"] for x in told["data"]] == ["user", "assistant", "user"]
        assert [x["content"][0]["text"] for x in told["data"][::2]] == ["a", "b"]
        newest = (await client.get(path, params={"limit": 1})).json()
        assert [x["id"] for x in newest["data"]] == [told["data"][2]["id"]]
        assert newest["has_more"]
        rest = (await client.get(path, params={"after": newest["last_id"]})).json()
        assert [x["id"] for x in rest["data"]] == [told["data"][1]["id"], told["data"][0]["id"]]
        assert (await client.get(path, params={"limit": "x"})).status_code == 400
        assert (await client.get("/v1/responses/none/input_items")).status_code == 404


async def test_routes_that_tell_of_the_server(file: Path) -> None:
    async with serving(models=[file], api_key="k") as (_, client):
        for path in ("/load", "/tokenizer_info"):
            assert (await client.get(path)).status_code == 401
        assert (await client.post("/ping")).status_code == 200
        client.headers["x-api-key"] = "k"
        assert (await client.get("/load")).json() == {"server_load": 0}
        told = (await client.get("/tokenizer_info", params={"model": "small"})).json()
        assert (told["bos_token"], told["eos_token"]) == ("<s>", "</s>")
        assert told["vocab_size"] == 354
        assert (await client.get("/tokenizer_info", params={"model": "x"})).status_code == 404


async def test_clients_of_ollama_get_probabilities(file: Path) -> None:
    more = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3, "temperature": 0}}
    async with serving(models=[file]) as (_, client):
        whole = await ask(
            client, "/api/generate", more, prompt="hello", stream=False, raw=True, format=None
        )
        assert [len(x["top_logprobs"]) for x in whole["logprobs"]] == [2] * 3
        assert whole["logprobs"][0]["token"] == whole["logprobs"][0]["top_logprobs"][0]["token"]
        answer = await client.post("/api/chat", json={**more, "messages": CHAT["messages"]})
        lines = [json.loads(x) for x in answer.text.splitlines()]
        assert sum(len(x.get("logprobs", ())) for x in lines) == 3
        loaded = await ask(client, "/api/chat", {"messages": []})
        assert (loaded["done_reason"], loaded["done"]) == ("load", True)
        streamed = await client.post("/v1/completions", json=TEXT | {"best_of": 1, "stream": True})
        assert await events(streamed)
