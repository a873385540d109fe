"""aggml.serve: every field of a request has its documented effect, or is refused by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import numpy as np
import pytest
from serve.support import GREEDY, ROOT, SMALL, events, serving

from aggml import InvalidArgument
from aggml.models.small import write_small
from aggml.serve.http.app import ENDPOINTS
from aggml.serve.http.fields import Defaults, target_of
from aggml.serve.http.openapi import description, rows, table
from aggml.serve.http.schema import (
    ALIASES,
    FORMS,
    OTHERS,
    Chat,
    Classify,
    Completion,
    Embeddings,
    Rerank,
    Score,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from aggml.models import TokenStream

PATHS: dict[type, str] = {
    Completion: "completions",
    Chat: "chat/completions",
    Embeddings: "embeddings",
    Rerank: "rerank",
    Score: "score",
    Classify: "classify",
}
LEAST: dict[type, dict[str, Any]] = {
    Completion: {"prompt": "hello", "max_tokens": 6, **GREEDY},
    Chat: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, **GREEDY},
    Embeddings: {"input": "hello"},
    Rerank: {"query": "a b", "documents": ["c", "b c", "a"]},
    Score: {"text_1": "a b", "text_2": ["c", "b c", "a"]},
    Classify: {"input": ["a b", "c"]},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


def files_of(encoder: Path, ranker: Path) -> dict[type, Path]:
    """The files of requests that no decoder answers."""
    return {Embeddings: encoder, Rerank: ranker, Score: ranker, Classify: ranker}


def without_head(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    found = answer.json()
    found["usage"].pop("prompt_tokens_details", None)  # the first request computes the prompt
    return {key: found[key] for key in found if key not in ("id", "created")}


@pytest.mark.long(cases=1)
@pytest.mark.slow
@pytest.mark.parametrize("form", PATHS)
async def test_each_field_is_built_harmless_or_refused(
    minilm: Path, file: Path, ranker: Path, form: type
) -> None:
    path = f"/v1/{PATHS[form]}"
    files = files_of(minilm, ranker)
    least = LEAST[form] | ({} if form in files else {"max_tokens": 2})
    built = [x.encode_name for x in msgspec.structs.fields(form)]
    async with serving(models=[files.get(form, file)]) as (_, client):

        async def ask(name: str, value: object) -> httpx.Response:
            return await client.post(path, json=least | {name: value})

        wanted = without_head(await client.post(path, json=least))
        for name in built:
            if name not in least:  # null means the same as leaving the field out
                assert without_head(await ask(name, None)) == wanted, name
        for other in OTHERS:
            for name in other.names:
                if name in built or target_of(name, form):  # what one form lacks another may have
                    continue
                anything = ({"any": ["thing", 1]}, "x" * 5000)
                for value in (None, *(anything if other.neutral is None else other.neutral)):
                    assert without_head(await ask(name, value)) == wanted, (name, value)
                for value in ({"any": "thing"}, 7, "x" * 5000) if other.state == "refused" else ():
                    answer = await ask(name, value)
                    assert answer.status_code == 400, (name, value)
                    assert answer.json()["error"]["param"] == name
                    assert f"'{name}' is not supported" in answer.text


UNKNOWN = {"temprature": "temprature", "": "", "x" * 500: "x" * 64, "a\r\nb: c": "a%0D%0Ab: c"}


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("form", PATHS)
async def test_a_field_that_nobody_knows_is_ignored_and_told_or_refused_if_strict(
    minilm: Path, file: Path, ranker: Path, form: type, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/v1/{PATHS[form]}"
    files = files_of(minilm, ranker)
    models = [files.get(form, file)]
    async with serving(models=models) as (_, client):
        wanted = without_head(await client.post(path, json=LEAST[form]))
        for name, told in UNKNOWN.items():
            for _ in range(2):
                answer = await client.post(path, json=LEAST[form] | {name: [{"any": "thing"}]})
                assert answer.headers["x-aggml-ignored"] == told
                assert without_head(answer) == wanted
        plain = await client.post(path, json=LEAST[form])
        assert "x-aggml-ignored" not in plain.headers
        metrics = (await client.get("/metrics")).text
        assert 'aggml_ignored_fields_total{field="temprature"} 2.0' in metrics
        many = {f"f{i}": 1 for i in range(1000)}
        assert (await client.post(path, json=LEAST[form] | many)).status_code == 200
        assert (await client.get("/metrics")).text.count("aggml_ignored_fields_total{") < 300
    logged = [x for x in caplog.messages if "unknown field temprature" in x]
    assert len(logged) == 1  # once, and not for each request
    async with serving(models=models, strict=True) as (_, client):
        for name in UNKNOWN:
            answer = await client.post(path, json=LEAST[form] | {name: 1})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == name[:64]
            assert "is unknown" in answer.json()["error"]["message"]


async def test_fields_within_fields_that_nobody_knows_are_told_by_their_places(file: Path) -> None:
    part = {"type": "text", "text": "hello", "odd": 1}
    messages = [{"role": "user", "content": [part], "weird": 2}]
    form = {"type": "text", "else": 3}
    given = LEAST[Chat] | {"messages": messages, "response_format": form}
    async with serving(models=[file]) as (_, client):
        answer = await client.post("/v1/chat/completions", json=given)
        plain = await client.post("/v1/chat/completions", json=LEAST[Chat])
    told = answer.headers["x-aggml-ignored"].split(", ")
    assert told == ["messages[0].content[0].odd", "messages[0].weird", "response_format.else"]
    assert without_head(answer) == without_head(plain)
    async with serving(models=[file], strict=True) as (_, client):
        answer = await client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == told[0]


#: Values of fields that have other names; the default stands for the others.
VALUES = {"max_tokens": 3, "repetition_penalty": 1.5, "stop": ["x"], "n": 2, "logprobs": 1}


@pytest.mark.long(cases=3)
@pytest.mark.parametrize(
    ("alias", "form", "path"),
    [
        (alias, form, f"/v1/{PATHS[form]}")
        for alias in ALIASES
        for form in (Completion, Chat)
        if target_of(alias, form) in VALUES
        and alias not in {x.encode_name for x in msgspec.structs.fields(form)}
    ],
)
async def test_other_names_of_fields_work(file: Path, alias: str, form: type, path: str) -> None:
    target = target_of(alias, form)
    assert target is not None
    least = {x: y for x, y in LEAST[form].items() if x != target}
    async with serving(models=[file]) as (_, client):
        named = await client.post(path, json=least | {alias: VALUES[target]})
        plain = await client.post(path, json=least | {target: VALUES[target]})
        both = await client.post(path, json=least | {alias: 10**12, target: VALUES[target]})
    assert without_head(named) == without_head(plain) == without_head(both)
    assert "x-aggml-ignored" not in named.headers


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("given", "like"),
    [
        ({"top_p": 0, "temperature": 1}, {"temperature": 0}),
        ({"temperature": -1}, {"temperature": 0}),
        ({"top_k": -1, "temperature": 0}, {"top_k": 0, "temperature": 0}),
        ({"max_tokens": -1}, {"max_tokens": 10**6}),
    ],
)
async def test_values_that_other_servers_take_mean_the_same(
    file: Path, given: dict[str, Any], like: dict[str, Any]
) -> None:
    async with serving(models=[file]) as (_, client):
        least = LEAST[Completion] | {"temperature": 0, "ignore_eos": True}
        found = await client.post("/v1/completions", json=least | given)
        wanted = await client.post("/v1/completions", json=least | like)
    assert without_head(found) == without_head(wanted)


@pytest.mark.long
async def test_an_answer_may_run_until_the_context_is_full(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        answer = await client.post("/v1/completions", json=LEAST[Completion] | {"max_tokens": -1})
        choice, usage = answer.json()["choices"][0], answer.json()["usage"]
        assert choice["finish_reason"] == "length"
        assert usage["total_tokens"] == 512 + 1  # the last token needs no position
        for path, body in (
            ("completions", {"prompt": [5] * 513}),
            ("chat/completions", {"messages": [{"role": "user", "content": "a " * 600}]}),
            ("embeddings", {"input": [[5] * 513]}),
        ):
            answer = await client.post(f"/v1/{path}", json=body)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "maximum context length is 512 tokens" in error["message"]
            assert error["param"] == next(iter(body))
            assert error["n_ctx"] == 512


def test_the_documentation_has_the_table_of_the_schema() -> None:
    text = (ROOT / "docs/serve.md").read_text()
    assert table() in text, "python -m aggml.serve.http.openapi writes the table"


@pytest.mark.parametrize("form", FORMS, ids=lambda x: x.__name__)
def test_the_description_says_where_null_is_taken(form: type[msgspec.Struct]) -> None:
    schemas = description(ENDPOINTS)["components"]["schemas"]
    schema = schemas[form.__name__]
    if form.__name__ not in {x.form.__name__ for x in ENDPOINTS if x.form is not None}:
        return  # no request, but a part of one
    for name, field in schema["properties"].items():
        if name in schema.get("required", ()):
            continue
        validator = jsonschema.Draft202012Validator({"components": {"schemas": schemas}, **field})
        assert validator.is_valid(None), name
        assert name != "priority" or not validator.is_valid("1")


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [("n", "2.0", 200), ("n", "2.00", 200), ("n", "2.5", 400), ("n", "100.0", 400),
     ("top_k", "-1.0", 200), ("seed", "7.0", 200), ("max_tokens", '"2.0"', 400)],
)  # fmt: skip
async def test_a_whole_number_may_be_written_with_a_point(
    file: Path, field: str, value: str, status: int
) -> None:
    async with serving(models=[file]) as (_, client):
        body = f'{{"prompt": "a", "max_tokens": 2, "{field}": {value}}}'
        answer = await client.post("/v1/completions", content=body)
        assert answer.status_code == status, answer.text
        if field == "n" and status == 200:
            assert len(answer.json()["choices"]) == 2


async def test_whole_numbers_within_fields_may_be_written_with_a_point(file: Path) -> None:
    chat = LEAST[Chat]["messages"]
    async with serving(models=[file]) as (_, client):
        for value, status in (("1024.0", 200), ("1024.00", 200), ("1024.5", 400), ("1e3", 400)):
            thinking = f'{{"type": "enabled", "budget_tokens": {value}}}'
            body = f'{{"messages": {json.dumps(chat)}, "thinking": {thinking}}}'
            answer = await client.post("/v1/messages/count_tokens", content=body)
            assert answer.status_code == status, (value, answer.text)
        body = '{"prompt": "a", "max_tokens": 1, "stop_token_ids": [7.0, 8], "stop": ["1.0"]}'
        answer = await client.post("/v1/completions", content=body)
        assert answer.status_code == 200, answer.text


def test_each_field_has_one_state() -> None:
    """A name is built, an alias, harmless or refused; no two entries say it of one name."""
    others = [name for other in OTHERS for name in other.names]
    assert len(others) == len(set(others))
    for alias, targets in ALIASES.items():
        assert alias not in targets
        # Aliases where the field exists that they mean; elsewhere they are what OTHERS says.
        assert alias not in others or alias in ("n", "documents")


def test_every_field_of_every_form_is_described() -> None:
    for form in FORMS:
        for row in rows(form):
            assert row.about, (form.__name__, row.name)
            assert row.values, (form.__name__, row.name)


@pytest.mark.long(cases=11)
@pytest.mark.parametrize(
    ("form", "given", "field"),
    [
        (Completion, {"presence_penalty": 2.5}, "presence_penalty"),
        (Completion, {"frequency_penalty": "1"}, "frequency_penalty"),
        (Completion, {"repetition_penalty": 0}, "repetition_penalty"),
        (Completion, {"logit_bias": {"a": 1}}, "logit_bias"),
        (Completion, {"logit_bias": {"-1": 1}}, "logit_bias"),
        (Completion, {"logit_bias": {"1": 101}}, "logit_bias"),
        (Completion, {"logit_bias": {"354": 1}}, "logit_bias"),
        (Completion, {"stop_token_ids": [354]}, "stop_token_ids"),
        (Completion, {"min_p": 1.5}, "min_p"),
        (Completion, {"min_tokens": 7}, "min_tokens"),
        (Completion, {"best_of": 1, "n": 2}, "best_of"),
        (Completion, {"best_of": 2, "stream": True}, "best_of"),
        (Completion, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (Completion, {"logprobs": 21}, "logprobs"),
        (Completion, {"logprobs": True}, "logprobs"),
        (Completion, {"stop": ["a"] * 65}, "stop"),
        (Completion, {"stop": "a" * 1001}, "stop"),
        (Completion, {"stream_options": {"include_usage": 5}}, "stream_options"),
        (Completion, {"timeout": 0}, "timeout"),
        (Chat, {"top_logprobs": 2}, "top_logprobs"),
        (Chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (Chat, {"logprobs": 5}, "logprobs"),
        (Chat, {"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        (Chat, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages"),
        (Chat, {"messages": []}, "messages"),
        (Chat, {"messages": None}, "messages"),
        (Embeddings, {"dimensions": 385}, "dimensions"),
        (Embeddings, {"dimensions": 0}, "dimensions"),
        (Embeddings, {"input": [[1, 200000]]}, "input"),
        (Embeddings, {"input": None}, "input"),
        (Embeddings, {"encoding_format": "hex"}, "encoding_format"),
        (Rerank, {"query": ""}, "query"),
        (Rerank, {"query": ["a"]}, "query"),
        (Rerank, {"query": None}, "query"),
        (Rerank, {"documents": []}, "documents"),
        (Rerank, {"documents": "a"}, "documents"),
        (Rerank, {"documents": [5]}, "documents"),
        (Rerank, {"documents": [{"title": "a"}]}, "documents"),
        (Rerank, {"documents": ["a"] * 2049}, "documents"),
        (Rerank, {"documents": ["a", "b " * 600]}, "documents"),
        (Rerank, {"documents": None}, "documents"),
        (Rerank, {"top_n": 0}, "top_n"),
        (Rerank, {"return_documents": 1}, "return_documents"),
        (Rerank, {"truncation": True}, "truncation"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    minilm: Path, file: Path, ranker: Path, form: type, given: dict[str, Any], field: str
) -> None:
    files = files_of(minilm, ranker)
    async with serving(models=[files.get(form, file)]) as (_, client):
        answer = await client.post(f"/v1/{PATHS[form]}", json=LEAST[form] | given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_models_that_are_not_served_are_not_found(
    minilm: Path, file: Path, ranker: Path
) -> None:
    async with serving(models=[file, minilm, ranker]) as (_, client):
        for form, path in PATHS.items():
            wrong = SMALL if form in (Rerank, Classify) else "gpt"
            wrong = "ranker" if form in (Completion, Chat) else wrong
            for name in ("gpt-9", wrong, ""):
                answer = await client.post(f"/v1/{path}", json=LEAST[form] | {"model": name})
                assert answer.status_code == 404
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == ("model", "model_not_found")
                assert repr(name) in error["message"]
        assert (await client.get("/v1/models/gpt-9")).json()["error"]["code"] == "model_not_found"
        assert (await client.get(f"/v1/models/{SMALL}")).json()["id"] == SMALL
        answer = await client.post("/v1/completions", json=LEAST[Completion] | {"model": SMALL})
        assert answer.json()["model"] == SMALL


# -- fields that are implemented


Ids = Callable[..., Awaitable[list[int]]]


@asynccontextmanager
async def asking(file: Path) -> AsyncIterator[Ids]:
    """A function that returns the tokens of an answer; its arguments are the request's fields."""
    streams: list[TokenStream] = []
    async with serving(models=[file]) as (app, client):
        (model,) = app.state.service.completers.values()
        generate = model.generate

        def watched(*args: Any, **options: Any) -> TokenStream:
            streams.append(generate(*args, **options))
            return streams[-1]

        model.generate = watched

        async def ids(**given: Any) -> list[int]:
            body = {"prompt": "hello", "max_tokens": 12, **given}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return streams[-1].made

        yield ids


