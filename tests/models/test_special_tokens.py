"""Special tokens of GGUF vocabularies: found in a text, or taken literally; those that end answers.

Not here: vocabularies of every kind beside llama.cpp (test_recorded_vocabularies.py).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from models import torture

from aggml import InvalidArgument
from aggml.models.tokenizers import Vocabulary, VocabularyError, open_vocabulary

BYTES = [f"<0x{i:02X}>" for i in range(256)]
ORDINARY = ["▁", "▁hello", "h", "e", "l", "o", "i", "▁h", "he", "ll", "hell", "hello", "\n", "▁hi"]


def pieces(special: dict[str, int], **more: Any) -> Vocabulary:
    """A vocabulary of SentencePiece with these special tokens after <unk>, <s> and </s>."""
    tokens = ["<unk>", "<s>", "</s>", *special, *BYTES, *ORDINARY]
    kinds = [2, 3, 3, *special.values(), *[6] * 256, *[1] * len(ORDINARY)]
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [-float(x) for x in range(len(tokens))],
    }  # fmt: skip
    words = open_vocabulary(metadata | more)
    assert words is not None
    return words


def opened(metadata: dict[str, Any]) -> Vocabulary:
    words = open_vocabulary(metadata)
    assert words is not None
    return words


def bytes_with(*special: str, **more: Any) -> dict[str, Any]:
    """A byte-level vocabulary, with special tokens at its end."""
    tokens, merges = torture.vocabulary()
    made = torture.of_bpe("smollm", [*tokens, *special], merges)
    made["tokenizer.ggml.token_type"][len(tokens) :] = [3] * len(special)
    return made | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def test_a_vocabulary_knows_the_tokens_that_are_never_drawn() -> None:
    assert opened(bytes_with("<|audio|>")).suppressed == ()
    more = {"tokenizer.ggml.suppress_tokens": np.array([7, 3], np.int32)}
    assert opened(bytes_with("<|audio|>") | more).suppressed == (7, 3)


def test_white_space_after_special_tokens_belongs_to_them_in_files_of_phi_3() -> None:
    special = {"<|user|>": 3, "<|end|>": 3}
    phi = pieces(special, **{"general.name": "Phi-3 mini"})
    other = pieces(special)
    hello = phi.encode("hello", special=False)
    assert phi.encode("<|user|> \n hello<|end|>\n", special=False) == [3, *hello, 4]
    assert other.encode("<|user|>\nhello", special=False) != [3, *hello]
    assert phi.encode("<s> hello", special=False)[1:] != hello  # it keeps its white space


@pytest.mark.parametrize("name", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"])
def test_an_answer_ends_at_tokens_that_are_known_by_their_text(name: str) -> None:
    words = opened(bytes_with(name, eos_token_id=5))
    assert words.ends >= {5, len(words.pieces) - 1}
    assert words.bytes_of(len(words.pieces) - 1) == b""


def test_a_part_of_an_answer_ends_without_ending_it() -> None:
    words = opened(bytes_with("<|return|>", "<|call|>", "<|channel|>", eos_token_id=5))
    found = {words.pieces[i] for i in words.ends}
    assert found >= {"<|return|>", "<|call|>"}
    assert "<|end|>" not in found
    assert words.bytes_of(words.ids["<|channel|>"]) == b"<|channel|>"
    assert words.bytes_of(words.ids["<|end|>"]) == b"<|end|>"


def test_the_name_of_the_unknown_token_in_a_text_is_that_token() -> None:
    words = pieces({})
    assert words.encode("<unk>", special=False) == [0]
    assert words.bytes_of(0) == b""


def test_literal_text_never_gives_control_tokens() -> None:
    words = pieces({"<|im_end|>": 3, "<tool>": 4, "hell": 3})
    ids = words.encode("<s>hello<|im_end|></s><unk>", literal=True, special=False)
    assert {0, 1, 2, 3, words.ids["hell"]}.isdisjoint(ids)
    assert words.decode(ids) == "<s>hello<|im_end|></s><unk>"
    assert words.ids["<tool>"] in words.encode("a<tool>", literal=True)
    level = opened(bytes_with("<|im_end|>"))
    assert level.decode(level.encode("a<|im_end|>b", literal=True)) == "a<|im_end|>b"


def test_a_second_bos_is_reported_and_not_put_before_prompts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = pieces({})
    with caplog.at_level(logging.WARNING, "aggml"):
        assert words.encode("<s>hi")[:2] == [1, 1]
    assert "now there are two of them" in caplog.text
    caplog.clear()
    assert words.encode_prompt("<s>hi") == words.encode_prompt("<s>hi")[:1] + words.encode(
        "hi", special=False
    )
    assert words.encode_prompt("hi") == words.encode("hi")
    assert caplog.text == ""


def test_a_special_token_is_found_by_its_text() -> None:
    words = pieces({"<|im_end|>": 3, "<tool>": 4})
    assert words.special_token("<|im_end|>") == 3
    assert words.special_token("<tool>") == 4
    assert words.special_token("hello") is None
    assert words.special_token("no such token") is None


def test_what_is_no_text_and_no_token_is_refused_by_name() -> None:
    words = pieces({})
    for wrong in (None, 3, ["a"], b"a"):
        with pytest.raises(InvalidArgument, match=r"\[Vocabulary.encode\] text is"):
            words.encode(wrong)  # type: ignore[arg-type]
    for ids in ([-1], [len(words.pieces)], ["a"]):
        with pytest.raises(InvalidArgument, match=r"no token"):
            words.decode(ids)  # type: ignore[arg-type]
    assert words.decode(words.encode("a\ud800b", special=False)) == "a\ufffdb"


def test_a_byte_token_that_names_no_byte_is_refused() -> None:
    with pytest.raises(VocabularyError, match="'<tool>', expected <0x00> to <0xFF>"):
        pieces({"<tool>": 6})


def test_text_without_a_token_is_refused_if_nothing_stands_for_it() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.unknown_token_id": None,
    }  # fmt: skip
    words = opened(metadata)
    words.unknown = None
    with pytest.raises(VocabularyError, match="no token for '▁' or its bytes"):
        words.encode("c", special=False)


def test_a_file_that_does_not_say_how_it_cuts_words_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metadata = bytes_with()
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING, "aggml"):
        opened(metadata)
    assert "tokenizer.ggml.pre" in caplog.text
    for model in ("hybriddna", "plamo2", "test"):
        with pytest.raises(VocabularyError, match=model):
            open_vocabulary(metadata | {"tokenizer.ggml.model": model})


def test_parts_without_a_token_keep_their_neighbours_apart() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b", "x y"],
    }  # fmt: skip
    words = opened(metadata)
    assert words.encode("ab", special=False) == [2]
    assert words.encode("axb", special=False) == [0, 1]
