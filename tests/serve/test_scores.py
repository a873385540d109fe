"""/score and /classify in vLLM's form, of each kind of head, beside numpy and the model's calls.

Not here: rerank (test_rerank.py), heads beside other programs' (tests/models/test_folders.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import random_models
from models.layout import WIDTH
from models.test_rank_heads import expected, write_reranker
from serve.support import serving

import aggml

if TYPE_CHECKING:
    from pathlib import Path

    import httpx
    import numpy.typing as npt

QUERY = "a b"
TEXTS = ["c", "b c", "a", "w7 w8 a b", "c"]
LABELS = ("calm", "glad", "sad")


async def ask(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    kind = path.removeprefix("/v1").removeprefix("/")
    assert re.fullmatch(rf"{kind}-[0-9a-f]{{24}}", found["id"])
    assert (found["object"], type(found["created"])) == ("list", int)
    assert [x["index"] for x in found["data"]] == [*range(len(found["data"]))]
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] > 0 == usage["completion_tokens"]
    return found


def scores_of(found: Any) -> list[float]:
    assert all(set(x) == {"index", "object", "score"} for x in found["data"])
    assert all(x["object"] == "score" for x in found["data"])
    return [x["score"] for x in found["data"]]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def write_classes(path: Path, labels: tuple[str, ...]) -> Path:
    """A BERT whose head has a row for each label; only those with names are named in the file."""
    weights = random_models.weights("bert-rank")
    draws = np.random.default_rng(3)
    head = draws.standard_normal((len(labels), WIDTH)) / 8
    weights["cls.output.weight"] = head.astype(np.float32)
    # so that the best class is not the same for all texts
    weights["cls.output.bias"] = np.array([0, 0.25, 0], np.float32)[: len(labels)]
    with aggml.GGUFWriter(path) as writer:
        for key, value in random_models.metadata_of("bert-rank").items():
            writer.add(key, value)
        for key, value in random_models.words("▁a", "▁b", "▁c").items():
            writer.add(key, value)
        writer.add("tokenizer.ggml.token_type_count", 2)
        if any(labels):
            writer.add("bert.classifier.output_labels", [x for x in labels if x])
        for name, values in weights.items():
            writer.add_tensor(name, values)
    return path


async def head_by_numpy(path: Path, texts: list[str]) -> npt.NDArray[np.float64]:
    """The numbers of the head, from the vectors of the first tokens."""
    with aggml.GGUFFile.open(path) as file:
        names = [x for x in file.tensors if x.startswith("cls.")]
        async with aggml.get_device("CPU").backend() as cpu:
            await file.load(cpu, names=names)
            w = {x: (await cpu.get(file.tensors[x])).astype(np.float64) for x in names}
    async with aggml.models.load(path) as model:
        first = np.stack([x[0] for x in await model.embed_multi(texts)]).astype(np.float64)
    inner = np.tanh(first @ w["cls.weight"].T + w["cls.bias"])
    found: npt.NDArray[np.float64] = (
        inner @ w["cls.output.weight"].reshape(-1, WIDTH).T + w["cls.output.bias"]
    )
    return found


async def test_pairs_are_scored_one_with_many_and_each_with_its_own(ranker: Path) -> None:
    async with aggml.models.load(ranker) as model:
        wanted = await model.rerank(QUERY, TEXTS)
        crossed = [float((await model.rerank(x, [QUERY]))[0]) for x in TEXTS]
    async with serving(models=[ranker]) as (_, client):
        many = scores_of(await ask(client, "/score", text_1=QUERY, text_2=TEXTS))
        np.testing.assert_allclose(many, sigmoid(wanted), atol=1e-5)
        plain = {"use_activation": False}
        raw = await ask(client, "/v1/score", queries=[QUERY], documents=TEXTS, **plain)
        np.testing.assert_allclose(scores_of(raw), wanted, atol=2e-5)
        assert raw["model"] == "ranker"
        each = await ask(client, "/score", data_1=TEXTS, data_2=[QUERY] * len(TEXTS), **plain)
        np.testing.assert_allclose(scores_of(each), crossed, atol=2e-5)
        (one,) = scores_of(await ask(client, "/score", queries=QUERY, items=TEXTS[1]))
        assert one == pytest.approx(many[1], abs=1e-5)
        for body, field in (
            ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
            ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
            ({"text_1": [], "text_2": "a"}, "text_1"),
            ({"text_1": "a"}, "text_2"),
            ({"text_1": "a", "text_2": "b " * 600}, "text_2"),
            ({"text_1": "a", "text_2": 5}, "text_2"),
        ):
            answer = await client.post("/score", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), (
                answer.text
            )


async def test_documents_are_ranked_by_numbers_or_probabilities(ranker: Path) -> None:
    async with aggml.models.load(ranker) as model:
        wanted = np.sort(await model.rerank(QUERY, TEXTS))[::-1]
    async with serving(models=[ranker]) as (_, client):
        for given, scores in (
            ({}, wanted), ({"use_activation": False}, wanted), ({"activation": False}, wanted),
            ({"use_activation": True}, sigmoid(wanted)), ({"activation": True}, sigmoid(wanted)),
            ({"use_activation": None}, wanted),
        ):  # fmt: skip
            body = {"query": QUERY, "documents": TEXTS, **given}
            told = (await client.post("/v1/rerank", json=body)).json()
            found = [x["relevance_score"] for x in told["results"]]
            np.testing.assert_allclose(found, scores, atol=2e-5)


async def test_without_a_head_the_score_is_the_cosine(ranker: Path, tmp_path: Path) -> None:
    words = {"general.name": "plain", **random_models.words("▁a", "▁b", "▁c")}
    plain = random_models.write(tmp_path / "plain.gguf", "bert", words)
    async with aggml.models.load(plain) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        one, *others = await model.embed([QUERY, *TEXTS], normalize=True)
    wanted = np.stack(others) @ one
    async with serving(models=[plain, ranker]) as (_, client):
        body = {"text_1": QUERY, "text_2": TEXTS}
        found = scores_of(await ask(client, "/score", **body, model="plain"))
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        ranked = await ask(client, "/score", **body)  # a model with a head comes first
        assert ranked["model"] == "ranker"
        long = await client.post("/score", json=body | {"model": "plain", "text_2": "b " * 600})
        assert (long.status_code, long.json()["error"]["param"]) == (400, "text_2")
    async with serving(models=[plain]) as (_, client):
        assert scores_of(await ask(client, "/score", **body)) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("labels", [LABELS, ("", "", ""), ("only",)], ids=["named", "not", "one"])
async def test_the_class_of_each_text_and_how_probable_all_are(
    labels: tuple[str, ...], tmp_path: Path
) -> None:
    file = write_classes(tmp_path / "classes.gguf", labels)
    numbers = await head_by_numpy(file, TEXTS)
    powers = np.exp(numbers)
    wanted = sigmoid(numbers) if len(labels) == 1 else powers / powers.sum(axis=1, keepdims=True)
    names = [x or f"LABEL_{i}" for i, x in enumerate(labels)]
    assert len(labels) == 1 or len({*numbers.argmax(axis=1).tolist()}) > 1
    async with aggml.models.load(file) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        assert model.labels == tuple(names)
        np.testing.assert_allclose(await model.classify(TEXTS), numbers, atol=5e-5)
        assert (await model.classify([])).shape == (0, len(labels))
    async with serving(models=[file]) as (_, client):
        found = (await ask(client, "/classify", input=TEXTS))["data"]
        assert [x["label"] for x in found] == [names[i] for i in numbers.argmax(axis=1)]
        assert {x["num_classes"] for x in found} == {len(labels)}
        np.testing.assert_allclose([x["probs"] for x in found], wanted, atol=2e-5)
        (raw,) = (await ask(client, "/classify", input=TEXTS[0], use_activation=False))["data"]
        np.testing.assert_allclose(raw["probs"], numbers[0], atol=5e-5)
        long = {"input": ["a " * 700, "b"]}
        refused = await client.post("/classify", json=long)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        cut = await ask(client, "/classify", **long, truncate_prompt_tokens=8)
        assert cut["usage"]["prompt_tokens"] == 8 + 3
        pairs = await client.post("/score", json={"text_1": "a", "text_2": "b"})
        assert pairs.status_code == (200 if len(labels) == 1 else 400)


async def test_a_decoder_that_answers_yes_or_no_scores_and_classifies(tmp_path: Path) -> None:
    file = write_reranker(tmp_path / "yes.gguf")
    documents = ["d", "yes no", "no " * 9]
    async with aggml.models.load(file, ctx=256) as model:
        assert isinstance(model, aggml.models.TextModel)
        words = model.tokenizer
        pairs = [model.encode_pair("q?", x) for x in documents]
        wanted = [expected(await model.logits(ids), words) for ids in pairs]
        alone = [expected(await model.logits(words.encode_prompt(x)), words) for x in documents]
        assert model.labels == ("yes", "no")
        np.testing.assert_allclose(
            [x - y for x, y in await model.classify_ids(pairs)],
            np.log(wanted) - np.log1p(-np.array(wanted)), atol=1e-3,
        )  # fmt: skip
    async with serving(models=[file]) as (_, client):
        body = {"text_1": "q?", "text_2": documents}
        scores = scores_of(await ask(client, "/score", **body))
        np.testing.assert_allclose(scores, wanted, atol=1e-4)
        raw = scores_of(await ask(client, "/score", **body, use_activation=False))
        np.testing.assert_allclose(sigmoid(raw), wanted, atol=1e-4)
        classes = (await ask(client, "/classify", input=documents))["data"]
        np.testing.assert_allclose([x["probs"][0] for x in classes], alone, atol=1e-4)
        assert [x["label"] for x in classes] == ["yes" if x > 0.5 else "no" for x in alone]
        # The form of text-embeddings-inference, whose scores are probabilities, has the same.
        tei = await client.post("/rerank", json={"query": "q?", "texts": documents})
        told = {x["index"]: x["score"] for x in tei.json()}
        np.testing.assert_allclose([told[i] for i in range(3)], wanted, atol=1e-4)


async def test_models_without_a_head_classify_nothing(minilm: Path) -> None:
    async with serving(models=[minilm]) as (_, client):
        answer = await client.post("/classify", json={"input": "a"})
        assert answer.status_code == 404
        assert "no model for classification" in answer.json()["error"]["message"]
    async with aggml.models.load(minilm) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        assert model.labels == ()
        with pytest.raises(aggml.models.ModelError, match="rank head"):
            await model.classify(["a"])


@pytest.mark.parametrize("family", ["encoder", "yes or no"])
async def test_documents_are_cut_if_that_is_asked_for(
    ranker: Path, tmp_path: Path, family: str
) -> None:
    file = ranker if family == "encoder" else write_reranker(tmp_path / "yes.gguf")
    long, short = "a b " * 600, "b"
    async with aggml.models.load(file, ctx=512) as model:
        assert isinstance(model, (aggml.models.EncoderModel, aggml.models.TextModel))
        alone, least = (len(model.encode_pair("a", x)) for x in ("", short))
        whole = await model.rerank("a", [long, short])  # cut to what fits
        few = await model.rerank_ids(
            [model.encode_pair("a", x, most=alone + 4) for x in (long, short)]
        )
        pair = model.encode_pair("a", long, most=alone + 4)
        assert len(pair) == alone + 4
        assert pair != model.encode_pair("a", "b a " * 600, most=alone + 4)
        with pytest.raises(aggml.InvalidArgument, match="most"):
            model.encode_pair("a", "b", most=0)
    async with serving(models=[file]) as (_, client):
        body = {"query": "a", "documents": [long, short]}
        refused = await client.post("/v1/rerank", json=body)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        for given, wanted, tokens in (
            ({"truncate": True}, whole, 512), ({"truncate_prompt_tokens": -1}, whole, 512),
            ({"truncate_prompt": 1 << 20}, whole, 512),
            ({"max_tokens_per_doc": 5000}, whole, 512),
            ({"truncate_prompt_tokens": alone + 4}, few, alone + 4),
            ({"max_tokens_per_doc": 4}, few, alone + 4),
        ):  # fmt: skip
            answer = await client.post("/v1/rerank", json=body | given)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            scores = {x["index"]: x["relevance_score"] for x in told["results"]}
            np.testing.assert_allclose([scores[0], scores[1]], wanted, atol=2e-5)
            assert told["usage"]["prompt_tokens"] == tokens + least
        for value in (0, None):
            more = {"max_tokens_per_doc": value, "truncate_prompt": value}
            assert (await client.post("/v1/rerank", json=body | more)).status_code == 400
        scored = await client.post("/score", json={
            "text_1": "a", "text_2": [long, short], "truncate_prompt_tokens": alone + 4,
            "use_activation": False,
        })  # fmt: skip
        assert scored.status_code == 200, scored.text
        assert scored.json()["usage"]["prompt_tokens"] == alone + 4 + least
