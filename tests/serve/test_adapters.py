"""Adapters, rerankers on decoders and vectors of tokens over HTTP, beside the models themselves.

Not here: what adapters and rank heads compute (tests/models), form of answers (test_rerank.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest
from models import adapter_files
from models.test_rank_heads import write_reranker
from serve.support import GREEDY, serving

import aggml
from aggml.models.small import WIDTH, write_small
from aggml.serve.http.service import Options, Service

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "hello"}]
TEXTS = ["yes", "no d", "q q", ""]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the small model."""
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {f"blk.{i}.attn_q.weight": (WIDTH, WIDTH) for i in range(2)}
    shapes["blk.3.attn_output.weight"] = (WIDTH, WIDTH)
    return {
        name: adapter_files.write(
            folder / f"{name}.gguf", "llama", adapter_files.pairs(shapes, name, strength=3.0)
        )
        for name in ("poems", "law")
    }


async def test_requests_of_every_protocol_choose_an_adapter(
    file: Path, adapters: dict[str, Path]
) -> None:
    options = {"max_tokens": 8, "temperature": 0}
    wanted = {}
    async with aggml.models.load(file, ctx=512, adapters=adapters) as model:
        for name in (None, *adapters):
            message = await model.chat(MESSAGES, adapter=name, **options)
            wanted[name] = message.content
    assert len(set(wanted.values())) == 3
    async with serving(models=[file], adapters=adapters) as (_, client):
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(x["id"], x.get("parent")) for x in listed] == [
            ("small", None), ("poems", "small"), ("law", "small"),
        ]  # fmt: skip
        for name in adapters:
            for chosen in ({"model": name}, {"adapter": name}, {"model": name, "adapter": name}):
                body = {"messages": MESSAGES, **options, **chosen}
                chat = (await client.post("/v1/chat/completions", json=body)).json()
                assert chat["choices"][0]["message"]["content"] == wanted[name]
                assert chat["model"] == chosen.get("model", "small")
            body = {"messages": MESSAGES, "model": name, **options}
            anthropic = (await client.post("/v1/messages", json=body)).json()
            assert anthropic["content"][0]["text"] == wanted[name]
            body = {"input": "hello", "model": name, "max_output_tokens": 8, "temperature": 0}
            response = (await client.post("/v1/responses", json=body)).json()
            assert response["output"][0]["content"][0]["text"] == wanted[name]
            body = {"messages": MESSAGES, "model": name, "stream": False,
                    "options": {"num_predict": 8, "temperature": 0}}  # fmt: skip
            ollama = (await client.post("/api/chat", json=body)).json()
            assert ollama["message"]["content"] == wanted[name]
        plain = await client.post("/v1/chat/completions", json={"messages": MESSAGES, **options})
        assert plain.json()["choices"][0]["message"]["content"] == wanted[None]
        vectors = [
            (await client.post("/v1/embeddings", json={"input": "a b", "model": x})).json()
            for x in ("small", "poems")
        ]
        assert vectors[0]["data"][0]["embedding"] != vectors[1]["data"][0]["embedding"]


async def test_requests_scale_adapters_by_name_and_by_number(
    file: Path, adapters: dict[str, Path]
) -> None:
    """Requests with different scales come together; each answers as the model does alone."""
    some: list[tuple[dict[str, Any], dict[str, float]]] = [
        ({"lora": [{"id": 0, "scale": 0.0}]}, {}),
        ({"lora": [{"id": 0, "scale": 0.3}]}, {"poems": 0.3}),
        ({"lora": [{"id": 1, "scale": 0.7}, {"id": 0, "scale": 0.5}]}, {"poems": 0.5, "law": 0.7}),
        ({"lora": [{"id": 1}]}, {"law": 1.0}),
        ({"adapter": {"poems": 0.3}}, {"poems": 0.3}),
        ({"adapter": {"law": 0.7, "poems": 0.5}}, {"poems": 0.5, "law": 0.7}),
        ({"lora": []}, {}),
    ]
    wanted, found = [], {}
    async with aggml.models.load(file, ctx=512, adapters=adapters) as model:
        for _, scales in some:
            tokens = model.generate("a b c", max_tokens=8, adapter=scales)
            wanted.append("".join([x.text async for x in tokens]))
    assert len(set(wanted)) == 4
    async with serving(models=[file], adapters=adapters) as (_, client):
        listed = (await client.get("/lora-adapters")).json()
        assert [(x["id"], x["name"], x["path"], x["scale"]) for x in listed] == [
            (0, "poems", "poems.gguf", 0.0), (1, "law", "law.gguf", 0.0),
        ]  # fmt: skip

        async def ask(i: int, path: str, body: dict[str, Any]) -> None:
            answer = (await client.post(path, json=some[i][0] | body)).json()
            found[i, path] = answer["choices"][0]["text"] if "v1" in path else answer["content"]

        async with anyio.create_task_group() as tasks:
            for i in range(len(some)):
                same = {"prompt": "a b c", "temperature": 0}
                tasks.start_soon(ask, i, "/completion", same | {"n_predict": 8})
                tasks.start_soon(ask, i, "/v1/completions", same | {"max_tokens": 8})
    for (i, path), text in found.items():
        assert text == wanted[i], (path, some[i])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lora": [{"id": 2}]}, "has no adapter 2; there are 0 to 1"),
        ({"lora": [{"id": 1}, {"id": 1}]}, "has the adapter 1 twice"),
        ({"lora": [{"id": 0}], "adapter": "law"}, "adapter names adapters, too"),
        ({"lora": [{"id": 0}], "model": "law"}, "is that of another adapter"),
        ({"lora": [{"id": -1}]}, "id"),
        ({"lora": [{"scale": 1}]}, "id"),
    ],
)
async def test_scales_that_fit_no_adapter_are_refused(
    file: Path, adapters: dict[str, Path], given: dict[str, Any], told: str
) -> None:
    async with serving(models=[file], adapters=adapters) as (_, client):
        answer = await client.post("/v1/completions", json={"prompt": "a", **GREEDY, **given})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "lora"
    assert told in error["message"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"adapter": {"tables": 0.5}}, "has no adapter 'tables'; there are 'poems', 'law'"),
        ({"adapter": "tables"}, "has no adapter 'tables'; there are 'poems', 'law'"),
        ({"model": "law", "adapter": "poems"}, "is that of another adapter"),
    ],
)
async def test_an_adapter_that_is_not_there_is_refused_by_name(
    file: Path, adapters: dict[str, Path], given: dict[str, str], told: str
) -> None:
    async with serving(models=[file], adapters=adapters) as (_, client):
        answer = await client.post("/v1/completions", json={"prompt": "a", **GREEDY, **given})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "adapter"
    assert told in error["message"]


