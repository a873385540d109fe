"""Fuzzer: generated tokenizer.json files give the tokens and texts of the library `tokenizers`.

Each program is a file with a random model, normalizer, pre-tokenizer, post-processor, decoder and
added tokens, and some texts. The folder must be read and agree token by token, there and after it
has been written as GGUF's keys, or a sentence must name the setting that is refused. Some files get
a setting that no version of the library has, or a value of another kind: these must be refused.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuzz.rounds import Failure, Report, draw
from tokenizers import Tokenizer

from aggml.models import ModelError
from aggml.models.checkpoints.config import Config
from aggml.models.checkpoints.vocabularies import for_file, vocabulary_keys
from aggml.models.tokenizers import open_vocabulary

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from aggml.models.tokenizers import Vocabulary

LOOPS: Final = ("no loop",)
SHORT: Final = 40

ALPHABET: Final = (
    "abcdeABst.,!'-_ \t\n0123éüßÀ\u0301中文日本か\u03a3\u03c3\u03c2İ\u0131😀👍\u200d\u00a0\u3000"
    "\x00\x07\ufffd▁ĠĊ#<>"
)
WORDS: Final = (
    "the",
    "The",
    "a",
    "an",
    "ab",
    "abc",
    "test",
    "don't",
    "naïve",
    "ÀÉ",
    "東京",
    "中文",
    "12",
    "1234",
    "ß",
    "ﬁ",
    "Ⅳ",
    "e\u0301",
    "😀",
    "👨‍👩‍👧",
    "मे",
    "กข",
    "한국",
    "a_b",
    "x-y",
    "...",
    "  ",
    "\r\n",
    "\t",
)
NAMES: Final = (
    "<s>",
    "</s>",
    "<unk>",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "<|im_end|>",
    "<tool>",
    "tok",
    "Ab",
    "é",
    "a b",
    " x",
    "<mask>",
)
LETTERS: Final = [
    *map(chr, range(33, 127)),
    *map(chr, range(161, 173)),
    *map(chr, range(174, 256)),
    *map(chr, range(256, 324)),
]
BEHAVIORS: Final = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
GPT2: Final = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS: Final = (
    {"String": " "},
    {"String": "a"},
    {"String": "▁"},
    {"Regex": r"\s+"},
    {"Regex": r"\p{L}+|\p{N}"},
    {"Regex": r"\w+|[^\w\s]+"},
    {"Regex": GPT2},
    {"Regex": "[aeiou]"},
)


def _flag(r: random.Random) -> bool:
    return r.random() < 0.5


def a_text(r: random.Random, names: list[str]) -> str:
    """A text of words, names of tokens, and single characters."""
    parts = []
    for _ in range(r.randint(0, 12)):
        way = r.random()
        if way < 0.4:
            parts.append(r.choice(WORDS))
        elif way < 0.6 and names:
            parts.append(r.choice(names))
        else:
            parts.append("".join(r.choices(ALPHABET, k=r.randint(1, 6))))
        if r.random() < 0.5:
            parts.append(r.choice((" ", " ", "  ", "\n", "\t ")))
    return "".join(parts)


def _tokens(r: random.Random, *, prefix: str = "", suffix: str = "") -> list[str]:
    """Texts of tokens, each once: characters, parts of words, with marks."""
    found = dict.fromkeys(r.sample(sorted(set(ALPHABET)), r.randint(5, 40)))
    for _ in range(r.randint(5, 40)):
        word = r.choice(WORDS).strip() or "a"
        at = r.randint(0, len(word) - 1)
        part = word[at : at + r.randint(1, 4)]
        mark = r.choice((prefix, "", suffix, "▁"))
        found[part + mark if mark and mark == suffix else mark + part] = None
    return [*found]


def _numbered(r: random.Random, tokens: list[str]) -> dict[str, int]:
    r.shuffle(tokens)
    return {token: i for i, token in enumerate(tokens)}


def _bpe(r: random.Random, *, usual: bool = False) -> dict[str, Any]:
    prefix = None if usual else r.choice((None, None, "", "##"))
    suffix = None if usual else r.choice((None, None, "", "</w>"))
    way = 0 if usual else r.random()
    tokens = [*LETTERS] if way < 0.5 else _tokens(r, prefix=prefix or "", suffix=suffix or "")
    if _flag(r):
        tokens += [f"<0x{i:02X}>" for i in range(256 if _flag(r) else r.randint(1, 255))]
    known = dict.fromkeys(tokens)
    merges: dict[tuple[str, str], None] = {}
    plain = [x for x in known if not x.startswith("<0x")]
    for _ in range(r.randint(0, 60)):
        a, b = r.choice(plain), r.choice(plain)
        tail = b[len(prefix) :] if prefix and b.startswith(prefix) else b
        if prefix and not b.startswith(prefix) and r.random() < 0.95:
            continue
        if len(a + tail) < 8 and " " not in a + b and (a, b) not in merges:
            merges[a, b] = None
            known[a + tail] = None
            plain.append(a + tail)
    unk = r.choice((None, "<unk>"))
    if unk:
        known[unk] = None
    strings = _flag(r)
    legacy = all(" " not in a + b and not (a + b).startswith("#version") for a, b in merges)
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": r.choice((None, None, None, 0.0)),
        "unk_token": unk,
        "continuing_subword_prefix": prefix,
        "end_of_word_suffix": suffix,
        "fuse_unk": _flag(r),
        "byte_fallback": _flag(r),
        "ignore_merges": not usual and _flag(r),
        "vocab": _numbered(r, [*known]),
        "merges": [f"{a} {b}" if legacy and strings else [a, b] for a, b in merges],
    }
    for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[key] is None and _flag(r):
            del model[key]
    return model


def _word_piece(r: random.Random, *, usual: bool = False) -> dict[str, Any]:
    prefix = "##" if usual else r.choice(("##", "##", "", "@@"))
    tokens = [x for x in _tokens(r, prefix=prefix) if not (usual and x.startswith("▁"))]
    unk = "[UNK]" if usual else r.choice(("[UNK]", "[UNK]", "missing"))
    return {
        "type": "WordPiece",
        "unk_token": unk,
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": 100 if usual else r.choice((100, 100, 3, 1, 0)),
        "vocab": _numbered(r, [*dict.fromkeys([*tokens, "[UNK]", "[CLS]", "[SEP]"])]),
    }


def _word_level(r: random.Random, *, usual: bool = False) -> dict[str, Any]:
    tokens = [*dict.fromkeys([*_tokens(r), *r.sample(WORDS, 10), "<unk>"])]
    return {
        "type": "WordLevel",
        "vocab": _numbered(r, tokens),
        "unk_token": r.choice(("<unk>", "<unk>", "missing")),
    }


def _unigram(r: random.Random, *, usual: bool = False) -> dict[str, Any]:
    tokens = [*dict.fromkeys(["<unk>", *_tokens(r)])]
    if _flag(r):
        tokens += [f"<0x{i:02X}>" for i in range(256 if _flag(r) else r.randint(1, 255))]
    return {
        "type": "Unigram",
        "unk_id": r.choice((0, 0, 0, None)),
        "byte_fallback": _flag(r),
        "vocab": [[x, round(r.uniform(-12, -0.5), 3)] for x in tokens],
    }


def _normalizer(r: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = [
        "BertNormalizer",
        "Strip",
        "StripAccents",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "Nmt",
        "Replace",
        "Prepend",
        "ByteLevel",
        "Sequence",
    ]
    kind = r.choice(kinds[: -1 if depth > 1 else None])
    more: dict[str, Any] = {}
    if kind == "BertNormalizer":
        more = {
            "clean_text": _flag(r),
            "handle_chinese_chars": _flag(r),
            "strip_accents": r.choice((None, True, False)),
            "lowercase": _flag(r),
        }
    elif kind == "Strip":
        more = {"strip_left": _flag(r), "strip_right": _flag(r)}
    elif kind == "Replace":
        more = {"pattern": r.choice(PATTERNS), "content": r.choice(("", "▁", "b", " "))}
    elif kind == "Prepend":
        more = {"prepend": r.choice(("▁", "x", ""))}
    elif kind == "Sequence":
        more = {"normalizers": [_normalizer(r, depth + 1) for _ in range(r.randint(0, 3))]}
    return {"type": kind, **more}


def _byte_level(r: random.Random) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": _flag(r),
        "trim_offsets": _flag(r),
        "use_regex": _flag(r),
    }


def _metaspace(r: random.Random) -> dict[str, Any]:
    return {
        "type": "Metaspace",
        "replacement": r.choice("▁▁▁_"),
        "prepend_scheme": r.choice(("first", "always", "never")),
        "split": _flag(r),
    }


def _pre_tokenizer(r: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = [
        "ByteLevel",
        "Whitespace",
        "WhitespaceSplit",
        "Split",
        "BertPreTokenizer",
        "Metaspace",
        "CharDelimiterSplit",
        "Punctuation",
        "Digits",
        "UnicodeScripts",
        "FixedLength",
        "Sequence",
    ]
    kind = r.choice(kinds[: -1 if depth > 1 else None])
    if kind == "ByteLevel":
        return _byte_level(r)
    if kind == "Metaspace":
        return _metaspace(r)
    more: dict[str, Any] = {}
    if kind == "Split":
        more = {"pattern": r.choice(PATTERNS), "behavior": r.choice(BEHAVIORS), "invert": _flag(r)}
    elif kind == "CharDelimiterSplit":
        more = {"delimiter": r.choice("a ▁")}
    elif kind == "Punctuation":
        more = {"behavior": r.choice(BEHAVIORS)} if _flag(r) else {}
    elif kind == "Digits":
        more = {"individual_digits": _flag(r)}
    elif kind == "FixedLength":
        more = {"length": r.randint(1, 5)}
    elif kind == "Sequence":
        more = {"pretokenizers": [_pre_tokenizer(r, depth + 1) for _ in range(r.randint(0, 3))]}
    return {"type": kind, **more}


def _post_processor(r: random.Random, ids: dict[str, int], depth: int = 0) -> dict[str, Any]:
    kinds = ["BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing", "Sequence"]
    kind = r.choice(kinds[: -1 if depth > 1 else None])
    if kind == "ByteLevel":
        return _byte_level(r)
    if kind == "Sequence":
        return {
            "type": kind,
            "processors": [_post_processor(r, ids, depth + 1) for _ in range(r.randint(0, 2))],
        }
    names = r.sample(sorted(ids), min(2, len(ids)))
    cls, sep = ([x, ids[x]] for x in (names[0], names[-1]))
    if kind == "BertProcessing":
        return {"type": kind, "sep": sep, "cls": cls}
    if kind == "RobertaProcessing":
        return {
            "type": kind,
            "sep": sep,
            "cls": cls,
            "trim_offsets": _flag(r),
            "add_prefix_space": _flag(r),
        }

    def special() -> list[dict[str, Any]]:
        return [
            {"SpecialToken": {"id": r.choice(names), "type_id": r.randint(0, 1)}}
            for _ in range(r.choice((0, 1, 1, 2)))
        ]

    one = [*special(), {"Sequence": {"id": "A", "type_id": 0}}, *special()]
    two = [*one, *special(), {"Sequence": {"id": "B", "type_id": 1}}, *special()]
    return {
        "type": kind,
        "single": one,
        "pair": two,
        "special_tokens": {x: {"id": x, "ids": [ids[x]], "tokens": [x]} for x in names},
    }


def _decoder(r: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = [
        "ByteLevel",
        "Replace",
        "WordPiece",
        "ByteFallback",
        "Fuse",
        "Strip",
        "Metaspace",
        "BPEDecoder",
        "CTC",
        "Sequence",
    ]
    kind = r.choice(kinds[: -1 if depth > 1 else None])
    if kind == "ByteLevel":
        return _byte_level(r)
    if kind == "Metaspace":
        return _metaspace(r)
    more: dict[str, Any] = {}
    if kind == "Replace":
        more = {"pattern": r.choice(PATTERNS), "content": r.choice(("", " ", "b"))}
    elif kind == "WordPiece":
        more = {"prefix": r.choice(("##", "@@", "")), "cleanup": _flag(r)}
    elif kind == "Strip":
        more = {"content": r.choice(" a▁"), "start": r.randint(0, 2), "stop": r.randint(0, 2)}
    elif kind == "BPEDecoder":
        more = {"suffix": r.choice(("</w>", "▁"))}
    elif kind == "CTC":
        more = {"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": _flag(r)}
    elif kind == "Sequence":
        more = {"decoders": [_decoder(r, depth + 1) for _ in range(r.randint(0, 3))]}
    return {"type": kind, **more}


#: Normalizer, pre-tokenizer and decoder of well-known tokenizers, by the type of their model.
USUAL: Final[dict[str, list[tuple[Any, Any, Any]]]] = {
    "BPE": [
        (
            None,
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
        ),
        (
            {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            None,
            {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
        ),
    ],
    "WordPiece": [
        (
            {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            {"type": "BertPreTokenizer"},
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
        )
    ],
    "Unigram": [
        (
            None,
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        )
    ],
    "WordLevel": [(None, {"type": "Whitespace"}, None)],
}


def a_file(r: random.Random) -> dict[str, Any]:
    """The contents of a random tokenizer.json."""
    usual = r.random() < 0.2  # as of a well-known tokenizer, so that GGUF can say it
    model = r.choice((_bpe, _bpe, _word_piece, _unigram, _word_level))(r, usual=usual)
    given = model["vocab"]
    ids = dict(given) if isinstance(given, dict) else {x: i for i, (x, _) in enumerate(given)}
    added: list[dict[str, Any]] = []
    for name in r.sample(NAMES, r.randint(0, 6)):
        i = ids.setdefault(name, len(ids))
        plain = usual or _flag(r)
        added.append(
            {
                "id": i,
                "content": name,
                "single_word": not plain and _flag(r),
                "lstrip": not plain and _flag(r),
                "rstrip": not plain and _flag(r),
                "normalized": not plain and _flag(r),
                "special": _flag(r),
            }
        )
    added.sort(key=lambda x: x["id"])
    known = copy.deepcopy(r.choice(USUAL[model["type"]]))  # it may be damaged
    parts = [
        x if usual or r.random() < 0.4 else None if r.random() < 0.2 else build(r)
        for x, build in zip(known, (_normalizer, _pre_tokenizer, _decoder), strict=True)
    ]
    told = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts[0],
        "pre_tokenizer": parts[1],
        "post_processor": _post_processor(r, ids) if _flag(r) else None,
        "decoder": parts[2],
        "model": model,
    }
    if r.random() < 0.1:
        told["truncation"] = {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    if r.random() < 0.1:
        told["padding"] = {
            "strategy": {"Fixed": 20},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        }
    return told


def _objects(value: Any) -> list[dict[str, Any]]:
    """All objects in a file that hold settings."""
    found = []
    if isinstance(value, dict):
        if "type" in value or "single_word" in value or "version" in value:
            found.append(value)
        for key, inner in value.items():
            if key not in ("vocab", "special_tokens", "pattern", "truncation", "padding"):
                found += _objects(inner)
    elif isinstance(value, list):
        found += [x for inner in value if isinstance(inner, (dict, list)) for x in _objects(inner)]
    return found


def _damage(r: random.Random, told: dict[str, Any]) -> str:
    """Add a setting that there is not, or give one a value of another kind; returns its name."""
    at = r.choice(_objects(told))
    if _flag(r) or len(at) < 2:
        name = r.choice(("invented", "add_prefix_spaces", "dropout_rate", "language"))
        at[name] = r.choice((True, 1, "x", None))
        return name
    name = r.choice([x for x in at if x not in ("vocab", "merges")])
    at[name] = {"an": "object of no use"} if not isinstance(at[name], dict) else 7.5
    return name


def _attempt(call: Callable[[], Any]) -> Any:
    """What a call of the library gives; its error if it raises."""
    try:
        return call()
    except BaseException as error:  # a panic of its Rust code is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return error


def _encode(own: Tokenizer, text: str) -> list[int]:
    return own.encode(text).ids


def _same(what: str, wanted: Any, call: Callable[[], Any]) -> None:
    """Compare with what the library gave; if it raised, a ModelError is expected."""
    got = _ours(call)
    if isinstance(got, ModelError):
        assert isinstance(wanted, BaseException), f"{what}: {got}, the library gives {wanted}"
    else:
        assert got == wanted, f"{what}: {got}, the library gives {wanted!r}"


def _ours(call: Callable[[], Any]) -> Any:
    """What a call gives; its error if that is a ModelError."""
    try:
        return call()
    except ModelError as error:
        return error


def _compare(
    r: random.Random, own: Tokenizer, words: Vocabulary, names: list[str], counts: Counter[str]
) -> None:
    special = {x.content for x in own.get_added_tokens_decoder().values() if x.special}
    hidden = {i for i in range(own.get_vocab_size()) if own.id_to_token(i) in special}
    for _ in range(6):
        text, other = a_text(r, names), a_text(r, names)
        ids = [r.randrange(own.get_vocab_size()) for _ in range(r.randint(0, 10))]
        _compare_text(own, words, text, other)
        wanted = "" if hidden.issuperset(ids) else _attempt(functools.partial(own.decode, ids))
        _same(f"decode {ids}", wanted, functools.partial(words.decode, ids))
        for token in ids:
            words.bytes_of(token)
        counts["texts"] += 1


def _compare_text(own: Tokenizer, words: Vocabulary, text: str, other: str) -> None:
    """One text: with and without special tokens around it, literally, and with another one."""
    wanted = _attempt(lambda: own.encode(text).ids)
    _same(f"{text!r}", wanted, lambda: words.encode(text))
    wanted = _attempt(lambda: own.encode(text, add_special_tokens=False).ids)
    _same(f"{text!r} alone", wanted, lambda: words.encode(text, special=False))
    wanted = _attempt(lambda: own.encode(text, other).ids)
    _same(f"{text!r}, {other!r}", wanted, lambda: words.encode_pair(text, other))
    own.encode_special_tokens = True
    wanted = _attempt(lambda: own.encode(text, add_special_tokens=False).ids)
    own.encode_special_tokens = False
    _same(f"{text!r} literal", wanted, lambda: words.encode(text, special=False, literal=True))


def _check_refused(error: str, damaged: str | None, text: str) -> None:
    """A file that was refused is damaged, or one with which the library cannot work."""
    if damaged is not None:
        known = damaged in error or any(x in error for x in BEFORE)
        assert known, f"{damaged!r} is not named: {error}"
    elif not any(x in error for x in BEFORE):
        own = _attempt(lambda: Tokenizer.from_str(text))
        assert isinstance(own, BaseException), f"refused: {error}\n{text[:3000]}"


#: Files that are refused though the library reads them: it may end the process with the first, and
#: gives other tokens each time with the second.
BEFORE: Final = (
    "does not begin with model.continuing_subword_prefix",
    "become the same text",
)


def program(r: random.Random, folder: Path, counts: Counter[str]) -> None:
    """One file: it agrees, or is refused with a sentence."""
    told = a_file(r)
    damaged = _damage(r, told) if r.random() < 0.15 else None
    text = json.dumps(told, ensure_ascii=_flag(r))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    found = _ours(lambda: vocabulary_keys(folder, Config({}), 0))
    words = found if isinstance(found, ModelError) else _ours(lambda: open_vocabulary(found))
    if isinstance(found, ModelError) or isinstance(words, ModelError):
        _check_refused(str(words), damaged, text)
        counts["refused"] += 1
        return
    own = _attempt(lambda: Tokenizer.from_str(text))
    assert damaged is None, f"{damaged!r} was dropped in silence: {text[:3000]}"
    assert isinstance(own, Tokenizer), f"the library refuses it: {own}\n{text[:3000]}"
    assert words is not None
    own.no_padding()
    own.no_truncation()
    names = [x["content"] for x in told["added_tokens"]]
    names += r.sample(sorted(own.get_vocab()), min(5, own.get_vocab_size()))
    try:
        _compare(r, own, words, names, counts)
        counts[told["model"]["type"]] += 1
        try:
            written = for_file(found)
        except ModelError:
            counts["not written as GGUF"] += 1
            return
        counts["written as GGUF"] += 1
        if "tokenizer.huggingface.json" in written:
            return
        counts["by GGUF's keys alone"] += 1
        again = open_vocabulary(written)
        assert again is not None
        for _ in range(6):
            line = a_text(r, names)
            wanted = _attempt(functools.partial(_encode, own, line))
            _same(f"by GGUF's keys: {line!r}", wanted, functools.partial(again.encode, line))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text[:6000]}") from error


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """Run programs ``first`` to ``first + programs - 1``."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(first, first + programs):
            try:
                program(draw(seed, k), Path(folder), counts)
            except (AssertionError, ModelError) as error:
                raise Failure(seed, k, loop, str(error)) from error
    return Report(programs, dict(sorted(counts.items())))
