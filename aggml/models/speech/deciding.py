"""Deciding: which token of a window may come next, and whether a text repeats itself.

Here: plain functions on logits and tokens, after Whisper's own decoding (section 4.5 of the paper).
Not here: where logits come from (windows.py).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models.speech.special import Special
    from aggml.models.tokenizers import Vocabulary

    F32 = npt.NDArray[np.float32]
    Ids = npt.NDArray[np.int64]

__all__ = ["SpeechRules", "compression", "log_softmax", "suppressed_tokens"]

FIRST_TIME: Final = 50  # steps of 0.02 s: the first segment of a window begins within a second
#: Signs that mark speakers, music and other sounds.
SYMBOLS: Final = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *(
        "<<",
        ">>",
        "<<<",
        ">>>",
        "--",
        "---",
        "-(",
        "-[",
        "('",
        '("',
        "((",
        "))",
        "(((",
        ")))",
        "[[",
    ),
    *("]]", "{{", "}}", "♪♪", "♪♪♪"),
)
MUSIC: Final = "♩♪♫♬♭♮♯"  # each may be several tokens; then its first token is suppressed


def suppressed_tokens(words: Vocabulary, special: Special) -> Ids:
    """Tokens that are never chosen: signs for sounds, and special tokens that begin a text."""
    found = {words.encode(" -", special=False)[0], words.encode(" '", special=False)[0]}
    for symbol in (*SYMBOLS, *MUSIC):
        for text in (symbol, " " + symbol):
            ids = words.encode(text, special=False)
            if len(ids) == 1 or symbol in MUSIC:
                found.add(ids[0])
    found |= {special.begin, special.translate, special.transcribe, special.only_text}
    found |= {special.previous, special.no_speech}
    return np.array(sorted(found), np.int64)


def log_softmax(logits: F32) -> F32:
    """Logarithms of probabilities."""
    above = logits - logits.max()
    found: F32 = above - np.log(np.exp(above).sum(dtype=np.float64)).astype(np.float32)
    return found


def compression(text: str) -> float:
    """How many times shorter zlib makes a text; a high ratio means that it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


@dataclass(frozen=True)
class SpeechRules:
    """Which tokens may come next in a window.

    Attributes:
        special: ids of special tokens.
        never: tokens that are never chosen.
        blank: tokens that cannot begin a window.
        times: whether the text has times.
    """

    special: Special
    never: Ids
    blank: Ids
    times: bool

    def apply(self, logits: F32, made: Sequence[int]) -> None:
        """Set the logits of tokens that may not come after ``made`` to -inf, in place.

        ``made`` are the tokens of this window so far.
        """
        logits[self.never] = -np.inf
        logits[self.special.no_times] = -np.inf
        if not made:
            logits[self.blank] = -np.inf
        if self.times:
            self._times(logits, made)
        else:
            logits[self.special.times :] = -np.inf

    def _times(self, logits: F32, made: Sequence[int]) -> None:
        """Times come in pairs, the end of a segment and the begin of the next; they never go back.

        The first time of a window comes alone.
        """
        begin = self.special.times
        last = bool(made) and made[-1] >= begin
        before = len(made) < 2 or made[-2] >= begin
        if last:
            if before:
                logits[begin:] = -np.inf
            else:
                logits[: self.special.end] = -np.inf
        told = [token for token in made if token >= begin]
        if told:
            # A segment may not be empty. But it may begin at the time at which the last one ended.
            logits[begin : told[-1] + (0 if last and not before else 1)] = -np.inf
        if not made:
            logits[:begin] = -np.inf
            logits[begin + FIRST_TIME + 1 :] = -np.inf
        # If all times together are more probable than the best word, the next token is a time.
        most = logits[:begin].max()
        times = logits[begin:]
        top = times.max()
        if top > -np.inf:
            together = top + np.log(np.exp(times - top).sum())
            if together > most:
                logits[:begin] = -np.inf
