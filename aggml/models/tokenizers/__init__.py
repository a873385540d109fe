"""Tokenizers: text to token ids and back, by the vocabulary in a model file."""

from __future__ import annotations

from aggml.models.tokenizers.vocabulary import Vocabulary, VocabularyError, open_vocabulary

__all__ = ["Vocabulary", "VocabularyError", "open_vocabulary"]
