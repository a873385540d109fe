"""Every setting of tokenizer.json and tokenizer_config.json is carried out, or refused by name.

Not here: random files (tests/fuzz/tokenizer_files.py), which file of a folder is read
(test_vocabularies.py).
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import Tokenizer

import aggml
from aggml.models import ModelError
from aggml.models.checkpoints.config import Config
from aggml.models.checkpoints.folder_vocabulary import settings_without_key
from aggml.models.checkpoints.vocabularies import for_file, vocabulary_keys
from aggml.models.tokenizers import Vocabulary, open_vocabulary, settings
from aggml.models.tokenizers.json_vocabulary import JSON_KEY

if TYPE_CHECKING:
    from pathlib import Path

PLAIN: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {x: i for i, x in enumerate("▁abcde<>/s \n")}, "merges": []},
}  # fmt: skip


def keys(folder: Path, told: dict[str, Any], config: dict[str, Any] | None = None) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    return vocabulary_keys(folder, Config({}), 0)


def opened(folder: Path, told: dict[str, Any], config: dict[str, Any] | None = None) -> Vocabulary:
    words = open_vocabulary(keys(folder, told, config))
    assert words is not None
    return words


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "post_processor", "decoder"])
def test_every_type_that_the_library_has_is_in_the_table(part: str) -> None:
    module = {"normalizer": "normalizers", "pre_tokenizer": "pre_tokenizers",
              "post_processor": "processors", "decoder": "decoders"}[part]  # fmt: skip
    bases = {
        "Normalizer",
        "PreTokenizer",
        "PostProcessor",
        "Decoder",
        "DecodeStream",
        "NORMALIZERS",
    }
    found = {x for x in dir(getattr(tokenizers, module)) if x[0].isupper()} - bases
    assert found == {*settings.TYPES[part]}


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_prepends_where_the_file_says(tmp_path: Path, scheme: str) -> None:
    told = copy.deepcopy(PLAIN)
    told["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True,
    }  # fmt: skip
    told["added_tokens"] = [
        {"id": 12, "content": "<s>", "special": True, "lstrip": False, "rstrip": False,
         "single_word": False, "normalized": False},
    ]  # fmt: skip
    own = Tokenizer.from_str(json.dumps(told))
    words = opened(tmp_path, told)
    for text in ("ab<s>cd e", "<s>ab", " a<s> b"):
        assert words.encode(text) == own.encode(text).ids


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_flags_of_added_tokens_are_carried_out_and_survive_a_gguf_file(
    tmp_path: Path, flag: str
) -> None:
    told = copy.deepcopy(PLAIN)
    told["normalizer"] = {"type": "Replace", "pattern": {"String": "d"}, "content": "e"}
    token = {"id": 12, "content": "cd", "special": False, "lstrip": False, "rstrip": False,
             "single_word": False, "normalized": False, flag: True}  # fmt: skip
    told["added_tokens"] = [token]
    own = Tokenizer.from_str(json.dumps(told))
    found = keys(tmp_path, told)
    for metadata in (found, {k: x for k, x in found.items() if k.count(".") < 2 or "ggml" in k
                             or k == JSON_KEY}):  # fmt: skip
        words = open_vocabulary(metadata)
        assert words is not None
        for text in ("a cd b", "acdb", "cd", "a  cd  ce"):
            assert words.encode(text) == own.encode(text).ids


def test_an_unknown_setting_is_refused_by_name_wherever_it_stands(tmp_path: Path) -> None:
    for place in ((), ("model",), ("decoder",)):
        told = copy.deepcopy(PLAIN)
        at = told
        for key in place:
            at = at[key]
        at["invented"] = True
        with pytest.raises(ModelError, match=r"unknown setting ([a-z]+\.)?invented"):
            keys(tmp_path, told)


@pytest.mark.parametrize(
    ("place", "value", "wanted"),
    [
        ("dropout", 0.1, "dropout is 0.1, expected null or 0"),
        ("fuse_unk", "yes", "fuse_unk is 'yes', expected true or false"),
        ("vocab", [], r"vocab is \[\], expected an object"),
        ("type", "Magic", "type 'Magic', known are BPE"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(
    tmp_path: Path, place: str, value: object, wanted: str
) -> None:
    told = copy.deepcopy(PLAIN)
    told["model"][place] = value
    with pytest.raises(ModelError, match=wanted):
        keys(tmp_path, told)


def test_merges_that_would_end_the_process_are_refused(tmp_path: Path) -> None:
    """The library cuts bytes off each merge, and dies if it cuts a character in two."""
    told = copy.deepcopy(PLAIN)
    told["model"] |= {"continuing_subword_prefix": "##", "merges": [["a", "東"]]}
    told["model"]["vocab"] |= {"東": 12}
    with pytest.raises(ModelError, match=r"model.merges\[0\] is"):
        keys(tmp_path, told)


def test_a_part_that_the_library_refuses_is_named(tmp_path: Path) -> None:
    told = copy.deepcopy(PLAIN) | {"pre_tokenizer": {"type": "Digits"}}
    with pytest.raises(ModelError, match=r"pre_tokenizer is refused by tokenizers: .*individual"):
        keys(tmp_path, told)


def test_names_of_special_tokens_can_be_taken_literally(tmp_path: Path) -> None:
    token = {"id": 12, "content": "<s>", "special": True, "lstrip": False, "rstrip": False,
             "single_word": False, "normalized": False}  # fmt: skip
    words = opened(tmp_path, {**PLAIN, "added_tokens": [token]})
    assert words.encode("a<s>") == [1, 12]
    ids = words.encode("a<s>", literal=True)
    assert 12 not in ids
    assert words.decode(ids) == "a<s>"
    assert words.special_token("<s>") == 12


def test_tokenizer_config_adds_tokens_with_their_flags(tmp_path: Path) -> None:
    added = {"12": {"content": "<x>", "special": True, "rstrip": True}}
    words = opened(tmp_path, PLAIN, {"added_tokens_decoder": added, "eos_token": "e"})
    assert words.encode("<x>  a") == [12, 1]
    assert words.eos == words.ids["e"]
    assert words.bytes_of(12) == b""
    far = {"15": {"content": "<y>"}}
    words = opened(tmp_path, PLAIN, {"added_tokens_decoder": far})
    assert words.encode("<y>") == [15]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"invented": 1}, "unknown setting 'invented'"),
        ({"split_special_tokens": True}, "split_special_tokens is True"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, r"\['x'\] is no token id"),
        ({"added_tokens_decoder": {"12": {"content": 7}}}, "expected a text or an object"),
        ({"added_tokens_decoder": {"12": {"content": "a", "strip": True}}}, "setting 'strip'"),
        ({"added_tokens_decoder": {"3": {"content": "new"}}}, "has the id 3 in"),
    ],
)
def test_settings_of_tokenizer_config_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ModelError, match=wanted):
        keys(tmp_path, PLAIN, config)


def test_settings_of_a_word_list_that_cannot_be_carried_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n", encoding="utf-8")
    for key, value in (("strip_accents", False), ("tokenize_chinese_chars", False)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value}), encoding="utf-8")
        with pytest.raises(ModelError, match=f"{key} is False"):
            vocabulary_keys(tmp_path, Config({}), 0)


def test_a_text_may_name_the_unknown_token_only_if_it_was_added() -> None:
    """In GGUF's keys alone it always may, so these do not say all of a file without it."""
    from models.test_vocabularies import _characters

    told = json.loads(_characters().to_str())
    (unknown,) = {x["id"] for x in told["added_tokens"] if x["content"] == "<unk>"}
    control = {x["id"] for x in told["added_tokens"]} - {unknown}
    said = "the ordinary token '<unk>'"
    assert said not in settings_without_key(json.dumps(told), control, {unknown})
    told["added_tokens"] = [x for x in told["added_tokens"] if x["id"] != unknown]
    assert said in settings_without_key(json.dumps(told), control, {unknown})
    assert "<unk>" not in Tokenizer.from_str(json.dumps(told)).encode("a<unk>b").tokens


async def test_a_gguf_file_has_the_whole_tokenizer_if_its_keys_cannot_say_it(
    tmp_path: Path,
) -> None:
    from models.test_vocabularies import _characters

    told = json.loads(_characters().to_str())
    told["added_tokens"][2]["rstrip"] = True
    metadata = for_file(keys(tmp_path, told))
    assert JSON_KEY in metadata
    path = tmp_path / "tokens.gguf"
    with aggml.GGUFWriter(path) as writer:
        for key, value in metadata.items():
            writer.add(key, value)
    with aggml.GGUFFile.open(path) as file:
        words = open_vocabulary(file.metadata)
    assert words is not None
    own = Tokenizer.from_str(json.dumps(told))
    for text in ("</s>  a", "a b </s> c", "中文"):
        assert words.encode(text) == own.encode(text).ids
