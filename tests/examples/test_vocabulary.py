"""models/tokenizers/vocabulary.py: text to tokens and back, by SentencePiece and byte-level BPE."""

from __future__ import annotations

import pytest

from aggml.models.tokenizers import open_vocabulary
from aggml.models.tokenizers.vocabulary import (
    ByteLevel,
    SentencePiece,
    VocabularyError,
)
from examples import llama_files


def sentence_piece() -> SentencePiece:
    tokens, scores, types = llama_files.pieces()
    return SentencePiece(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.bos_token_id": 1,
        }
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hello world", ["<s>", "▁hello", "▁world"]),
        ("hellhello", ["<s>", "▁", "hell", "hello"]),
        ("held", ["<s>", "▁", "he", "ld"]),
        ("é</s>x", ["<s>", "▁", "<0xC3>", "<0xA9>", "</s>", "▁", "x"]),
        ("", ["<s>"]),
    ],
)
def test_sentence_piece_joins_the_best_first(text: str, pieces: list[str]) -> None:
    vocabulary = sentence_piece()
    assert [vocabulary.pieces[i] for i in vocabulary.encode(text)] == pieces


def test_decoding_gives_the_text_back_also_piecewise() -> None:
    vocabulary = sentence_piece()
    text = "hello wörld ☃"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert "".join(vocabulary.stream(iter(ids))) == " " + text
    broken = vocabulary.encode("☃", special=False)[:-1]
    assert vocabulary.decode(broken) == "\ufffd"


def test_byte_level_goes_by_merges_and_keeps_special_tokens() -> None:
    letters = [*"abcdefgh", "Ġ", "Ã", "©"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*letters, "ab", "abc", "Ġab", "<|end|>"],
        "tokenizer.ggml.token_type": [1] * (len(letters) + 3) + [3],
        "tokenizer.ggml.merges": ["a b", "ab c", "Ġ ab"],
        "tokenizer.ggml.eos_token_id": len(letters) + 3,
    }
    vocabulary = open_vocabulary(metadata)
    assert isinstance(vocabulary, ByteLevel)
    ids = vocabulary.encode("abc ab é<|end|>")
    assert [vocabulary.pieces[i] for i in ids] == ["abc", "Ġab", "Ġ", "Ã", "©", "<|end|>"]
    assert vocabulary.decode(ids) == "abc ab é"
    with pytest.raises(VocabularyError, match=r"tokenizer\.ggml\.pre is 'new'"):
        open_vocabulary({**metadata, "tokenizer.ggml.pre": "new"})
