"""name_of_cut: the name in GGUF of the way in which a tokenizer.json cuts text into pieces.

A folder has regular expressions where a GGUF file has a name (`CUTS`). The name is found by trial:
the tokenizer cuts some texts, and so does each known cut. Not here: the cuts
(../tokenizers/cuts.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aggml.models.errors import ModelError
from aggml.models.tokenizers.cuts import CUTS
from aggml.models.tokenizers.vocabulary import pre_tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["name_of_cut"]

#: Texts that a cut must cut exactly alike: words, contractions, digits, signs, gaps, line ends.
PLAIN: Final = (
    "The quick brown fox didn't JUMP; I'LL say: \"we've 1234567 reasons\", 3.14 or 10,000 (x=1).",
    "  two  spaces   three\ttab\n\n\n  lines \r\n end   ",
    "def f(x_1, y2):\n    return x_1**2 + y2 // 3  # !!! ... --- ===>\n",
    "Привет мир, №42. Grüße aus Köln",
    "中文文本，没有空格。价格是￥12345.67元！（测试）",
)
#: Texts in which a cut may differ from the tokenizer's expression: capitals, marks, other digits.
#: The cut that agrees in most of them is chosen.
FINE: Final = (
    "HTTPServer camelCaseWord ALLCAPS lowerUPPER a/b\\c http://example.org/?q=1&r=%20",
    "日本語のテキスト、カタカナとひらがな。漢字123と数字４５６",
    "한국어 문장은 띄어쓰기가 있다. 가격은 12,345원",
    "النص العربي مع التشكيل: مُحَمَّدٌ ١٢٣٤، نهاية؟",
    "हिन्दी पाठ: क्षत्रिय ज्ञान १२३४ है।",
    "ข้อความภาษาไทยไม่มีวรรค ๑๒๓ ฿",
    "emoji 😀👍🏽👨‍👩‍👧 and ∑∫√≠ ½ ² ™ zero\u200bwidth nbsp\u00a0here",
    "'s 't 're 'VE 'm 'LL 'd ''' `code` <sentinel:42> 1 12 123 1234 12345",
)


def name_of_cut(
    library: Any,  # noqa: ANN401 a module
    told: Mapping[str, Any],
    *,
    whole: bool,
) -> tuple[str, bool]:
    """The value of ``tokenizer.ggml.pre``, and whether it cuts all texts that are tried alike.

    Args:
        library: the module `tokenizers`.
        told: the contents of a tokenizer.json with byte-level BPE.
        whole: whether a piece that is itself a token is taken as it is, without merging its parts.

    Raises:
        ModelError: no known cut does the same.
    """
    bare: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": told.get("pre_tokenizer"), "post_processor": None,
        "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []},
    }  # fmt: skip
    own = library.Tokenizer.from_str(json.dumps(bare)).pre_tokenizer

    def pieces(cutter: Any, text: str) -> list[str]:  # noqa: ANN401
        return [piece for piece, _ in cutter.pre_tokenize_str(text)]

    if own is None:
        raise ModelError(
            "tokenizer.json has no pre_tokenizer, which byte-level BPE needs to cut text into words"
        )
    wanted = {text: pieces(own, text) for text in PLAIN + FINE}
    best, name = -1, ""
    tried: dict[object, int] = {}
    for pre, cut in CUTS.items():
        if not cut.bytes or cut.whole is not whole:
            continue
        if cut not in tried:
            cutter = pre_tokenizer_of(library, cut)
            plain = all(pieces(cutter, text) == wanted[text] for text in PLAIN)
            fine = sum(pieces(cutter, text) == wanted[text] for text in FINE)
            tried[cut] = fine if plain else -1
        if tried[cut] > best:
            best, name = tried[cut], pre
    if best < 0 and whole:  # `whole` matters only for tokens to which merges do not lead
        return name_of_cut(library, told, whole=False)[0], False
    if best < 0:
        raise ModelError("tokenizer.json has a pre_tokenizer that cuts text as no known model does")
    return name, best == len(FINE)
