"""The ids of special tokens of models of speech: languages, tasks, times.

Not here: when they may come (deciding.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aggml.models.errors import ModelError

__all__ = ["LANGUAGES", "Special"]

#: In the order of their tokens. Only models with 51,866 tokens know the last one.
LANGUAGES: Final = (
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv",
    "it", "id", "hi", "fi", "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no",
    "th", "ur", "hr", "bg", "lt", "la", "mi", "ml", "cy", "sk", "te", "fa", "lv", "bn", "sr",
    "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw",
    "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu",
    "am", "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl",
    "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue",
)  # fmt: skip
TIMES: Final = 1501  # tokens of times, from 0 to 30 s in steps of 0.02 s


@dataclass(frozen=True, slots=True)
class Special:
    """The ids of special tokens, which follow from the size of the vocabulary alone.

    Attributes:
        end: ends the text of a window.
        begin: begins the text of a window.
        languages: how many there are; their tokens follow ``begin``.
        multilingual: whether a text begins with its language and the task.
    """

    end: int
    begin: int
    languages: int
    multilingual: bool

    @classmethod
    def of(cls, vocabulary: int) -> Special:
        """The ids in a model with so many tokens.

        Raises:
            ModelError: no Whisper has so many tokens.
        """
        multilingual = vocabulary >= 51865
        languages = vocabulary - 51765 - multilingual
        if languages not in (99, 100):
            raise ModelError(f"a vocabulary of {vocabulary} tokens is not one of Whisper's")
        end = 50257 if multilingual else 50256
        return cls(end, end + 1, languages, multilingual)

    @property
    def translate(self) -> int:
        """The task to write English."""
        return self.begin + self.languages + 1

    @property
    def transcribe(self) -> int:
        """The task to write what is said."""
        return self.translate + 1

    @property
    def only_text(self) -> int:
        """Marks text without audio, used in training (``startoflm``)."""
        return self.translate + 2

    @property
    def previous(self) -> int:
        """Begins the text of earlier windows (``startofprev``)."""
        return self.translate + 3

    @property
    def no_speech(self) -> int:
        """Means that nobody speaks."""
        return self.translate + 4

    @property
    def no_times(self) -> int:
        """Means that the text has no times."""
        return self.translate + 5

    @property
    def times(self) -> int:
        """The time 0 s; each following token is 0.02 s later."""
        return self.translate + 6

    def language(self, code: str) -> int:
        """The token of a language by its code.

        Raises:
            KeyError: the model does not know the language.
        """
        known = LANGUAGES[: self.languages]
        if code not in known:
            raise KeyError(code)
        return self.begin + 1 + known.index(code)

    def names(self) -> list[str]:
        """The names of the special tokens, in the order of ids from ``end`` on."""
        codes = [f"<|{code}|>" for code in LANGUAGES[: self.languages]]
        others = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
        times = [f"<|{i * 0.02:.2f}|>" for i in range(TIMES)]
        first = ["<|endoftext|>", "<|startoftranscript|>"]
        return [*first, *codes, *(f"<|{name}|>" for name in others), *times]