async def test_biases_favour_and_ban(file: Path) -> None:
    async with asking(file) as ids:
        letter = 260 + ord("q") - 33
        assert await ids(logit_bias={str(letter): 100}) == [letter] * 12
        plain = await ids(**GREEDY)
        banned = await ids(**GREEDY, logit_bias={str(plain[0]): -100})
        assert plain[0] not in banned


async def test_penalties_keep_tokens_from_coming_again(file: Path) -> None:
    async with asking(file) as ids:
        bias = {str(260 + ord(c) - 33): 50 + 25 * i for i, c in enumerate("qrs")}
        again = await ids(**GREEDY, logit_bias=bias)
        assert set(again) == {260 + ord("s") - 33}
        few = {str(260 + ord(c) - 33): 50 for c in "qrs"}
        for penalty in ({"frequency_penalty": 2}, {"frequency_penalty": 2, "presence_penalty": 2}):
            mixed = await ids(**GREEDY, max_tokens=60, logit_bias=few, **penalty)
            assert len(set(mixed)) == 3  # each token takes 2 from its logit, so all three come
        plain = await ids(**GREEDY, max_tokens=40)
        never = await ids(**GREEDY, max_tokens=40, repetition_penalty=100)
        assert len(set(never)) > len(set(plain))


async def test_answers_end_where_they_may(file: Path) -> None:
    async with asking(file) as ids:
        plain = await ids(**GREEDY)
        third = next(i for i, token in enumerate(plain) if token not in plain[:i] and i > 2)
        ends = {"stop_token_ids": [plain[third]]}
        assert await ids(**GREEDY, **ends) == plain[:third]
        later = await ids(**GREEDY, **ends, min_tokens=third + 2)
        assert later[:third] == plain[:third]
        assert plain[third] not in later[: third + 2]


