"""check_settings: every setting of a tokenizer.json is known, or refused by name.

Here: which settings there are, and their values. The library `tokenizers` carries them out
(json_vocabulary.py), but ignores a setting that it does not know: a file that was written for
another version, or by hand, would give other tokens and nobody would hear of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.errors import ModelError
from aggml.process.foreign import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    #: What is wrong with a value; None if nothing is.
    Check = Callable[[Any], str | None]
    Fields = Mapping[str, Check]

__all__ = ["IGNORED", "check_settings", "parts_of", "type_of_model"]

#: Parts of the file that are read and not carried out, with the reason.
IGNORED: Final = {
    "version": "there is one version, 1.0; the library refuses others",
    "truncation": "as in transformers the caller says how long a text may be: a model's context",
    "padding": "texts of different lengths share a step without padding",
}


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _text(value: object) -> str | None:
    return None if isinstance(value, str) else "a text"


def _character(value: object) -> str | None:
    return None if isinstance(value, str) and len(value) == 1 else "one character"


def _count(value: object) -> str | None:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return None if right else "a whole number that is not negative"


def _token_id(value: object) -> str | None:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
    return None if right else "a token id"


def _object(value: object) -> str | None:
    return None if isinstance(value, dict) else "an object"


def _list(value: object) -> str | None:
    return None if isinstance(value, list) else "a list"


def _table(value: object) -> str | None:
    return None if isinstance(value, (dict, list)) else "an object or a list"


def _or_null(check: Check) -> Check:
    def check_or_null(value: Any) -> str | None:  # noqa: ANN401
        wanted = None if value is None else check(value)
        return wanted and f"{wanted}, or null"

    return check_or_null


def _one_of(*known: str) -> Check:
    def check(value: object) -> str | None:
        return None if value in known else " or ".join(map(repr, known))

    return check


def _no_dropout(value: object) -> str | None:
    if value is None or (isinstance(value, (int, float)) and value == 0):
        return None
    return "null or 0: with dropout a text has other tokens each time"


def _pattern(value: object) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        ((kind, what),) = value.items()
        if kind in ("String", "Regex") and isinstance(what, str):
            return None
    return '{"String": a text} or {"Regex": an expression}'


def _token_and_id(value: object) -> str | None:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return _token_id(value[1])
    return "a token and its id"


_SPLITS: Final = _one_of(
    "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"
)
_BYTE_LEVEL: Final = {"add_prefix_space": _flag, "trim_offsets": _flag, "use_regex": _flag}
_METASPACE: Final = {
    "replacement": _character, "prepend_scheme": _one_of("first", "never", "always"),
    "split": _flag,
    # of older versions: the library reads the first, and made the second from `replacement`
    "add_prefix_space": _flag, "str_rep": _text,
}  # fmt: skip
_REPLACE: Final = {"pattern": _pattern, "content": _text}
_MODEL: Final = {"vocab": _object, "unk_token": _text}

#: The settings of each type of each part, beside ``type``.
TYPES: Final[Mapping[str, Mapping[str, Fields]]] = {
    "normalizer": {
        "BertNormalizer": {
            "clean_text": _flag, "handle_chinese_chars": _flag, "strip_accents": _or_null(_flag),
            "lowercase": _flag,
        },
        "Strip": {"strip_left": _flag, "strip_right": _flag},
        "Replace": _REPLACE,
        "Prepend": {"prepend": _text},
        "Precompiled": {"precompiled_charsmap": _or_null(_text)},
        "Sequence": {"normalizers": _list},
        **{name: {} for name in (
            "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt", "ByteLevel",
        )},
    },
    "pre_tokenizer": {
        "ByteLevel": _BYTE_LEVEL,
        "Split": {"pattern": _pattern, "behavior": _SPLITS, "invert": _flag},
        "Metaspace": _METASPACE,
        "CharDelimiterSplit": {"delimiter": _character},
        "Punctuation": {"behavior": _SPLITS},
        "Digits": {"individual_digits": _flag},
        "FixedLength": {"length": _count},
        "Sequence": {"pretokenizers": _list},
        **{name: {} for name in (
            "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts",
        )},
    },
    "post_processor": {
        "BertProcessing": {"sep": _token_and_id, "cls": _token_and_id},
        "RobertaProcessing": {
            "sep": _token_and_id, "cls": _token_and_id, "trim_offsets": _flag,
            "add_prefix_space": _flag,
        },
        "ByteLevel": _BYTE_LEVEL,
        "TemplateProcessing": {"single": _list, "pair": _list, "special_tokens": _table},
        "Sequence": {"processors": _list},
    },
    "decoder": {
        "ByteLevel": _BYTE_LEVEL,
        "Replace": _REPLACE,
        "WordPiece": {"prefix": _text, "cleanup": _flag},
        "Strip": {"content": _character, "start": _count, "stop": _count},
        "Metaspace": _METASPACE,
        "BPEDecoder": {"suffix": _text},
        "CTC": {"pad_token": _text, "word_delimiter_token": _text, "cleanup": _flag},
        "Sequence": {"decoders": _list},
        **{name: {} for name in ("ByteFallback", "Fuse")},
    },
    "model": {
        "BPE": {
            "dropout": _no_dropout, "unk_token": _or_null(_text),
            "continuing_subword_prefix": _or_null(_text), "end_of_word_suffix": _or_null(_text),
            "fuse_unk": _flag, "byte_fallback": _flag, "ignore_merges": _flag,
            "vocab": _object, "merges": _list,
        },
        "WordPiece": _MODEL | {
            "continuing_subword_prefix": _text, "max_input_chars_per_word": _count,
        },
        "WordLevel": _MODEL,
        "Unigram": {"unk_id": _or_null(_count), "vocab": _list, "byte_fallback": _flag},
    },
}  # fmt: skip
#: The list of a sequence, by part.
MEMBERS: Final = {
    "normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
    "decoder": "decoders",
}  # fmt: skip
ADDED: Final[Fields] = {
    "id": _token_id, "content": _text, "single_word": _flag, "lstrip": _flag, "rstrip": _flag,
    "normalized": _flag, "special": _flag,
}  # fmt: skip
TOP: Final[Fields] = {
    "version": _one_of("1.0"), "truncation": _or_null(_object), "padding": _or_null(_object),
    "added_tokens": _or_null(_list), "model": _object,
    **dict.fromkeys(MEMBERS, _or_null(_object)),
}  # fmt: skip
TEMPLATE: Final[Mapping[str, Fields]] = {
    "Sequence": {"id": _one_of("A", "B"), "type_id": _count},
    "SpecialToken": {"id": _text, "type_id": _count},
}


def check_settings(told: Mapping[str, Any], name: str) -> None:
    """Check that a tokenizer.json has no setting that is not known here, or of another kind.

    Args:
        told: its contents.
        name: of the file, for messages.

    Raises:
        ModelError: names the setting.
    """
    _check(told, TOP, name, "")
    if "model" not in told:
        raise ModelError(f"{name} has no model: it is no tokenizer")
    for i, token in enumerate(told.get("added_tokens") or ()):
        _check(token, ADDED, name, f"added_tokens[{i}]", needed=("id", "content"))
    _check_part(told["model"], "model", name, "model")
    for part in MEMBERS:
        if told.get(part) is not None:
            _check_part(told[part], part, name, part)


def parts_of(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yields a normalizer, pre-tokenizer or the like; of a sequence each of its members."""
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for list_ in MEMBERS.values():
        for member in part.get(list_) or ():
            yield from parts_of(member)


