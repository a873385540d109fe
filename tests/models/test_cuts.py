"""Byte-level vocabularies split a text in 20 scripts as llama.cpp does, for each pre-tokenizer.

Its tokens were recorded (benchmarks/make_tokens.py). Not here: SentencePiece
(tests/examples/test_vocabulary.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from models import torture

from aggml.models.tokenizers import open_vocabulary
from aggml.models.tokenizers.cuts import CUTS

RECORDED: Final = json.loads(
    Path(__file__).with_name("reference_tokens.json").read_text(encoding="ascii")
)
WANTED: Final[dict[str, list[list[int]]]] = {
    pre: same["ids"] for same in RECORDED for pre in same["pre"]
}


# For these names llama.cpp does not tell capitals from small letters where a word is split in the
# middle. The models' own tokenizers do, and so does this package.
CASED: Final = ("cohere2moe", "kimi-k2", "tiny_aya", "youtu")
#: In llama.cpp's kimi-k2 combining marks also belong to no word; one text has such marks.
MARKS: Final = {"kimi-k2": next(text for text in torture.TEXTS if "क्षत्रिय" in text)}
CAMEL: Final = next(text for text in torture.TEXTS if "camelCase" in text)


def metadata(pre: str) -> dict[str, Any]:
    tokens, merges = torture.vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize("pre", WANTED)
def test_tokens_are_those_of_llama_cpp(pre: str) -> None:
    words = open_vocabulary(metadata(pre))
    assert words is not None
    different = [
        text for text, ids in zip(torture.TEXTS, WANTED[pre], strict=True)
        if words.encode(text) != ids and text != MARKS.get(pre)
        and not (text == CAMEL and pre in CASED)
    ]  # fmt: skip
    assert different == []


@pytest.mark.parametrize("pre", WANTED)
def test_tokens_are_the_text_again(pre: str) -> None:
    words = open_vocabulary(metadata(pre))
    assert words is not None
    assert [words.decode(words.encode(text)) for text in torture.TEXTS] == [*torture.TEXTS]


def test_every_cut_of_bytes_was_recorded() -> None:
    assert {*WANTED} == {name for name, cut in CUTS.items() if cut.bytes}


@pytest.mark.parametrize("pre", CASED)
def test_words_are_cut_where_capitals_begin(pre: str) -> None:
    words = open_vocabulary(metadata(pre))
    assert words is not None
    parts = ("camel", "Case", "Word")
    assert words.encode("".join(parts)) == [x for part in parts for x in words.encode(part)]


def test_words_without_gaps_are_cut_as_by_llama_cpp() -> None:
    told = json.loads(Path(__file__).with_name("words.json").read_text(encoding="ascii"))
    given = torture.of_bpe("whitespace", told["tokens"], told["merges"], "whitespace")
    words = open_vocabulary(given)
    assert words is not None
    pairs = zip(torture.TEXTS, told["ids"], strict=True)
    assert [text for text, ids in pairs if words.encode(text) != ids] == []
    assert words.encode(" a  b\n") == [*words.encode("a"), *words.encode("b")]
    lower = open_vocabulary(given | {"tokenizer.ggml.normalizer.lowercase": True})
    assert lower is not None
    assert lower.encode("AbC") == words.encode("abc") != words.encode("AbC")
