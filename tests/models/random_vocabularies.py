"""Random vocabularies of each kind that GGUF has, as metadata; texts that their tokens occur in.

Here: only what llama.cpp reads without ending the process. Not here: files of tokenizer.json
(fuzz/tokenizer_files.py), the comparison (fuzz/gguf_vocabularies.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import aggml
from aggml.models.tokenizers.cuts import CUTS
from aggml.models.tokenizers.longest import escape_token
from aggml.models.tokenizers.vocabulary import SPACE, letters

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from aggml.models.tokenizers import Vocabulary

#: Names of special tokens; those of one row never stand in the same file, because llama.cpp takes
#: any of them.
SPECIAL: Final = (
    ("<|im_end|>",),
    ("<|eot_id|>",),
    ("<|end|>",),
    ("<|return|>",),
    ("<|call|>",),
    ("<|calls|>",),
    ("<|flush|>",),
    ("<end_of_turn>",),
    ("<|endoftext|>",),
    ("</s>",),
    ("<|eom_id|>",),
    ("<EOT>",),
    ("[EOS]",),
    ("<eos>",),
    ("<turn|>",),
    ("<|tool_response>",),
    ("<|plamo:eos|>",),
    ("[e~[",),
    ("<|fim_prefix|>", "<PRE>", "<fim-prefix>"),
    ("<|fim_suffix|>", "<SUF>"),
    ("<|fim_middle|>", "<MID>"),
    ("<|fim_pad|>", "<PAD>", "[PAD]"),
    ("<|fim_repo|>", "<|repo_name|>"),
    ("<|file_sep|>",),
    ("<|channel|>",),
    ("<|message|>",),
    ("<|start|>",),
    ("<|user|>",),
    ("<|assistant|>",),
    ("<mask>",),
    ("[MASK]",),
    ("<tool>",),
    ("<unused1>",),
    ("a b",),
    ("ab",),
    ("<|im_start|>",),
    ("  ",),
)
WORDS: Final = (
    "the",
    "The",
    "quick",
    "test",
    "don't",
    "I'LL",
    "naïve",
    "ÀÉ",
    "東京",
    "中文",
    "12",
    "1234567",
    "ß",
    "Привет",
    "한국",
    "a_b",
    "x-y",
    "...",
    "camelCase",
    "e\u0301",
    "ﬁ",
    "http://a.b/c?d=1",
    "über",
)
ALPHABET: Final = "abcdeABst.,!'-_ 0123éüß中文日か😀👍▁<>|"
BLANKS: Final = (" ", " ", " ", "  ", "\n", "\n\n", "\t", " \n ", "   ", "\r\n")
#: With tokens around a text or not; with names of control tokens in it or not.
WAYS: Final = [(s, p) for s in (True, False) for p in (True, False)]
ARCHITECTURES: Final = {"bert": "bert", "t5": "bert"}


def _flag(r: random.Random) -> bool:
    return r.random() < 0.5


def a_text(r: random.Random, metadata: dict[str, Any]) -> str:
    """A text of words, tokens, special tokens and white space."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    special = [x for x, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)]
    parts = []
    for _ in range(r.randint(0, 10)):
        way = r.random()
        if way < 0.4:
            parts.append(r.choice(WORDS))
        elif way < 0.65 and special:
            parts.append(r.choice(special))
        elif way < 0.8:
            parts.append(r.choice(tokens).replace(SPACE, " ").replace("\\x", "x"))
        else:
            parts.append("".join(r.choices(ALPHABET, k=r.randint(1, 5))))
        if _flag(r):
            parts.append(r.choice(BLANKS))
    text = "".join(parts)
    # Within a word llama.cpp takes the mark of words in a text for its own.
    return text.replace(SPACE, "") if metadata["tokenizer.ggml.model"] == "bert" else text


def _specials(r: random.Random) -> list[str]:
    rows = r.sample(SPECIAL, r.randint(0, 8))
    return [r.choice(row) for row in rows]


def _kinds(
    r: random.Random, tokens: list[str], special: list[str], unknown: str | None
) -> list[int]:
    """Types of tokens; special ones are mostly of a special type."""
    found = []
    for token in tokens:
        if token in special:
            found.append(r.choice((3, 3, 3, 4, 4, 1)))
        elif token == unknown:
            found.append(2)
        elif len(token) == 6 and token.startswith("<0x"):
            found.append(6)
        else:
            found.append(
                5 if r.random() < 0.02 else 4 if r.random() < 0.02 and len(token) > 1 else 1
            )
    return found


