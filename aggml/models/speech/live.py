"""Live: what is said in a sound that still goes on, in partial and final pieces of text.

The sound since the last cut is transcribed again and again. Words on which two transcriptions in
turn agree are final (LocalAgreement: Liu et al. 2020, Machacek et al. 2023). Here: the agreement
and the buffer, on values alone. Not here: transcribing (segments.py), the loop
(../speech_model.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.speech.waves import RATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models.speech.words import Word

    F32 = npt.NDArray[np.float32]

__all__ = ["Agreement", "LiveSound", "Partial", "context_of"]

CUT: Final = 15.0  # seconds of the buffer from which on final words are cut off
FULL: Final = 26.0  # seconds of the buffer, at most: a window has 30
QUIET: Final = 2.0  # seconds that are kept where nobody speaks
NEAR: Final = 0.2  # seconds: a word that begins so long before the last final one's end is new
REPEATED: Final = 5  # words that a transcription may repeat of the final ones
CONTEXT: Final = 200  # characters of final text that a transcription is given as context


@dataclass(frozen=True, slots=True)
class Partial:
    """A piece of what is said.

    Attributes:
        text: of the piece. The texts of all final pieces together are the whole text.
        final: whether it stays as it is. If not, the next piece replaces it.
        start, end: seconds from the beginning of the sound.
        words: with their times.
        language: its code.
    """

    text: str
    final: bool
    start: float
    end: float
    words: list[Word] = field(repr=False)
    language: str = "en"

    @classmethod
    def of(cls, words: Sequence[Word], language: str, *, final: bool) -> Partial:
        """The piece with these words, at least one."""
        text = "".join(x.text for x in words)
        return cls(text, final, words[0].start, words[-1].end, list(words), language)


class Agreement:
    """The final words, and those of the last transcription behind them.

    Attributes:
        final: all final words.
        open: words that may still change.
    """

    def __init__(self) -> None:
        self.final: list[Word] = []
        self.open: list[Word] = []

    @property
    def until(self) -> float:
        """Where the last final word ends."""
        return self.final[-1].end if self.final else 0.0

    def hear(self, words: Sequence[Word]) -> list[Word]:
        """A new transcription; returns the words that became final."""
        new = self._behind(words)
        agreed = 0
        for old, word in zip(self.open, new, strict=False):
            if _bare(old) != _bare(word):
                break
            agreed += 1
        self.final += new[:agreed]
        self.open = new[agreed:]
        return new[:agreed]

    def close(self, until: float | None = None) -> list[Word]:
        """Open words, those that end by ``until``, become final; returns them."""
        n = len(self.open)
        if until is not None:
            n = next((i for i, x in enumerate(self.open) if x.end > until), n)
        closed, self.open = self.open[:n], self.open[n:]
        self.final += closed
        return closed

    def _behind(self, words: Sequence[Word]) -> list[Word]:
        """The words behind the final ones, some of which may come again a little later."""
        new = [x for x in words if x.start > self.until - NEAR]
        if new and self.final and new[0].start < self.until + 1:
            for n in range(min(REPEATED, len(new), len(self.final)), 0, -1):
                if [*map(_bare, self.final[-n:])] == [*map(_bare, new[:n])]:
                    return new[n:]
        return new


def _bare(word: Word) -> str:
    return "".join(x for x in word.text.lower() if x.isalnum()) or word.text.strip()


class LiveSound:
    """The samples that are transcribed next.

    Attributes:
        samples: of the sound since the last cut.
    """

    def __init__(self) -> None:
        self.samples: F32 = np.empty(0, np.float32)
        self._first = 0  # number of the first sample

    @property
    def begin(self) -> float:
        """Where the samples begin, in seconds."""
        return self._first / RATE

    @property
    def seconds(self) -> float:
        """How long they are."""
        return len(self.samples) / RATE

    def add(self, samples: F32) -> None:
        """More sound."""
        self.samples = np.concatenate([self.samples, samples])

    def trim(self, agreement: Agreement) -> list[Word]:
        """Cut off what needs no further transcription; returns words that become final by that."""
        closed: list[Word] = []
        if not agreement.open and agreement.until <= self.begin:  # nobody has spoken
            self._cut(self.begin + self.seconds - QUIET)
        elif self.seconds > CUT and agreement.until > self.begin:
            self._cut(agreement.until)
        if self.seconds > FULL:  # transcriptions do not agree
            closed = agreement.close(self.begin + self.seconds - QUIET)
            self._cut(max(agreement.until, self.begin + self.seconds - CUT))
        return closed

    def _cut(self, at: float) -> None:
        n = min(max(round(at * RATE) - self._first, 0), len(self.samples))
        self.samples = self.samples[n:]
        self._first += n


def context_of(agreement: Agreement, begin: float) -> str:
    """The final text before the samples, or its end."""
    said = "".join(x.text for x in agreement.final if x.end <= begin + NEAR)
    return said[-CONTEXT:].partition(" ")[2] if len(said) > CONTEXT else said