def test_an_adapter_may_not_have_the_name_of_a_model(file: Path, adapters: dict[str, Path]) -> None:
    with pytest.raises(aggml.models.ModelError, match="two models have the name 'law'"):
        Service(Options(models=[file], adapters=adapters, aliases=["law"]))


async def test_rerankers_on_decoders_answer_as_the_model(tmp_path: Path) -> None:
    path = write_reranker(tmp_path / "rank.gguf")
    async with aggml.models.load(path, ctx=512) as model:
        assert isinstance(model, aggml.models.TextModel)
        wanted = await model.rerank("q", TEXTS)
        pairs = [model.encode_pair("q", x) for x in TEXTS]
        assert (await model.rerank_ids(pairs)).tolist() == wanted.tolist()
    async with serving(models=[path]) as (_, client):
        body: dict[str, Any] = {"query": "q", "documents": TEXTS}
        answer = (await client.post("/v1/rerank", json=body)).json()
        long = {"query": "q", "documents": ["d " * 600]}
        refused = await client.post("/v1/rerank", json=long)
    assert answer["usage"]["total_tokens"] == sum(map(len, pairs))
    scores = {x["index"]: x["relevance_score"] for x in answer["results"]}
    np.testing.assert_allclose([scores[i] for i in range(len(TEXTS))], wanted, rtol=1e-5)
    assert [x["relevance_score"] for x in answer["results"]] == sorted(scores.values())[::-1]
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.long
async def test_no_adapter_by_any_words_is_none(file: Path, minilm: Path) -> None:
    async with serving(models=[file, minilm]) as (_, client):
        for path, body in (
            ("/score", {"text_1": "a", "text_2": "b"}), ("/v1/embeddings", {"input": "a"}),
            ("/v1/completions", {"prompt": "a", **GREEDY, "max_tokens": 1}),
        ):  # fmt: skip
            plain = await client.post(path, json=body)
            for given in cast("tuple[Any, ...]", ({}, None)):
                answer = await client.post(path, json=body | {"adapter": given})
                assert answer.status_code == plain.status_code == 200, answer.text


async def test_each_token_gets_a_vector_of_encoders_and_decoders(file: Path, minilm: Path) -> None:
    texts = ["hello", "a longer text"]
    for path in (file, minilm):
        async with aggml.models.load(path, ctx=512) as model:
            wanted = await model.embed_multi(texts)
            whole = await model.embed(texts)
        async with serving(models=[path]) as (_, client):
            found = (await client.post("/pooling", json={"input": texts})).json()
            assert found["usage"]["prompt_tokens"] == sum(map(len, wanted))
            for one, rows in zip(found["data"], wanted, strict=True):
                np.testing.assert_allclose(one["data"], rows, rtol=1e-4, atol=1e-5)
            body = {"input": texts, "task": "embed"}
            embedded = (await client.post("/pooling", json=body)).json()
            vectors = [x["data"] for x in embedded["data"]]
            np.testing.assert_allclose(vectors, whole, rtol=1e-4, atol=1e-5)
            refused = await client.post("/pooling", json={"input": [[1, 2]]})
            assert refused.status_code == 400
