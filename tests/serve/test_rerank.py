"""aggml.serve ranks documents: the model's own scores, in the form of Cohere's and Jina's answers.

Not here: what each field refuses (test_fields.py), the rank head (tests/models/test_pieces.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from cli.program import run
from serve.support import serving

import aggml

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

QUERY = "a b"
TEXTS = ["c", "b c", "a", "w7 w8 a b", "c", "w1"]


async def alone(ranker: Path, query: str, texts: list[str]) -> list[float]:
    async with await aggml.models.load(ranker) as model:
        found: list[float] = (await model.rerank(query, texts)).tolist()
    return found


async def ask(client: httpx.AsyncClient, **given: Any) -> Any:
    answer = await client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS} | given)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_documents_come_best_first_with_the_scores_of_the_model(ranker: Path) -> None:
    wanted = await alone(ranker, QUERY, TEXTS)
    async with serving(models=[ranker]) as (_, client):
        told = await ask(client)
        mixed = await ask(client, documents=[{"text": x, "title": "any"} for x in TEXTS])
    results = told["results"]
    order = sorted(range(len(TEXTS)), key=lambda i: (-wanted[i], i))
    # only the scores of the two equal texts are equal
    assert len({round(x, 4) for x in wanted}) == 5
    assert [x["index"] for x in results[:]] == order
    np.testing.assert_allclose(
        [x["relevance_score"] for x in results], [wanted[i] for i in order], atol=2e-5
    )
    assert all(set(x) == {"index", "relevance_score"} for x in results)
    tokens = sum(len(x.split()) for x in TEXTS) + (2 + 3) * len(TEXTS)
    assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (told["model"], told["object"]) == ("ranker", "list")
    assert [x["index"] for x in mixed["results"]] == order


async def test_the_best_alone_and_their_texts(ranker: Path) -> None:
    async with serving(models=[ranker]) as (_, client):
        every = (await ask(client, return_documents=True))["results"]
        best = (await ask(client, return_documents=True, top_n=2))["results"]
        many = (await ask(client, top_n=50))["results"]
    assert [x["document"] for x in every] == [{"text": TEXTS[x["index"]]} for x in every]
    assert best == every[:2]
    assert len(many) == len(TEXTS)


async def test_many_clients_share_batches(ranker: Path) -> None:
    queries = [f"w{i} a" for i in range(12)]
    wanted = [await alone(ranker, query, TEXTS) for query in queries]
    found: dict[int, list[float]] = {}
    async with serving(models=[ranker]) as (_, client):

        async def one(i: int) -> None:
            results = (await ask(client, query=queries[i]))["results"]
            scores = {x["index"]: x["relevance_score"] for x in results}
            found[i] = [scores[j] for j in range(len(TEXTS))]

        async with anyio.create_task_group() as tasks:
            for i in range(len(queries)):
                tasks.start_soon(one, i)
    np.testing.assert_allclose([found[i] for i in range(len(queries))], wanted, atol=2e-5)


async def test_a_model_without_a_rank_head_does_not_rank(minilm: Path, ranker: Path) -> None:
    given = {"query": QUERY, "documents": TEXTS}
    async with serving(models=[minilm]) as (_, client):
        answer = await client.post("/v1/rerank", json=given)
        assert answer.status_code == 404
        assert "no model for rerank" in answer.json()["error"]["message"]
    # the first model that has a rank head
    async with serving(models=[minilm, ranker]) as (_, client):
        assert (await ask(client))["model"] == "ranker"
        vectors = await client.post("/v1/embeddings", json={"input": "a", "model": "ranker"})
        assert vectors.status_code == 200


async def test_a_deadline_ends_it(ranker: Path) -> None:
    async with serving(models=[ranker]) as (_, client):
        given = {"query": QUERY, "documents": TEXTS, "timeout": 1e-9}
        assert (await client.post("/v1/rerank", json=given)).status_code == 504
        await ask(client)


@pytest.mark.parametrize("top", [None, 2])
def test_the_program_ranks_in_the_same_order(ranker: Path, top: int | None) -> None:
    more = [] if top is None else ["--top-n", str(top)]
    told = json.loads(run("rerank", ranker, QUERY, *TEXTS, "--json", *more)[0])
    lines = run("rerank", ranker, QUERY, *TEXTS, *more)[0].splitlines()
    assert len(told) == len(lines) == (top or len(TEXTS))
    scores = [x["relevance_score"] for x in told]
    assert scores == sorted(scores, reverse=True)
    assert lines == [f"{x['relevance_score']:.4f}  {TEXTS[x['index']]}" for x in told]
