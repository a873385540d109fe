"""vocabulary_keys: a folder's vocabulary as the metadata of a GGUF file.

Here: which file has it, added tokens, the tokens that begin and end a text, the chat template. Not
here: each kind of vocabulary (folder_vocabulary.py, sentencepiece.py), cutting text (cutting.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.config import Config, read_json
from aggml.models.checkpoints.folder_vocabulary import (
    FolderVocabulary,
    read_tokenizer_json,
    read_word_list,
    settings_without_key,
)
from aggml.models.checkpoints.sentencepiece import read_sentencepiece
from aggml.models.checkpoints.tokenizer_config import added_tokens, check_tokenizer_config
from aggml.models.checkpoints.trie import read_numbered_literals
from aggml.models.errors import ModelError
from aggml.models.tokenizers.json_vocabulary import JSON_KEY
from aggml.models.tokenizers.roles import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    changes_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["for_file", "vocabulary_keys"]

#: GGUF's names of special tokens, each with its names in tokenizer_config.json and config.json.
SPECIAL: Final[dict[str, tuple[str, ...]]] = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "seperator": ("sep_token",),  # GGUF's spelling
    "padding": ("pad_token",),
    "cls": ("cls_token",),
    "mask": ("mask_token",),
}


def vocabulary_keys(folder: Path, config: Config, rows: int) -> dict[str, Any]:
    """Everything under ``tokenizer.`` of a GGUF file.

    Args:
        folder: of the model.
        config: its config.json.
        rows: of the embeddings; ids without a token in the vocabulary become unused tokens.

    Raises:
        ModelError: the vocabulary is damaged, of an unknown kind, or has an unknown setting.
    """
    told = read_json(folder / "tokenizer_config.json")
    check_tokenizer_config(told, folder)
    words = _words(folder, told)
    if words is None:
        return {"tokenizer.ggml.model": "no_vocab"}
    if words.whole is None:
        for token in added_tokens(told, folder):
            if token.id is not None:
                kind = CONTROL if token.special else USER_DEFINED
                words.add(token.id, token.content, kind)
    for content, i in read_json(folder / "added_tokens.json").items():
        words.add(int(i), content, USER_DEFINED)
    n = max(rows, *words.tokens) + 1 if words.tokens and max(words.tokens) >= rows else rows
    tokens = [words.tokens.get(i, f"[PAD{i}]") for i in range(n)]
    kinds = [words.kinds.get(i, UNUSED) for i in range(n)]
    special = _special(folder, told, config, words)
    for i in special.values():
        if i < n and kinds[i] == 1:
            kinds[i] = CONTROL
    found: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    if words.model:
        found |= {"tokenizer.ggml.model": words.model, "tokenizer.ggml.pre": words.pre}
    if words.whole is not None:
        found[JSON_KEY] = words.whole
    if words.scores is not None:
        found["tokenizer.ggml.scores"] = [float(words.scores.get(i, -1e4)) for i in range(n)]
    if words.merges is not None:
        found["tokenizer.ggml.merges"] = words.merges
    found |= {f"tokenizer.ggml.{key}": value for key, value in words.more.items()}
    found |= {f"tokenizer.ggml.{name}_token_id": i for name, i in special.items()}
    for name, default in (("bos", words.add_bos), ("eos", words.add_eos)):
        adds = default if default is not None else told.get(f"add_{name}_token")
        if adds is not None:
            found[f"tokenizer.ggml.add_{name}_token"] = bool(adds)
    return found | _templates(folder, told)


def for_file(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as a GGUF file gets it, from those of a folder.

    The folder's tokenizer.json becomes a part of the file if GGUF's other keys cannot say all of
    it: this package reads it from there, and other programs come as near as these keys allow.

    Raises:
        ModelError: GGUF has no keys for such a vocabulary at all.
    """
    found = dict(metadata)
    text = found.get(JSON_KEY)
    if text is not None:
        kinds = found["tokenizer.ggml.token_type"]
        control = {i for i, kind in enumerate(kinds) if kind == CONTROL}
        unknown = {i for i, kind in enumerate(kinds) if kind == UNKNOWN}
        if not settings_without_key(text, control, unknown) and not changes_tokens(found):
            del found[JSON_KEY]
    return found