async def test_a_stop_string_that_is_a_control_token_ends_the_answer_there(file: Path) -> None:
    """Such a token adds nothing to the text, in which the string would be looked for."""
    async with asking(file) as ids:
        always = {"logit_bias": {"1": 100}, "max_tokens": 4}  # the token <s>
        assert await ids(**always) == [1] * 4
        assert await ids(**always, stop=["<s>"]) == []


async def test_stop_strings_count_after_the_least_number_of_tokens(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        given = {"prompt": "hello", "max_tokens": 12, **GREEDY}
        text = (await client.post("/v1/completions", json=given)).json()["choices"][0]["text"]
        first = {"stop": text[0]}
        cut = await client.post("/v1/completions", json=given | first)
        assert cut.json()["choices"][0]["text"] == ""
        past = await client.post("/v1/completions", json=given | first | {"min_tokens": 1})
        assert len(past.json()["choices"][0]["text"]) > 0


async def test_min_p_of_one_is_greedy(file: Path) -> None:
    async with asking(file) as ids:
        plain = await ids(**GREEDY)
        drawn = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "ignore_eos": True}
        assert await ids(**drawn, min_p=1) == plain
        assert await ids(**drawn, seed=1) != plain


async def test_a_seed_gives_the_same_answer_whatever_is_asked_for(file: Path) -> None:
    given = {
        "prompt": "hello", "max_tokens": 30, "ignore_eos": True, "seed": 11, "temperature": 1.5,
        "top_k": -1, "min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": {"300": 2, "301": -3}, "min_tokens": 3,
    }  # fmt: skip
    async with serving(models=[file]) as (_, client):
        texts = [
            (await client.post("/v1/completions", json=given | more)).json()["choices"][0]["text"]
            for more in ({}, {"logprobs": 5}, {"best_of": 1}, {"seed": 12})
        ]
    assert texts[0] == texts[1] == texts[2] != texts[3]


