"""Live: what is said in a sound that still goes on, in partial and final pieces of text.

The sound since the last cut is transcribed again and again. Words on which two transcriptions in
turn agree are final (LocalAgreement: Liu et al. 2020, Machacek et al. 2023), and so are words
behind which the speaker has gone on for a while, or has paused. Each transcription begins with the
final words, and has the others of the one before as a draft. Here: the agreement, the buffer, the
draft, when to transcribe, on values alone. Not here: transcribing (segments.py), the loop
(../speech_model.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.speech.waves import RATE
from aggml.models.speech.words import Word, characters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from aggml.models.speech.special import Special

    F32 = npt.NDArray[np.float32]

__all__ = [
    "Agreement",
    "Draft",
    "LiveSound",
    "Pace",
    "Partial",
    "context_of",
    "draft_of",
    "once",
]

CUT: Final = 9.0  # seconds of the buffer from which on final words are cut off
SETTLED: Final = 2.5  # seconds of sound behind a word with which it is final
PAUSE: Final = 0.6  # seconds without speech that make all words final
QUIETER: Final = 0.01  # the power of a pause, at most, as a share of that of speech
BLOCK: Final = RATE // 10  # samples whose power is measured
SLOWER: Final = 2.8  # sound between transcriptions, as a share of the time that one takes
SOONEST: Final = 2.0  # and where a pause makes words final
LONGEST: Final = 10.0  # seconds of sound between transcriptions, at most
FULL: Final = 26.0  # seconds of the buffer, at most: a window has 30
QUIET: Final = 2.0  # seconds that are kept where nobody speaks
NEAR: Final = 0.2  # seconds: a word that begins so long before the last final one's end is new
REPEATED: Final = 5  # words that a transcription may repeat of the final ones
QUICK: Final = 5  # words a second that somebody says, at most, and beyond that
ALIKE: Final = 4  # words that are the same again in a repetition
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

    def hear(self, words: Sequence[Word], certain: int = 0) -> list[Word]:
        """A new transcription; returns the words that became final.

        Args:
            words: all of its words.
            certain: how many of them it had to begin with, as they are final.
        """
        new = self._more(words, certain) if certain else self._behind(words)
        agreed = 0
        for old, word in zip(self.open, new, strict=False):
            if _bare(old) != _bare(word):
                break
            agreed += 1
        self.final += new[:agreed]
        self.open = new[agreed:]
        return new[:agreed]

    def _more(self, words: Sequence[Word], certain: int) -> list[Word]:
        """The words behind those that are certain, and what the last of these has got since."""
        new = [*words[certain:]]
        if self.final and certain <= len(words):
            last, said = words[certain - 1], self.final[-1].text
            rest = last.text[len(said) :] if last.text.startswith(said) else ""
            if any(x.isalnum() for x in rest):
                new.insert(0, Word(last.end, last.end, rest))
        return new

    def close(self, until: float | None = None) -> list[Word]:
        """Open words, those that end by ``until``, become final; returns them."""
        n = len(self.open)
        if until is not None:
            n = next((i for i, x in enumerate(self.open) if x.end > until), n)
        closed, self.open = self.open[:n], self.open[n:]
        self.final += closed
        return closed

    def best_cut(self, begin: float, least: float) -> float:
        """Where to cut the sound: between two words, the first of which is final.

        That is where a sentence or a part of it ends, or in the longest pause. Final words behind
        it are heard again, and stay as they are.

        Args:
            begin: where the sound begins.
            least: before this, less would be cut off than is worth it.
        """
        both = [*self.final, *self.open[:1]]
        best, found = 0.0, self.until
        for word, after in pairwise(both):
            at = max(word.end, (word.end + after.start) / 2)
            ends = 1.0 if word.text[-1:] in ".?!" else 0.3 if word.text[-1:] in ",;:" else 0.1
            if at > max(begin, least) and ends + after.start - word.end > best:
                best, found = ends + after.start - word.end, at
        return found

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
    """The samples that are transcribed next: the sound since the last cut."""

    def __init__(self) -> None:
        self._pieces: list[F32] = []
        self._size = 0
        self._first = 0  # number of the first sample
        self._powers: list[float] = []  # of the blocks from number `_block` on
        self._block = 0
        self._rest = np.empty(0, np.float32)  # the samples of the block that is not whole yet

    @property
    def samples(self) -> F32:
        """All of them."""
        if len(self._pieces) != 1:
            self._pieces = [np.concatenate([np.empty(0, np.float32), *self._pieces])]
        return self._pieces[0]

    @property
    def begin(self) -> float:
        """Where the samples begin, in seconds."""
        return self._first / RATE

    @property
    def seconds(self) -> float:
        """How long they are."""
        return self._size / RATE

    @property
    def end(self) -> float:
        """Where they end, in seconds."""
        return self.begin + self.seconds

    def add(self, samples: F32) -> None:
        """More sound."""
        self._pieces.append(samples)
        self._size += len(samples)
        rest = np.concatenate([self._rest, samples])
        n = len(rest) // BLOCK
        blocks, self._rest = rest[: n * BLOCK].reshape(-1, BLOCK), rest[n * BLOCK :]
        self._powers += np.einsum("ij,ij->i", blocks, blocks).tolist()
        gone = min(max(-(-self._first // BLOCK) - self._block, 0), len(self._powers))
        del self._powers[:gone]
        self._block += gone

    def pauses(self) -> bool:
        """Whether somebody has spoken, and does not speak any more."""
        last = round(PAUSE * RATE / BLOCK)
        powers = self._powers[max(-(-self._first // BLOCK) - self._block, 0) :]
        if len(powers) <= last:
            return False
        now = max(powers[-last:])
        if now >= QUIETER * max(powers):  # so it is seldom necessary to look closer
            return False
        return bool(now < QUIETER * np.quantile(powers, 0.9))

    def trim(self, agreement: Agreement, *, ended: bool = False) -> list[Word]:
        """Cut off what needs no further transcription; returns words that become final by that.

        Args:
            agreement: has heard it.
            ended: whether all of its words are final, and a pause follows.
        """
        closed: list[Word] = []
        if ended and agreement.until > self.begin:
            self._cut(max(agreement.until, self.end - PAUSE / 2))
        elif not agreement.open and agreement.until <= self.begin:  # nobody has spoken
            self._cut(self.end - QUIET)
        elif self.seconds > CUT and agreement.until > self.begin:
            self._cut(agreement.best_cut(self.begin, self.end - CUT / 2))
        if self.seconds > FULL:  # transcriptions do not agree
            closed = agreement.close(self.end - QUIET)
            self._cut(max(agreement.until, self.end - CUT))
        return closed

    def drop(self, until: float) -> bool:
        """Forget what is before ``until``; returns whether there was anything."""
        before = self._first
        self._cut(until)
        return self._first > before

    def _cut(self, at: float) -> None:
        n = min(max(round(at * RATE) - self._first, 0), self._size)
        self._pieces = [self.samples[n:]]
        self._size -= n
        self._first += n


class Pace:
    """When a listener transcribes again.

    Where transcriptions take long, because many listeners share the model or the machine is slow,
    they come at greater distances. So listening takes less than half of the time.

    Args:
        step: seconds of sound from one transcription to the next, at least.

    Attributes:
        missing: seconds that were not transcribed yet.
        took: seconds that the last transcription took.
    """

    def __init__(self, step: float) -> None:
        self._step = step
        self.missing: float = 0.0
        self.took: float = 0.0

    @property
    def distance(self) -> float:
        """Seconds of sound from the last transcription to the next one."""
        return max(self._step, min(SLOWER * self.took, LONGEST))

    @property
    def due(self) -> bool:
        """Whether there is enough sound for the next transcription."""
        return self.missing > self.distance - BLOCK / RATE / 2

    @property
    def keeps_up(self) -> bool:
        """Whether what is missing is long enough for a transcription that comes early."""
        return self.missing >= min(SOONEST * self.took, LONGEST)

    @property
    def tries(self) -> int:
        """How many temperatures the next transcription may try.

        As many as the last one would have had time for, with all of its own, until the next one.
        """
        return max(int(self._step / (SOONEST * self.took)), 1) if self.took else 1

    @property
    def may_hurry(self) -> bool:
        """Whether it may come early, because a pause makes words final."""
        return self.keeps_up and self.missing >= PAUSE / 2


@dataclass(frozen=True, slots=True)
class Draft:
    """How the next transcription probably begins.

    Attributes:
        tokens: with times.
        certain: how many of them are final.
        words: how many words these are.
        until: where the last of them ends, in seconds of the sound.
    """

    tokens: tuple[int, ...] = ()
    certain: int = 0
    words: int = 0
    until: float = 0.0


def once(words: Sequence[Word], certain: int, seconds: float) -> list[Word]:
    """The words without a repetition at their end that nobody has time to say.

    If a sound ends without a pause, the model may write its last sentence again.

    Args:
        words: of a transcription.
        certain: how many of them are final.
        seconds: of the sound behind these.
    """
    if len(words) - certain > QUICK + QUICK * seconds:
        bare = [_bare(x) for x in words]
        seen: dict[tuple[str, ...], int] = {}
        for i in range(len(bare) - ALIKE + 1):
            first = seen.setdefault(tuple(bare[i : i + ALIKE]), i)
            if first <= i - ALIKE and i >= certain:
                return [*words[:i]]
    return [*words]


def draft_of(
    tokens: Sequence[int], words: Sequence[Word], agreement: Agreement, special: Special,
    decode: Callable[[Sequence[int]], str], *, begin: float, cut: bool,
) -> Draft:  # fmt: skip
    """The draft that a transcription leaves to the next one.

    Args:
        tokens: of the transcription, with times.
        words: of the transcription.
        agreement: has heard them.
        special: ids of special tokens.
        decode: tokens to text.
        begin: where the next sound begins.
        cut: whether that is later than before, so that words before it are not heard again.
    """
    # One of the open words may be the end of a final one, which is a word of its own there alone.
    final = len(words) - sum(any(x is y for y in words) for x in agreement.open)
    gone = sum((x.start + x.end) / 2 < begin for x in words[:final]) if cut else 0
    places = [i for i, token in enumerate(tokens) if token < special.end]
    text = [tokens[i] for i in places]
    until, first = (_tokens_of(words[:n], text, decode) for n in (final, gone))
    if until is None or first is None:
        return Draft()
    end = max(words[final - 1].end - begin, 0.0) if final > gone else 0.0
    if cut:  # its times are those of another window
        certain = until - first + 1 if final > gone else 0
        return Draft((special.times, *text[first:]), certain, final - gone, end)
    return Draft(tuple(tokens), places[until - 1] + 1 if until else 0, final, end)


def _tokens_of(
    words: Sequence[Word], text: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> int | None:
    """How many tokens of a text its first words have; None: it does not begin with them."""
    left = "".join("".join(x.text.split()) for x in words)
    if not left:
        return 0
    for piece, _, last in characters_of(text, decode):
        bare = "".join(piece.split())
        if not left.startswith(bare):
            return None
        left = left[len(bare) :]
        if not left:
            return last + 1
    return None


def context_of(agreement: Agreement, begin: float, first: int = 0) -> str:
    """The final text before the samples, or its end; of the final words from ``first`` on."""
    said = "".join(x.text for x in agreement.final[first:] if x.end <= begin + NEAR)
    return said[-CONTEXT:].partition(" ")[2] if len(said) > CONTEXT else said
