"""Tokenizers: text to token ids and back, by the vocabulary in a model file."""

from __future__ import annotations

from aggml.models.tokenizers.opening import open_vocabulary
from aggml.models.tokenizers.vocabulary import Vocabulary, VocabularyError

__all__ = ["Vocabulary", "VocabularyError", "open_vocabulary"]


def __dir__() -> list[str]:
    return __all__