async def test_logprobs_whole_and_streamed(file: Path) -> None:
    given = LEAST[Chat] | {"logprobs": True, "top_logprobs": 3, "max_tokens": 20}
    # Each in a service of its own: a request that finds stored keys differs in its last bits.
    async with serving(models=[file]) as (_, client):
        whole = (await client.post("/v1/chat/completions", json=given)).json()["choices"][0]
    async with serving(models=[file]) as (_, client):
        response = await client.post("/v1/chat/completions", json=given | {"stream": True})
        streamed = [x["choices"][0] for x in await events(response)]
        one = LEAST[Completion] | {"logprobs": 3, "prompt": "user: hello\nassistant:"}
        text = (await client.post("/v1/completions", json=one)).json()["choices"][0]
        none = await client.post("/v1/chat/completions", json=given | {"top_logprobs": None})
    content = whole["logprobs"]["content"]
    assert len(content) == 20
    pieces = [x["logprobs"]["content"] for x in streamed if x["logprobs"]]
    told = [token for piece in pieces for token in piece]
    assert told == content
    said = b"".join(bytes(x["bytes"]) for x in content)
    assert said.decode("utf-8", "replace") == whole["message"]["content"]
    for token in content:
        best = token["top_logprobs"]
        assert len(best) == 3
        assert best[0]["token"] == token["token"]  # greedy
        assert best[0]["logprob"] == token["logprob"] <= 0
        assert [x["logprob"] for x in best] == sorted((x["logprob"] for x in best), reverse=True)
    found = text["logprobs"]
    assert found["token_logprobs"] == [max(x.values()) for x in found["top_logprobs"]]
    assert found["text_offset"][0] == 0
    assert found["text_offset"] == sorted(found["text_offset"])
    assert all(len(x) == 3 for x in found["top_logprobs"])
    assert [x["top_logprobs"] for x in none.json()["choices"][0]["logprobs"]["content"]] == [
        []
    ] * 20