def _words(folder: Path, told: dict[str, Any]) -> FolderVocabulary | None:
    """The vocabulary, from the best of the files that the folder has."""
    whole = folder / "tokenizer.json"
    pieces = folder / "tokenizer.model"
    if whole.is_file():
        words = read_tokenizer_json(whole, added_tokens(told, folder))
        if words.model == "llama" and pieces.is_file():  # it has the original scores
            words.scores = read_sentencepiece(pieces).scores
        return words
    if pieces.is_file():
        return read_sentencepiece(pieces)
    numbered = sorted(folder.glob("rwkv_vocab_v*.txt"))
    if numbered:
        return read_numbered_literals(numbered[-1])
    if (folder / "vocab.txt").is_file():
        return read_word_list(folder / "vocab.txt", lower=bool(told.get("do_lower_case", True)))
    if (folder / "sentencepiece.bpe.model").is_file() or (folder / "vocab.json").is_file():
        raise ModelError(
            f"{str(folder)!r} has its vocabulary in older files alone: save the tokenizer once "
            "more with transformers, which writes tokenizer.json"
        )
    return None


def _special(
    folder: Path, told: dict[str, Any], config: Config, words: FolderVocabulary
) -> dict[str, int]:
    """Ids of special tokens by GGUF's names."""
    ids = {content: i for i, content in words.tokens.items()}
    more = read_json(folder / "special_tokens_map.json")
    found: dict[str, int] = {}
    for name, places in SPECIAL.items():
        for place in places:
            content = told.get(place) or more.get(place)
            content = content.get("content") if isinstance(content, dict) else content
            i = ids.get(content) if isinstance(content, str) else None
            if i is None:
                i = config.get(f"{place}_id")
                if place not in ("bos_token", "eos_token") and i not in words.tokens:
                    i = None  # a default of transformers, which asks the tokenizer for these
            i = words.special.get(place) if i is None else i
            if isinstance(i, int) and i >= 0:
                found[name] = i
                break
    if (
        words.begins is not None
    ):  # the tokenizer itself was asked: see `_ask_for_ends` of folder_vocabulary.py
        found["bos"] = words.begins
    if words.ends is not None:
        found["eos"] = words.ends
    ends = read_json(folder / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = config.get("eos_token_id")
    listed = [x for x in ends if isinstance(x, int)] if isinstance(ends, list) else []
    if listed and "eos" not in found:
        found["eos"] = listed[0]
    others = [x for x in listed if x != found.get("eos")]
    return found | dict(zip(("eot", "eom"), others, strict=False))


def _templates(folder: Path, told: dict[str, Any]) -> dict[str, str]:
    """The chat templates by GGUF's keys: one of the name "default", and others.

    Files of their own come before tokenizer_config.json, as in transformers. The file
    chat_template.json belongs to the processors of models that also take pictures or sound; it is
    read if there is nothing else.

    Raises:
        ModelError: a template is no text, or has no name.
    """
    files = {"default": folder / "chat_template.jinja"}
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files |= {file.stem: file for file in more}
    found = {name: _text(file) for name, file in files.items() if file.is_file()}
    for name, given in (
        ("tokenizer_config.json", told),
        ("chat_template.json", read_json(folder / "chat_template.json")),
    ):
        if not found and (listed := given.get("chat_template")) is not None:
            found = _templates_by_name(listed, f"{name}: chat_template")
    key = "tokenizer.chat_template"
    return {key if k == "default" else f"{key}.{k}": x for k, x in found.items()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {str(file)!r}: {error}") from error


def _templates_by_name(given: object, place: str) -> dict[str, str]:
    """Templates by name: of one text, of an object, or of a list of objects with their names."""
    if isinstance(given, str):
        return {"default": given}
    pairs: list[tuple[object, object]] = []
    if isinstance(given, dict):
        pairs = [*given.items()]
    elif isinstance(given, list) and all(isinstance(x, dict) for x in given):
        pairs = [(x.get("name"), x.get("template")) for x in given]
    found = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    if not pairs or len(found) < len(pairs):
        raise ModelError(
            f"{place} is {given!r:.64}, must be a text, or a list of objects that have a 'name' "
            "and a 'template', both of them texts and no name twice"
        )
    return found