def _parts(r: random.Random, mark: str) -> list[str]:
    """Characters and parts of words; a mark is before some that begin a word."""
    found = dict.fromkeys(r.sample(sorted(set(ALPHABET) - {" "}), r.randint(8, 30)))
    for _ in range(r.randint(10, 60)):
        word = r.choice(WORDS)
        at = r.randint(0, len(word) - 1)
        part = word[at : at + r.randint(1, 5)]
        found[(mark if _flag(r) else "") + part] = None
    return [*found]


def _joined(r: random.Random, base: list[str], n: int) -> tuple[list[str], list[str]]:
    """Tokens that grow out of others, and the merges that lead to them."""
    known, merges = dict.fromkeys(base), {f"{base[-1]} {base[-2]}": None}
    known[base[-1] + base[-2]] = None
    plain = [x for x in base if not x.startswith("<0x")]
    for _ in range(n):
        a, b = r.choice(plain), r.choice(plain)
        if len(a + b) <= 8 and " " not in a + b:
            merges[f"{a} {b}"] = None
            known[a + b] = None
            plain.append(a + b)
    return [*known], [*merges]


def _in_any_order(r: random.Random, special: list[str], tokens: list[str]) -> list[str]:
    rest = [x for x in dict.fromkeys(tokens) if x not in special]
    at = r.choice((0, len(rest)))
    return [*rest[:at], *special, *rest[at:]]


def _named(r: random.Random, metadata: dict[str, Any], special: list[str], *names: str) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    for name in names:
        token = (
            tokens.index(r.choice(special)) if special and _flag(r) else r.randrange(len(tokens))
        )
        metadata[f"tokenizer.ggml.{name}_token_id"] = token


def _sentence_piece(r: random.Random) -> dict[str, Any]:
    special = [*dict.fromkeys(["<unk>", "<s>", "</s>", "<|endoftext|>", *_specials(r)])]
    tokens = [f"<0x{i:02X}>" for i in range(256)] + _parts(r, SPACE) + [SPACE]
    for _ in range(2):
        tokens, _ = _joined(r, tokens, 20)
    tokens = [*special, *(x for x in dict.fromkeys(tokens) if x not in special)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": _kinds(r, tokens, special[1:], "<unk>"),
    }
    if r.random() < 0.9:
        metadata["tokenizer.ggml.scores"] = [-float(r.randint(0, 40)) for _ in tokens]
    if _flag(r):
        metadata["tokenizer.ggml.add_space_prefix"] = _flag(r)
    if _flag(r):
        metadata["general.name"] = r.choice(("Phi-3 mini", "phi3", "Llama"))
    if _flag(r):
        _named(r, metadata, special, "bos", "eos")
    return metadata


def _bytes(r: random.Random) -> dict[str, Any]:
    special = [*dict.fromkeys(["<|begin|>", *_specials(r)])]
    base = letters()
    if r.random() < 0.2:  # some bytes have no token
        base = [x for x in base if r.random() < 0.9]
    tokens, merges = _joined(r, base, r.randint(0, 120))
    tokens = _in_any_order(r, special, tokens)
    pre = r.choice(sorted(name for name, cut in CUTS.items() if cut.bytes and name not in KNOWN))
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.token_type": _kinds(r, tokens, special, None),
        "tokenizer.ggml.merges": merges,
    }
    _named(r, metadata, special, "bos", "eos")
    return metadata


#: Cuts that differ from llama.cpp's on purpose: models' own tokenizers tell capitals from others.
KNOWN: Final = ("cohere2moe", "kimi-k2", "tiny_aya", "youtu")


def _characters(r: random.Random) -> dict[str, Any]:
    special = [*dict.fromkeys(["<bos>", *_specials(r)])]
    base = ["\n", *(f"<0x{i:02X}>" for i in range(256)), SPACE, *_parts(r, "")]
    tokens, merges = _joined(r, [*dict.fromkeys(base)], r.randint(0, 80))
    merges = [x for x in merges if "\n" not in x]
    if _flag(r):
        tokens += ["\n\n"]
    tokens = _in_any_order(r, special, tokens)
    pre = r.choice(("gemma4", "sarvam-moe", "granite-embed-multi-311m", "whitespace"))
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "whitespace" if pre == "whitespace" else "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.token_type": _kinds(r, tokens, special, None),
        "tokenizer.ggml.merges": merges,
    }
    if pre == "gemma4" and _flag(r):
        metadata["tokenizer.ggml.model"] = "gemma4"
        del metadata["tokenizer.ggml.pre"]
    if pre == "whitespace" and _flag(r):
        metadata["tokenizer.ggml.normalizer.lowercase"] = _flag(r)
    _named(r, metadata, special, "bos", "eos")
    return metadata


def _word_pieces(r: random.Random) -> dict[str, Any]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(x for x in _parts(r, SPACE) if x != SPACE)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(tokens) - 5),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
    }
    for name in ("lowercase", "strip_accents"):
        if _flag(r):
            metadata[f"tokenizer.ggml.normalizer.{name}"] = _flag(r)
    return metadata