async def test_tokens_behind_a_stop_string_are_not_told_of(file: Path) -> None:
    given = LEAST[Completion] | {"max_tokens": 12, "logprobs": 1}
    async with serving(models=[file]) as (_, client):
        whole = (await client.post("/v1/completions", json=given)).json()["choices"][0]
    stop = whole["text"][4:6]
    async with serving(models=[file]) as (_, client):  # without keys of the first request
        cut = (await client.post("/v1/completions", json=given | {"stop": stop})).json()["choices"]
    at = whole["text"].index(stop)
    assert cut[0]["text"] == whole["text"][:at]
    n = sum(begin < at for begin in whole["logprobs"]["text_offset"])
    for key in ("tokens", "text_offset", "token_logprobs"):
        assert cut[0]["logprobs"][key] == whole["logprobs"][key][:n]
    assert [len(x) for x in cut[0]["logprobs"]["top_logprobs"]] == [1] * n


async def test_probabilities_sum_to_one(file: Path) -> None:
    """The 20 best of 354 tokens are reported: their sum is not above 1, and not much below it."""
    async with serving(models=[file]) as (_, client):
        given = LEAST[Completion] | {"logprobs": 20, "logit_bias": {"300": 9}}
        answer = await client.post("/v1/completions", json=given)
    for best in answer.json()["choices"][0]["logprobs"]["top_logprobs"]:
        assert 0.2 < sum(map(math.exp, best.values())) < 1


