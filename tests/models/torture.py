"""A text in 20 scripts, with digits, signs and gaps, which tokenizers split in different ways.

Here: the text, a byte-level vocabulary learned from a part of it, files with that vocabulary. Not
here: the expected tokens (reference_tokens.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aggml

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS: Final = (
    "The quick brown fox didn't JUMP; I'LL say: \"we've 1234567 reasons\", they'Re 3.14 or 10,000.",
    "  two  spaces   three\ttab\n\n\n  lines \r\n end   ",
    "def f(x_1, y2):\n    return x_1**2 + y2 // 3  # !!! ??? ... --- ===>\n",
    "HTTPServer camelCaseWord ALLCAPS lowerUPPER iPhone15Pro v2.0.1-rc3 a/b\\c http://example.org/?q=1&r=%20",
    "日本語のテキスト、カタカナとひらがな。漢字123と数字４５６",
    "中文文本，没有空格。价格是￥12345.67元！（测试）",
    "한국어 문장은 띄어쓰기가 있다. 가격은 12,345원 ㄱㄴㄷ",
    "Русский текст с ЗАГЛАВНЫМИ буквами и ё, номер №42.",
    "Ελληνικά με τόνους: ΑΒΓ αβγ ἀρχή, Ὅμηρος",
    "النص العربي مع التشكيل: مُحَمَّدٌ ١٢٣٤، نهاية؟",
    "טקסט בעברית עם נִקּוּד ו-123",
    "हिन्दी पाठ: क्षत्रिय ज्ञान १२३४ है।",
    "বাংলা লেখা: শ্রদ্ধা ১২৩",
    "தமிழ் உரை: கொள்ளு ௧௨௩",
    "తెలుగు వచనం: శ్రీ ౧౨౩",
    "ข้อความภาษาไทยไม่มีวรรค ๑๒๓ ฿",
    "ລາວ ພາສາ ໑໒໓ ខ្មែរ ១២៣ မြန်မာ ၁၂၃",
    "ქართული ტექსტი Ⴀ Հայերեն տառեր",
    "አማርኛ ጽሑፍ ፩፪፫ Ꮳꮃꭹ ᓄᓇᕗᑦ",
    "Tiếng Việt có dấu: Đường phố Hà Nội, e\u0301 o\u0302 combining",
    "Türkçe'nin İstanbul'da ışığı; ŞĞÜ şğü",
    "emoji 😀👍🏽👨‍👩‍👧 flags 🇩🇪 and ∑∫√≠ ½ ² ™ € £ ₹ zero\u200bwidth nbsp\u00a0here",
    "'s 't 're 'VE 'm 'LL 'd ''' \"\"\" `code` <sentinel:42> IMGIMGABCDZ 1 12 123 1234 12345",
    "IſK\u212a\u2126 ﬁ ﬂ Ａｂｃ１２３ ℌ 𝔘𝔫𝔦 𐐀𐐨 𞤀",
)
LEARNED: Final = 12  # the first texts, from which the vocabulary was learned
FOLDER: Final = Path(__file__).resolve().parent


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level vocabulary (made by benchmarks/make_tokens.py)."""
    found = json.loads((FOLDER / "vocabulary.json").read_text(encoding="utf-8"))
    return found["tokens"], found["merges"]


def of_bpe(
    pre: str, tokens: Sequence[str], merges: Sequence[str], model: str = "gpt2"
) -> dict[str, Any]:
    """The metadata of a byte-pair vocabulary."""
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [
            3 if token.startswith("<|") else 6 if token.startswith("<0x") else 1 for token in tokens
        ],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def write(
    path: Path, pre: str, tokens: Sequence[str], merges: Sequence[str], model: str = "gpt2"
) -> Path:
    """Write a file with a vocabulary and no weights."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "llama.embedding_length": 64,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    with aggml.GGUFWriter(path) as writer:
        for key, value in (metadata | of_bpe(pre, tokens, merges, model)).items():
            writer.add(key, value)
    return path


def of_unigram(tokens: Sequence[str], scores: Sequence[float]) -> dict[str, Any]:
    """The metadata of a unigram vocabulary, as xlm-roberta's files have it."""
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }


def write_unigram(path: Path, tokens: Sequence[str], scores: Sequence[float]) -> Path:
    """Write a file with a unigram vocabulary and no weights."""
    metadata: dict[str, Any] = {
        "general.architecture": "bert",
        "bert.context_length": 64,
        "bert.embedding_length": 64,
        "bert.block_count": 1,
        "bert.feed_forward_length": 64,
        "bert.attention.head_count": 1,
        "bert.attention.layer_norm_epsilon": 1e-5,
        "bert.attention.causal": False,
    }
    with aggml.GGUFWriter(path) as writer:
        for key, value in (metadata | of_unigram(tokens, scores)).items():
            writer.add(key, value)
    return path
