"""RWKV's vocabulary: each step takes the longest token.

Compared with a regular expression that tries longer tokens first, and with llama.cpp's tokens for
the same vocabulary. Not here: other vocabularies (test_cuts.py, test_pieces.py,
test_vocabularies.py).
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from models import torture

from aggml.models import ModelError
from aggml.models.checkpoints.config import Config
from aggml.models.checkpoints.vocabularies import vocabulary_keys
from aggml.models.tokenizers import Vocabulary, VocabularyError, open_vocabulary
from aggml.models.tokenizers.longest import escape_token, unescape_token

if TYPE_CHECKING:
    from pathlib import Path

#: A checksum of the ids of all texts, in order, from llama-cpp-python 0.3.36 with `tokens()`.
OF_LLAMA_CPP: Final = 2368535544


def tokens() -> list[bytes]:
    """All bytes, then pieces of the texts, some of which end inside a character."""
    rng = np.random.default_rng(5)
    pieces = []
    for text in torture.TEXTS:
        data = text.encode()
        starts = rng.integers(0, len(data), 60).tolist()
        pieces += [data[start : start + int(rng.integers(2, 12))] for start in starts]
    every = [bytes([i]) for i in range(256)]
    return [*every, *sorted({p for p in pieces if len(p) > 1}), b"\n\n"]


def folder(path: Path, lines: list[str] | None = None) -> Path:
    """As published: a numbered Python literal in each line; bytes where a token is not UTF-8."""
    if lines is None:
        lines = []
        for i, token in enumerate(tokens(), 1):
            try:
                told: str | bytes = token.decode()
            except UnicodeDecodeError:
                told = token
            lines.append(f"{i} {told!r} {len(token)}")
    file = path / "rwkv_vocab_v20230424.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def keys(path: Path, rows: int = 0) -> dict[str, Any]:
    return vocabulary_keys(path, Config({"model_type": "rwkv7"}), rows)


@pytest.fixture
def words(tmp_path: Path) -> Vocabulary:
    found = open_vocabulary(keys(folder(tmp_path), len(tokens()) + 9))
    assert found is not None
    return found


def test_each_step_takes_the_longest_token(words: Vocabulary) -> None:
    found = []
    ids = {token: i for i, token in reversed(list(enumerate(tokens(), 1)))}
    longest = re.compile(
        b"|".join(re.escape(x) for x in sorted(ids, key=len, reverse=True)), re.DOTALL
    )
    for text in torture.TEXTS:
        taken = words.encode(text)
        assert [ids[x] for x in longest.findall(text.encode())] == taken
        assert words.decode(taken) == text
        found += taken
    assert zlib.crc32(np.array(found, "<i4").tobytes()) == OF_LLAMA_CPP


def test_a_text_neither_begins_nor_ends_with_a_token_and_a_turn_ends_with_two_line_feeds(
    words: Vocabulary,
) -> None:
    assert words.encode("a") == [1 + ord("a")]
    assert (words.bos, words.eos) == (0, 0)
    assert words.ends == {0, words.encode("\n\n")[0]}
    assert words.encode("<s>") == [0]  # the name of a special token in a text gives that token
    assert words.decode([0, 1 + ord("a"), len(words.pieces) - 1]) == "a"


@pytest.mark.parametrize("token", [b"\\", b"'", b"\"'\\x41", b"\t\n\r\x00\xff", "ä€".encode(), b""])
def test_escapes(token: bytes) -> None:
    assert unescape_token(escape_token(token)) == token
    assert escape_token(token).isascii()


def test_half_an_escape_is_refused() -> None:
    with pytest.raises(VocabularyError, match="ends within an escape sequence"):
        unescape_token("a\\")


def test_a_byte_that_no_token_has_is_the_unknown_one() -> None:
    metadata = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["<s>", "a", "<u>"],
                "tokenizer.ggml.token_type": [3, 1, 3]}  # fmt: skip
    words = open_vocabulary(metadata)
    assert words is not None
    assert words.encode("aba") == [1, 1]
    words = open_vocabulary(metadata | {"tokenizer.ggml.unknown_token_id": 2})
    assert words is not None
    assert words.encode("aba") == [1, 2, 1]


@pytest.mark.parametrize("line", ["2 'b' 2", "2 b", "x 'b' 1", "2 [1 1", "2 3 3", "2 3.5 1", ""])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ModelError, match=r"rwkv_vocab_v20230424\.txt, line 2: expected number"):
        keys(folder(tmp_path, ["1 'a' 1", line]))
