"""Every family of rank heads over HTTP and in the command, from folders and from GGUF files.

Pairs of texts are put together as the family's tokenizer does. Not here: the form of answers
(test_rerank.py), the heads beside transformers' (tests/models/test_folders.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
import tokenizers
from cli.program import run
from models import layout, random_folders
from models.masked_words import head_of
from serve.support import serving
from tokenizers import models as kinds
from tokenizers import pre_tokenizers, processors

import aggml
from aggml.models.converting import convert

if TYPE_CHECKING:
    from pathlib import Path

QUERY: Final = "ab cd"
TEXTS: Final = ["c", "b c", "a", "dd ab a b", "c", "dc ba"]
LETTERS: Final = "abcd"


def _rest(begun: list[str]) -> list[str]:
    return [*begun, *(f"w{i}" for i in range(layout.VOCABULARY - len(begun)))]


def word_piece() -> tokenizers.Tokenizer:
    """[CLS] query [SEP] text [SEP]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{x}" for x in LETTERS)]
    ids = {word: i for i, word in enumerate(_rest(words))}
    made = tokenizers.Tokenizer(kinds.WordPiece(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(words[:4])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    return made


def unigram() -> tokenizers.Tokenizer:
    """<s> query </s></s> text </s>."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS, "▁a", "▁ab"]
    scores = [(word, -float(i)) for i, word in enumerate(_rest(words))]
    made = tokenizers.Tokenizer(kinds.Unigram(scores, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(words[:4])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    return made


def byte_pairs() -> tokenizers.Tokenizer:
    """[CLS] query [SEP] text [SEP], of bytes."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    ids = {word: i for i, word in enumerate(_rest(words))}
    made = tokenizers.Tokenizer(kinds.BPE(ids, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(words[:4])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    return made


def jina(folder: Path) -> Path:
    """As jinaai publishes it: a matrix pools the first token, then the head."""
    width, inner = layout.WIDTH, layout.INNER
    at = "bert.encoder.layer.{}."
    each = {
        "attention.self.query": (width, width), "attention.self.key": (width, width),
        "attention.self.value": (width, width), "attention.output.dense": (width, width),
        "attention.output.LayerNorm": (width,), "mlp.wo": (width, inner), "mlp.layernorm": (width,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (layout.VOCABULARY, width),
        "bert.embeddings.token_type_embeddings.weight": (2, width),
        "bert.embeddings.LayerNorm.weight": (width,), "bert.embeddings.LayerNorm.bias": (width,),
        "bert.pooler.dense.weight": (width, width), "bert.pooler.dense.bias": (width,),
        "classifier.weight": (1, width), "classifier.bias": (1,),
    }  # fmt: skip
    for i in range(2):
        for name, shape in each.items():
            shapes[f"{at.format(i)}{name}.weight"] = shape
            shapes[f"{at.format(i)}{name}.bias"] = shape[:1]
        shapes[f"{at.format(i)}mlp.gated_layers.weight"] = (2 * inner, width)
    config = {
        "model_type": "bert", "architectures": ["JinaBertForSequenceClassification"],
        "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": layout.HEADS,
        "intermediate_size": inner, "max_position_embeddings": 512, "vocab_size": layout.VOCABULARY,
        "position_embedding_type": "alibi", "feed_forward_type": "geglu",
    }  # fmt: skip
    tensors = {name: random_folders.values("jina", name, shape) for name, shape in shapes.items()}
    return random_folders.save(folder, config, tensors)


FAMILIES: Final[dict[str, Any]] = {
    "bert-rank": word_piece, "xlm-roberta-rank": unigram, "modernbert-rank": byte_pairs,
    "jina-bert-v2": word_piece,
}  # fmt: skip


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("family", FAMILIES)
async def test_pairs_are_ranked_over_http_and_in_the_program(family: str, tmp_path: Path) -> None:
    place = tmp_path / family
    jina(place) if family == "jina-bert-v2" else random_folders.write(place, family)
    words = FAMILIES[family]()
    words.save(str(place / "tokenizer.json"))
    pairs = [words.encode(QUERY, text).ids for text in TEXTS]
    file = tmp_path / "model.gguf"
    await convert(place, file)
    async with await aggml.models.load(place) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        assert [model.tokenizer.encode_pair(QUERY, text) for text in TEXTS] == pairs
        wanted = await model.rerank_ids(pairs)
        np.testing.assert_allclose(await model.rerank(QUERY, TEXTS), wanted, atol=1e-6)
    # only the scores of the two equal texts are equal
    assert len({round(float(x), 5) for x in wanted}) == 5
    order = sorted(range(len(TEXTS)), key=lambda i: (-wanted[i], i))
    for path in (place, file):
        async with serving(models=[path]) as (_, client):
            given = {"query": QUERY, "documents": TEXTS}
            answer = await client.post("/v1/rerank", json=given)
            assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [x["index"] for x in results] == order
        told = [x["relevance_score"] for x in results]
        np.testing.assert_allclose(told, wanted[order], atol=2e-5)
        assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, pairs))
    ranked = json.loads(run("rerank", file, QUERY, *TEXTS, "--json")[0])
    np.testing.assert_allclose([x["relevance_score"] for x in ranked], wanted[order], atol=2e-5)


#: `BertForSequenceClassification` of transformers 5.24 with the ids and types of `word_piece`.
OF_TRANSFORMERS: Final = (0.11292, 0.07921, 0.07351, 0.07347, 0.11292, 0.16781)


async def test_bert_tells_the_second_text_of_a_pair_by_its_type(tmp_path: Path) -> None:
    place = random_folders.write(tmp_path / "ranker", "bert-rank")
    word_piece().save(str(place / "tokenizer.json"))
    file = tmp_path / "model.gguf"
    await convert(place, file)
    for path in (place, file):
        async with await aggml.models.load(path) as model:
            assert isinstance(model, aggml.models.EncoderModel)
            assert model.tokenizer.pair_separator == 3
            np.testing.assert_allclose(await model.rerank(QUERY, TEXTS), OF_TRANSFORMERS, atol=2e-5)
            (alone,) = await model.rerank(QUERY, TEXTS[:1])
            assert alone == pytest.approx(OF_TRANSFORMERS[0], abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
async def test_vectors_of_them_are_cut_over_http(family: str, tmp_path: Path) -> None:
    """A request may ask any encoder for fewer dimensions."""
    place = tmp_path / family
    jina(place) if family == "jina-bert-v2" else random_folders.write(place, family)
    FAMILIES[family]().save(str(place / "tokenizer.json"))
    async with await aggml.models.load(place) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        wanted = await model.embed(TEXTS, dimensions=24, normalize=True)
    async with serving(models=[place]) as (_, client):
        given = {"input": TEXTS, "dimensions": 24}
        answer = await client.post("/v1/embeddings", json=given)
        assert answer.status_code == 200, answer.text
    found = np.array([x["embedding"] for x in answer.json()["data"]])
    assert found.shape == (len(TEXTS), 24)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


async def test_weights_of_words_over_http_and_in_the_program(tmp_path: Path) -> None:
    place = random_folders.save(tmp_path / "terms", *head_of("bert", tied=True))
    word_piece().save(str(place / "tokenizer.json"))
    ranker = random_folders.write(tmp_path / "ranker", "bert-rank")
    word_piece().save(str(ranker / "tokenizer.json"))
    async with await aggml.models.load(place) as model:
        wanted = await model.embed_sparse(TEXTS)
    assert len({len(x) for x in wanted}) > 1
    async with serving(models=[ranker, place]) as (_, client):
        answer = await client.post("/embed_sparse", json={"inputs": TEXTS})
        assert answer.status_code == 200, answer.text
        got = [{x["index"]: x["value"] for x in one} for one in answer.json()]
        assert got == [pytest.approx(x, abs=2e-5) for x in wanted]
        one = await client.post("/embed_sparse", json={"inputs": TEXTS[0], "model": "terms"})
        assert {x["index"]: x["value"] for x in one.json()[0]} == pytest.approx(got[0], abs=2e-5)
        other = await client.post("/embed_sparse", json={"inputs": "a", "model": "ranker"})
        assert other.status_code == 404
        assert "sparse embeddings" in other.json()["error"]["message"]
    told = json.loads(run("embed", place, *TEXTS, "--sparse", "--json")[0])
    assert [{int(i): x for i, x in one.items()} for one in told] == [
        pytest.approx(x, abs=2e-5) for x in wanted
    ]
    lines = run("embed", place, TEXTS[0], "--sparse")[0].split()
    assert [int(x.split(":")[0]) for x in lines] == [*wanted[0]]
