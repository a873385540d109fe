"""roles_of: what a vocabulary's tokens are for, beyond what a GGUF file says of each.

A GGUF file names one or two tokens that end a text, and a type for each token. Many files name the
wrong ones, or not all; so programs also know tokens by their text, and some models by their name.
The texts and names are those of llama.cpp, so that a model stops where it stops there. Not here:
finding tokens in a text (vocabulary.py).
"""
# ruff: noqa: RUF001 tokens of some models are written with wide characters

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Roles",
    "changes_tokens",
    "roles_of",
    "special_id",
]

#: Types of tokens, as tokenizer.ggml.token_type has them.
NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
BYTE: Final = 6

#: Parts of names of models whose special tokens take white space, as llama.cpp knows them.
PHI3: Final = ("phi-3", "phi3")
MODERN_BERT: Final = "modern-bert"
#: Texts of tokens that end an answer, whatever the file says.
ENDS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
#: Texts of tokens for filling in a middle, by GGUF's names. If the file names no token for a row,
#: the first text that is a token is it, and is taken for a control token.
FILLING: Final[Mapping[str, tuple[str, ...]]] = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
#: Older names of three of them.
OLDER: Final = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
#: An answer ends at any of these, as what follows belongs to another file.
FILLING_ENDS: Final = ("fim_pad", "fim_rep", "fim_sep")
#: Tokens of gpt-oss that are always shown.
SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
#: If all tokens of one row are among the ends, then "<|end|>" ends only a part of an answer.
PARTS: Final = (
    {"<|return|>", "<|call|>"}, {"<|return|>", "<|calls|>"}, {"<|flush|>", "<|call|>"},
    {"<|flush|>", "<|calls|>"},
)  # fmt: skip
#: If one of these is among the ends, then "</s>" is an ordinary token.
ORDINARY: Final = ("<|tool_response>", "<|plamo:eos|>")


@dataclass(frozen=True, slots=True)
class Roles:
    """What tokens are for.

    Attributes:
        kinds: the type of each token.
        hidden: control tokens and those for unknown text: they add nothing to a text.
        ends: tokens that end an answer.
        strips_before, strips_after: tokens that take white space before or after them with them.
        filling: the tokens for filling a gap, by the names of `FILLING`.
    """

    kinds: Sequence[int]
    hidden: frozenset[int]
    ends: frozenset[int]
    strips_before: frozenset[int]
    strips_after: frozenset[int]
    filling: Mapping[str, int]


def special_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """The id of a special token by GGUF's name, None if the file does not say."""
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if found is None else int(found)


def roles_of(
    metadata: Mapping[str, Any], ids: Mapping[str, int], eos: int | None, *, by_text: bool = True
) -> Roles:
    """What the tokens of a file are for.

    Args:
        metadata: of the file.
        ids: token ids by text.
        eos: the token that ends a text, if there is one.
        by_text: tokens that are known by their text end an answer, too.
    """
    every = ids
    ids = ids if by_text else {}
    told = metadata.get("tokenizer.ggml.token_type")
    n = len(metadata["tokenizer.ggml.tokens"])
    kinds = [NORMAL] * n if told is None else [int(x) for x in told]
    control = {i for i, kind in enumerate(kinds) if kind == CONTROL}
    ends = {ids[text] for text in ENDS if text in ids}
    control |= ends
    filling: dict[str, int] = {}
    for name, texts in FILLING.items():
        i = special_id(metadata, name)
        if i is None and name in OLDER:
            i = special_id(metadata, OLDER[name])
        if i is None:
            i = next((ids[text] for text in texts if text in ids), None)
            if i is not None:
                control.add(i)
        if i is not None:
            filling[name] = i
            if name in FILLING_ENDS:
                ends.add(i)
    for text in SHOWN:
        if text in ids:
            _retype(kinds, control, ids[text], USER_DEFINED)
    named = (eos, special_id(metadata, "eot"), special_id(metadata, "eom"))
    ends |= {i for i in named if i is not None}
    texts_of_ends = {text for text in (*ENDS, *ORDINARY) if ids.get(text) in ends}
    if "<|end|>" in texts_of_ends and any(part <= texts_of_ends for part in PARTS):
        ends.discard(ids["<|end|>"])
        _retype(kinds, control, ids["<|end|>"], USER_DEFINED)
    if "</s>" in texts_of_ends and any(text in texts_of_ends for text in ORDINARY):
        ends.discard(ids["</s>"])
        _retype(kinds, control, ids["</s>"], NORMAL)
    before, after = _strips(metadata, every, kinds, control)
    hidden = control | {i for i, kind in enumerate(kinds) if kind == UNKNOWN}
    return Roles(kinds, frozenset(hidden), frozenset(ends), before, after, filling)


def changes_tokens(metadata: Mapping[str, Any]) -> bool:
    """Whether the model's name alone says that special tokens take white space."""
    name = str(metadata.get("general.name", "")).lower()
    return any(x in name for x in (*PHI3, MODERN_BERT))


def _retype(kinds: list[int], control: set[int], token: int, kind: int) -> None:
    kinds[token] = kind
    control.discard(token)


def _strips(
    metadata: Mapping[str, Any], ids: Mapping[str, int], kinds: Sequence[int], control: set[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Which tokens take white space before, and after them: GGUF has no key for that."""
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    name = str(metadata.get("general.name", "")).lower()
    architecture = str(metadata.get("general.architecture", ""))
    jina = any(x in pre for x in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if jina or any(x in architecture for x in ("nomic-bert-moe", "jina-bert-v3")):
        return frozenset({ids["<mask>"]} if "<mask>" in ids else ()), frozenset()
    if any(x in name for x in PHI3):
        after = control | {i for i, x in enumerate(kinds) if x in (UNKNOWN, USER_DEFINED)}
        if "</s>" in ids:
            after.add(ids["</s>"])
        kept = {ids[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in ids}
        return frozenset(), frozenset(after - kept)
    if MODERN_BERT in name and "[MASK]" in ids:
        return frozenset({ids["[MASK]"]}), frozenset()
    return frozenset(), frozenset()
