"""open_vocabulary: the vocabulary of a model file, of any kind.

Not here: the kinds (vocabulary.py, pieces.py, longest.py, json_vocabulary.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.tokenizers.json_vocabulary import JSON_KEY, JsonVocabulary
from aggml.models.tokenizers.longest import LongestMatch
from aggml.models.tokenizers.pieces import Unigram, WordPiece
from aggml.models.tokenizers.vocabulary import (
    ByteLevel,
    SentencePiece,
    Vocabulary,
    VocabularyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["open_vocabulary"]

#: By tokenizer.ggml.model.
KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], Vocabulary]]] = {
    "llama": SentencePiece,
    "gpt2": ByteLevel,
    "gemma4": ByteLevel,
    "whitespace": ByteLevel,
    "bert": WordPiece,
    "t5": Unigram,
    "rwkv": LongestMatch,
}


def open_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary | None:
    """The vocabulary of a file, None if it has none.

    A file that has a whole tokenizer.json in itself is read by that: it says more than other keys.

    Raises:
        VocabularyError: it is of a kind that is not known here.
    """
    if JSON_KEY in metadata and "tokenizer.ggml.tokens" in metadata:
        return JsonVocabulary(metadata)
    model = metadata.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab") or "tokenizer.ggml.tokens" not in metadata:
        return None
    if model not in KINDS:
        raise VocabularyError(
            f"tokenizer.ggml.model is {model!r}, known are {', '.join(sorted(KINDS))}"
        )
    return KINDS[model](metadata)
