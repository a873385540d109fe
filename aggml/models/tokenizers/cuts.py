r"""How text is cut into pieces before byte-level BPE, by ``tokenizer.ggml.pre``.

Each pattern is a regular expression of Oniguruma. It cuts every piece that the previous patterns
made, their matches as well as the text between them. The patterns are those of the models'
tokenizers, in llama.cpp's form, for all names that llama.cpp knows. Not here: joining the parts of
a piece to tokens (vocabulary.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CUTS", "Cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """One way of cutting.

    Attributes:
        patterns: applied one after the other.
        whole: a piece that is itself a token is taken as it is, without merging its parts.
        add_bos: whether a text begins with BOS if the file does not say.
        bytes: pieces are bytes, each written as a letter; else text, with spaces as U+2581.
        words: white space is part of no piece; only used without ``bytes``.
        lines: line ends one after the other stay whole if they are a token together.
        always_bos: a text begins with BOS even if the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    add_bos: bool = False
    bytes: bool = True
    words: bool = False
    lines: bool = False
    always_bos: bool = False


_GAPS: Final = r"\s+(?!\S)"
_LINES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# English contractions: lower case only; lower or upper case.
_LOWER: Final = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

_GPT2: Final = rf"{_LOWER}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_GAPS}"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _words(digits: str, signs: str = _SIGNS, contractions: str = f"{_ANY}|") -> str:
    """Words with an optional sign before them, digits, signs, line ends, gaps."""
    return rf"{contractions}{_WORD}|{digits}|{signs}|{_LINES}"


# Gaps of at most 512 spaces, cut into powers of 2.
_FEWER_GAPS: Final = "|".join(
    [rf"\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1)] + [r"\s{1,2}(?!\S)", r"\s{1}"]
)
_THREE: Final = r"\p{N}{1,3}"
_LLAMA3: Final = _words(_THREE)
_QWEN2: Final = _words(r"\p{N}")
_QWEN35: Final = (
    rf"{_ANY}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_EXAONE: Final = (
    rf"{_ANY}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_GAPS}|\s+"
)
_HAN_KANA: Final = "[一-龥぀-ゟ゠-ヿ]+"
_ASCII_SIGN: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK: Final = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _case_pattern(upper: str, small: str, digits: str, contractions: str) -> str:
    """Words that go from capitals to small letters once; signs may end in a slash."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{small}+{contractions}|{before}{upper}+{small}*{contractions}|"
        rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
    )


_NOT_SMALL: Final = r"((?=[\p{L}])([^a-z]))"
_NOT_UPPER: Final = r"((?=[\p{L}])([^A-Z]))"
_TEKKEN: Final = _case_pattern(_NOT_SMALL, _NOT_UPPER, r"\p{N}", "")
_GPT4O: Final = _case_pattern(_NOT_SMALL, _NOT_UPPER, _THREE, f"{_ANY}?")
# _GPT4O in which combining marks count as letters.
_GPT4O_MARKS: Final = _GPT4O.replace(r"(?=[\p{L}])", r"(?=[\p{L}\p{M}])")
# Groups of three digits, counted from the right; scripts that are written without spaces.
_FROM_RIGHT: Final = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_ASIAN: Final = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_BLOOM: Final = " ?[^(\\s|.,!?…。，、।۔،)]+"

# Letters with case, and scripts that are written without spaces, as deepseek-llm has them.
_CASED_LETTERS: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_WITHOUT_SPACES: Final = "[一-龥ࠀ-一가-\ud7ff]+"

_NAMES_OF: Final[Mapping[Cut, tuple[str, ...]]] = {
    Cut((_LLAMA3,), whole=True, add_bos=True): (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano",
    ),
    Cut((_LLAMA3.removesuffix(rf"{_GAPS}|\s+") + _FEWER_GAPS,)): ("jais-2",),
    Cut((_LLAMA3,)): ("smaug-bpe", "dbrx", "chatglm-bpe"),
    Cut((_LLAMA3,), whole=True): ("glm4", "glm5"),
    Cut((_QWEN2,)): (
        "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan", "grok-2",
        "solar-open",
    ),
    Cut((_QWEN35,)): ("qwen35",),
    Cut((_words(r"\p{N}", contractions=""),)): ("ufakzeka",),
    Cut((_words(r"\p{N}{1}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)): ("seed-coder",),
    Cut((r"[^\n]+|[\n]+", _QWEN2)): ("laguna",),
    Cut((_THREE, _words(r"\p{N}+")), whole=True): ("minicpm5",),
    Cut((
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|{_GAPS}|\s+",
    )): ("bailingmoe", "bailingmoe2", "llada-moe"),
    Cut((_EXAONE,)): ("exaone-moe",),
    Cut((_GPT2,)): (
        "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
        "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais",
        "trillion", "granite-docling", "exaone4",
    ),
    Cut((r"\p{N}", _GPT2)): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
        "mellum2",
    ),
    Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): ("default",),
    Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): ("falcon",),
    Cut((
        "[\r\n]", rf"\s?[{_CASED_LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
        _WITHOUT_SPACES, r"\p{N}+",
    )): ("deepseek-llm",),
    Cut(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _WITHOUT_SPACES, r"\p{N}")): ("deepseek-coder",),
    Cut((_THREE, _HAN_KANA, _DEEPSEEK)): ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    Cut((
        _THREE, _HAN_KANA, _DEEPSEEK.replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"), r"\p{N}",
    )): ("spark2_5",),
    Cut((_FROM_RIGHT, _ASIAN, _DEEPSEEK)): ("afmoe",),
    Cut((r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))")): ("superbpe",),
    Cut((
        r"\p{Han}+", _case_pattern(_UPPER, _SMALL, _THREE, f"{_ANY}?").replace("/]*", "]*"),
    )): ("kimi-k2",),
    Cut((_BLOOM,)): ("poro-chat", "bloom", "gpt3-finnish"),
    Cut((_BLOOM, r"\p{N}")): ("viking",),
    Cut((_TEKKEN,), whole=True, add_bos=True): ("tekken",),
    Cut((_GPT4O,)): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    Cut((_GPT4O_MARKS,), whole=True): ("granite-embed-multi-97m",),
    Cut((
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_KANA,
        _case_pattern(_UPPER, _SMALL, r"\p{N}", f"{_ANY}?"),
    ), whole=True): ("youtu",),
    Cut((r"\d{1,3}(?=(?:\d{3})*\b)", _case_pattern(_UPPER, _SMALL, _THREE, f"{_ANY}?"))): (
        "tiny_aya", "cohere2moe",
    ),
    Cut((
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
    ), add_bos=True): ("chameleon",),
    Cut((r"\S+",), bytes=False, words=True): ("whitespace",),
    Cut((r"[^\n]+|[\n]+",), bytes=False, lines=True, always_bos=True): (
        "gemma4", "granite-embed-multi-311m",
    ),
    Cut((r"[^\n]+|[\n]+",), bytes=False): ("sarvam-moe",),
}  # fmt: skip

#: By the name in the file.
CUTS: Final[Mapping[str, Cut]] = {name: cut for cut, names in _NAMES_OF.items() for name in names}