def _check(
    value: object, fields: Fields, name: str, place: str, needed: tuple[str, ...] = ()
) -> None:
    """Check that an object has these fields alone, and their values."""
    if not isinstance(value, dict):
        raise ModelError(f"{name}: {place} is {short(value)}, expected an object")
    for key, found in value.items():
        where = f"{place}.{key}" if place else str(key)
        if key not in fields:
            known = f"known are {', '.join(fields)}" if fields else "this type has no settings"
            raise ModelError(f"{name} has the unknown setting {where}, which is refused; {known}")
        wanted = fields[key](found)
        if wanted is not None:
            raise ModelError(f"{name}: {where} is {short(found)}, expected {wanted}")
    for key in needed:
        if key not in value:
            raise ModelError(f"{name}: {place} has no {key}")


def _check_part(value: Any, part: str, name: str, place: str) -> None:  # noqa: ANN401 of JSON
    """Check a normalizer, pre-tokenizer or the like, with its members."""
    if not isinstance(value, dict):
        raise ModelError(f"{name}: {place} is {short(value)}, expected an object")
    kind = value.get("type")
    if part == "model" and kind is None:
        kind = type_of_model(value)
    fields = TYPES[part].get(kind) if isinstance(kind, str) else None
    if fields is None:
        known = ", ".join(TYPES[part])
        raise ModelError(f"{name}: {place} has the type {short(kind)}, known are {known}")
    _check({k: x for k, x in value.items() if k != "type"}, fields, name, place)
    if kind == "BPE" and value.get("continuing_subword_prefix"):
        _check_prefixed(value, name)
    if kind == "Sequence":
        list_ = MEMBERS[part]
        if list_ not in value:
            raise ModelError(f"{name}: {place} has no {list_}")
        for i, member in enumerate(value[list_]):
            _check_part(member, part, name, f"{place}.{list_}[{i}]")
    elif kind == "TemplateProcessing":
        for list_ in ("single", "pair"):
            for i, piece in enumerate(value.get(list_) or ()):
                where = f"{place}.{list_}[{i}]"
                _check(piece, dict.fromkeys(TEMPLATE, _object), name, where)
                for key in TEMPLATE:
                    if key in piece:
                        _check(piece[key], TEMPLATE[key], name, f"{where}.{key}")


def _check_prefixed(model: Mapping[str, Any], name: str) -> None:
    """Check that each merge's second part begins with as many bytes as the prefix has.

    The library cuts them off unseen. Where it cuts a character in two it panics, and the message of
    that panic, which is no UTF-8, ends the process.
    """
    n = len(model["continuing_subword_prefix"].encode("utf-8", "replace"))
    for i, merge in enumerate(model.get("merges") or ()):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        second = parts[1] if isinstance(parts, list) and len(parts) > 1 else None
        if not isinstance(second, str):
            raise ModelError(f"{name}: model.merges[{i}] is {short(merge)}, expected two texts")
        raw = second.encode("utf-8", "replace")
        if len(raw) < n or (len(raw) > n and raw[n] & 0xC0 == 0x80):
            raise ModelError(
                f"{name}: model.merges[{i}] is {short(merge)}, whose second part does not begin "
                f"with model.continuing_subword_prefix, {model['continuing_subword_prefix']!r}"
            )


def type_of_model(model: Mapping[str, Any]) -> str | None:
    """The type of a file's model; older files do not name it."""
    found = model.get("type")
    if found is not None:
        return str(found)
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    prefixed = "continuing_subword_prefix" in model or "max_input_chars_per_word" in model
    return "WordPiece" if prefixed else "WordLevel" if model else None
