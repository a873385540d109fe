"""Logits and vectors that are NaN: an error for that request, the right answer for all others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import random_models
from serve.support import GREEDY, engine_of, serving, until

import aggml
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

BAD = 7  # the token whose embedding is NaN
NEVER = 9  # the token whose logit is NaN
WAYS: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"logprobs": 3},
    {"temperature": 1.0, "seed": 3},
    {"repetition_penalty": 1.3, "logit_bias": {"20": 5.0}},
    {"n": 2},
]


def damage(path: Path, row: int | None) -> Path:
    """Write a model with NaN in a row of the output, and in that row of the embeddings."""
    write: Callable[..., Any] = aggml.GGUFWriter.add_tensor

    def spoil(writer: aggml.GGUFWriter, name: str, values: np.ndarray) -> None:
        if name == "token_embd.weight" and row is not None:
            values[row] = np.nan
        if name == "output.weight":
            values[NEVER] = np.nan
        write(writer, name, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggml.GGUFWriter, "add_tensor", spoil)
        return write_small(path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(tmp_path_factory.mktemp("models") / "damaged.gguf", BAD)


async def ask(client: httpx.AsyncClient, prompt: list[int], **more: Any) -> httpx.Response:
    given = {"prompt": prompt, "max_tokens": 6, **GREEDY, **more}
    return await client.post("/v1/completions", json=given)


def text(n: int, first: int) -> list[int]:
    return [1, *(10 + (first + 13 * i) % 240 for i in range(n - 1))]


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_whose_logits_are_nan_fails_and_no_other_does(
    damaged: Path, way: dict[str, Any]
) -> None:
    good, begin = text(150, 3), text(150, 60)
    found: dict[str, httpx.Response] = {}
    later: list[httpx.Response] = []

    async with serving(models=[damaged], slots=3, prefix_cache=1 << 20) as (app, client):
        wanted = (await ask(client, good, max_tokens=30)).json()["choices"]

        async def one(name: str, prompt: list[int], **more: Any) -> None:
            found[name] = await ask(client, prompt, **more)

        for _ in range(3):  # the second time in slots and shared rows that have held NaN
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: one("good", good, max_tokens=30))
                tasks.start_soon(lambda: one("bad", [*begin, BAD, *text(40, 9)], **way))
                tasks.start_soon(lambda: one("short", [BAD], **way))
            assert found["good"].json()["choices"] == wanted
            for name in ("bad", "short"):
                answer = found[name]
                if way.get("stream"):
                    assert answer.status_code == 200, answer.text
                    events = answer.text.strip().split("\n\n")
                    error = json.loads(events[-1].removeprefix("data: "))["error"]
                else:
                    assert answer.status_code == 500
                    error = answer.json()["error"]
                assert "all logits are NaN or -inf" in error["message"]
                assert error["type"] == "server_error"
            later.append(await ask(client, begin + text(30, 11)[1:]))
        assert (await client.get("/health")).json()["status"] == "ok"
        engine = engine_of(app)
        await until(lambda: not engine.active)
        assert engine.pages.used == 0
        assert [x.status_code for x in later] == [200] * 3
        (rest, *same) = (x.json()["choices"] for x in later)
        assert same == [rest] * 2
    async with serving(models=[damaged], slots=3, prefix_cache=0) as (_, client):
        assert (await ask(client, begin + text(30, 11)[1:])).json()["choices"] == rest


@pytest.mark.parametrize("way", [x for x in WAYS if "stream" not in x])
async def test_a_token_whose_logit_is_nan_is_never_in_an_answer(
    tmp_path: Path, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damage(tmp_path / "damaged.gguf", None)
    async with serving(models=[path]) as (app, client):
        engine = engine_of(app)
        made: list[int] = []
        take = engine._take

        def watched(job: Any, token: int, *more: Any) -> None:
            made.append(token)
            take(job, token, *more)

        monkeypatch.setattr(engine, "_take", watched)
        for i in range(3):
            answer = await ask(client, text(5, i), max_tokens=30, **way)
            assert answer.status_code == 200, answer.text
    assert len(made) >= 90
    assert NEVER not in made


async def test_vectors_and_scores_that_are_nan_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        random_models.write(tmp_path / f"{name}.gguf", name, random_models.words("▁a", "▁b"))
        for name in ("bert", "bert-rank")
    ]
    async with serving(models=files[:1]) as (app, client):
        (embedder,) = app.state.service.embedders.values()
        given = {"input": ["a", "b a"]}
        wanted = (await client.post("/v1/embeddings", json=given)).json()["data"]
        real = embedder.model.embed_ids

        async def spoilt(texts: list[list[int]]) -> np.ndarray:
            found = np.array(await real(texts))
            found[[len(x) > 3 for x in texts]] = np.nan
            return found

        with monkeypatch.context() as patch:
            patch.setattr(embedder.model, "embed_ids", spoilt)
            answer = await client.post("/v1/embeddings", json=given)
            assert answer.status_code == 500
            assert "input 1" in answer.json()["error"]["message"]
            one = await client.post("/v1/embeddings", json={"input": "a"})
            assert one.status_code == 200
        assert (await client.post("/v1/embeddings", json=given)).json()["data"] == wanted
    async with serving(models=files[1:]) as (app, client):
        (embedder,) = app.state.service.embedders.values()

        async def none(pairs: list[list[int]]) -> np.ndarray:
            return np.array([np.nan if pair == pairs[-1] else 0.5 for pair in pairs])

        monkeypatch.setattr(embedder.model, "rerank_ids", none)
        asked = {"query": "a", "documents": ["a", "b"]}
        answer = await client.post("/v1/rerank", json=asked)
        assert answer.status_code == 500
        assert re.search("document [01] is nan", answer.json()["error"]["message"])