def _unigram(r: random.Random) -> dict[str, Any]:
    special = [*dict.fromkeys(["<pad>", "</s>", "<unk>", *_specials(r)])]
    tokens = [*special, *(x for x in dict.fromkeys([SPACE, *_parts(r, SPACE)]) if x not in special)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": _kinds(
            r, tokens, [x for x in special if x != "<unk>"], "<unk>"
        ),
        "tokenizer.ggml.scores": [-r.randint(64, 768) / 64 for _ in tokens],  # exact in float32
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }
    # llama.cpp takes a character that begins with a byte of a user-defined token for a part of it.
    kinds = metadata["tokenizer.ggml.token_type"]
    for i, token in enumerate(tokens):
        kinds[i] = 1 if kinds[i] == 4 and not token[0].isascii() else kinds[i]
    for name in ("add_space_prefix", "remove_extra_whitespaces"):
        if _flag(r):
            metadata[f"tokenizer.ggml.{name}"] = _flag(r)
    return metadata


def _longest(r: random.Random) -> dict[str, Any]:
    special = ["<s>", *_specials(r)]
    raw = dict.fromkeys(bytes([i]) for i in range(256))
    raw |= dict.fromkeys(x.encode() for x in _parts(r, " "))
    special = [x for x in dict.fromkeys(special) if x.encode() not in raw]
    tokens = [*special, *map(escape_token, raw)]
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [r.choice((3, 4)) for _ in special] + [1] * len(raw),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.unknown_token_id": len(tokens) - 1,
    }


def a_vocabulary(r: random.Random) -> dict[str, Any]:
    """The metadata of a random vocabulary, of any kind."""
    make = r.choice(
        (_sentence_piece, _bytes, _bytes, _characters, _word_pieces, _unigram, _longest)
    )
    metadata = make(r)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len({*tokens})
    for name in ("bos", "eos"):
        if _flag(r):
            metadata[f"tokenizer.ggml.add_{name}_token"] = _flag(r)
    if metadata["tokenizer.ggml.model"] in ("gpt2", "llama") and r.random() < 0.2:
        name = r.choice(("eot", "eom", "fim_pad", "fim_rep", "fim_sep", "fim_pre"))
        metadata[f"tokenizer.ggml.{name}_token_id"] = r.randrange(len(tokens))
    return metadata


def write(path: Path, metadata: dict[str, Any]) -> Path:
    """Write a file with a vocabulary and no weights."""
    name = ARCHITECTURES.get(metadata["tokenizer.ggml.model"], "llama")
    eps = "layer_norm_epsilon" if name == "bert" else "layer_norm_rms_epsilon"
    about: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.context_length": 64,
        f"{name}.embedding_length": 64,
        f"{name}.block_count": 1,
        f"{name}.feed_forward_length": 64,
        f"{name}.attention.head_count": 1,
        f"{name}.attention.{eps}": 1e-5,
    }
    if name == "bert":
        about["bert.attention.causal"] = False
    with aggml.GGUFWriter(path) as writer:
        for key, value in (about | metadata).items():
            writer.add(key, value)
    return path


def differences(
    words: Vocabulary, metadata: dict[str, Any], texts: list[str], wanted: dict[str, Any]
) -> list[str]:
    """What differs from what llama.cpp gave, in words."""
    found = []
    control = words._roles.hidden - {words.unknown}
    for text, rows in zip(texts, wanted["ids"], strict=True):
        # llama.cpp makes control tokens of somebody's text; here that must not be
        slips = bool(control & {*rows[-1]})
        if slips and control & {*words.encode(text, special=False, literal=True)}:
            found.append(f"{text!r} gives a control token")
        for (special, parse), ids in zip(WAYS, rows, strict=True):
            got = words.encode(text, special=special, literal=not parse)
            if got != ids and (parse or not slips):
                found.append(
                    f"{text!r} special={special} literal={not parse}: {got}, llama.cpp {ids}"
                )
    for i, piece in enumerate(wanted["pieces"]):
        if metadata["tokenizer.ggml.model"] == "whitespace" or b"[UNK_BYTE" in bytes.fromhex(piece):
            continue  # it takes any token for letters of bytes
        if words.bytes_of(i).hex() != piece:
            found.append(
                f"token {i} {words.pieces[i]!r}: {words.bytes_of(i)!r}, llama.cpp "
                f"{bytes.fromhex(piece)!r}"
            )
    if sorted(words.ends) != wanted["ends"]:
        found.append(f"ends {sorted(words.ends)}, llama.cpp {wanted['ends']}")
    return found
