"""WordPiece and unigram vocabularies on a text in 20 scripts; vectors and ranks of text.

Not here: byte-level vocabularies (test_cuts.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from models import minilm_file, random_models, torture

import aggml
from aggml.models.tokenizers import open_vocabulary


@pytest.fixture(scope="module")
def folder() -> Path:
    found = minilm_file.folder()
    if found is None:
        pytest.skip(f"the package {minilm_file.PACKAGE} is not installed (make .venv/has-model)")
    return found


def test_word_pieces_are_those_of_the_models_own_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    own.no_padding()
    own.no_truncation()
    words = open_vocabulary(minilm_file.metadata(folder))
    assert words is not None
    different = [x for x in torture.TEXTS if words.encode(x) != own.encode(x).ids]
    assert different == []
    assert words.encode_pair("a query", "a text") == own.encode("a query", "a text").ids
    assert words.decode(words.encode("Hello, World")) == "hello , world"


def test_unigram_tokens_are_those_of_llama_cpp() -> None:
    told = json.loads(Path(__file__).with_name("unigram.json").read_text(encoding="ascii"))
    words = open_vocabulary(torture.of_unigram(told["tokens"], told["scores"]))
    assert words is not None
    pairs = zip(torture.TEXTS, told["ids"], strict=True)
    assert [text for text, ids in pairs if words.encode(text) != ids] == []
    assert words.encode_pair("two", "three") == [
        *words.encode("two"), 2, *words.encode("three")[1:]
    ]  # fmt: skip


async def test_text_becomes_the_vectors_of_its_tokens(tmp_path: Path) -> None:
    vocabulary = random_models.words("▁the", "▁cat", "▁a", "▁dog", "▁and", "s")
    path = random_models.write(tmp_path / "bert.gguf", "bert", vocabulary)
    async with await aggml.models.load(path) as model:
        ids = [[2, 4, 5, 9, 3], [2, 6, 7, 8, 6, 1, 3]]
        texts = ["The CATS", "a dog and a mouse"]
        assert [model.tokenizer.encode(text) for text in texts] == ids
        np.testing.assert_array_equal(await model.embed(texts), await model.embed_ids(ids))
        assert model.tokenizer.decode(ids[0]) == "the cats"
        with pytest.raises(aggml.models.ModelError, match="no rank head"):
            await model.rerank("a cat", texts)


async def test_rerank_is_the_head_on_the_first_token(tmp_path: Path) -> None:
    """Compared with the head in numpy, on the encoder's vector of the first token.

    `embed_ids` has no types of tokens. So the second file has the difference of the types in the
    embeddings of the tokens of documents, and in those of token 9, which ends them.
    """
    vocabulary = random_models.words("▁a", "▁b", "▁c", "▁d", "▁e")
    path = random_models.write(tmp_path / "rank.gguf", "bert-rank", vocabulary)
    weights = random_models.weights("bert-rank")
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        got = await model.rerank("a b", ["c", "d c", "e"])
    typed = {name: x.copy() for name, x in weights.items()}
    types, rows = typed["token_types.weight"], typed["token_embd.weight"]
    rows[9] = rows[3]
    rows[6:10] += types[1] - types[0]
    with aggml.GGUFWriter(tmp_path / "typed.gguf") as writer:
        for key, value in (random_models.metadata_of("bert-rank") | vocabulary).items():
            writer.add(key, value)
        writer.add("tokenizer.ggml.token_type_count", 2)
        for name, x in typed.items():
            writer.add_tensor(name, x)
    async with await aggml.models.load(tmp_path / "typed.gguf") as model:
        assert isinstance(model, aggml.models.EncoderModel)
        pairs = [[2, 4, 5, 3, 6, 9], [2, 4, 5, 3, 7, 6, 9], [2, 4, 5, 3, 8, 9]]
        first = await model.embed_ids(pairs, normalize=False)  # its pooling takes the first token
    inner = np.tanh(first @ weights["cls.weight"].T + weights["cls.bias"])
    wanted = inner @ weights["cls.output.weight"].T + weights["cls.output.bias"]
    assert got.shape == (3,)
    np.testing.assert_allclose(got, wanted[:, 0], rtol=1e-4, atol=1e-5)