async def test_no_prompt_begins_a_text(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        none = await client.post("/v1/completions", json=LEAST[Completion] | {"prompt": None})
        begin = await client.post("/v1/completions", json=LEAST[Completion] | {"prompt": [1]})
    assert without_head(none) == without_head(begin)


async def test_embeddings_are_cut_and_of_length_one_again(minilm: Path) -> None:
    async with serving(models=[minilm]) as (_, client):
        given = {"input": ["A cat sleeps.", "Rates rose."]}
        whole = (await client.post("/v1/embeddings", json=given)).json()["data"]
        for dimensions in (384, 100, 1):
            answer = await client.post("/v1/embeddings", json=given | {"dimensions": dimensions})
            for before, after in zip(whole, answer.json()["data"], strict=True):
                wanted = np.array(before["embedding"][:dimensions])
                wanted /= np.linalg.norm(wanted)
                np.testing.assert_allclose(after["embedding"], wanted, atol=1e-5)


async def test_a_name_reaches_the_template_of_the_model(tmp_path: Path) -> None:
    """A client may also send back an answer with all fields that our answers have."""
    path = write_small(tmp_path / "named.gguf")
    async with serving(models=[path]) as (_, client):
        message = {"role": "user", "name": "ann", "content": [{"type": "text", "text": "hello"}]}
        back: dict[str, Any] = {
            "role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "audio": None,
        }  # fmt: skip
        given = LEAST[Chat] | {"messages": [message, back]}
        answer = await client.post("/v1/chat/completions", content=json.dumps(given))
        assert answer.status_code == 200


async def test_defaults_hold_for_fields_that_are_left_out_in_every_protocol(file: Path) -> None:
    defaults = {"temperature": 0, "max_tokens": 5, "repeat_penalty": 1.5}
    messages = [{"role": "user", "content": "hello"}]
    given = {"temperature": 0, "repetition_penalty": 1.5}
    async with serving(models=[file], defaults=defaults) as (_, client):
        whole = (await client.post("/v1/chat/completions", json={"messages": messages})).json()
        explicit = {"messages": messages, "max_tokens": 5, **given}
        same = (await client.post("/v1/chat/completions", json=explicit)).json()
        other = {"messages": messages, "max_tokens": 7}
        longer = (await client.post("/v1/chat/completions", json=other)).json()
        ollama = {"messages": messages, "stream": False, "options": {"seed": 1}}
        fourth = (await client.post("/api/chat", json=ollama)).json()
        told = (await client.get("/props")).json()["default_generation_settings"]["params"]
    assert whole["usage"]["completion_tokens"] == fourth["eval_count"] == 5
    assert longer["usage"]["completion_tokens"] == 7
    text = same["choices"][0]["message"]["content"]
    assert whole["choices"][0]["message"]["content"] == fourth["message"]["content"] == text
    assert (told["temperature"], told["n_predict"], told["repeat_penalty"]) == (0, 5, 1.5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"temprature": 0}, "for no field of requests"),
        ({"temperature": "warm"}, "the default of 'temperature'"),
        ({"model": "x"}, "for no field of requests"),
    ],
)
def test_a_default_that_no_request_can_have_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Defaults(given)


async def test_an_alias_for_any_name_answers_to_names_that_nobody_has(file: Path) -> None:
    async with serving(models=[file], aliases=["*"]) as (_, client):
        body = {"prompt": "a", "max_tokens": 1, "model": "davinci-002"}
        answer = (await client.post("/v1/completions", json=body)).json()
        listed = (await client.get("/v1/models")).json()["data"]
    assert answer["model"] == "davinci-002"
    assert "*" not in [x["id"] for x in listed]
