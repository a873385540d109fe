"""Spans: where somebody speaks, from the probabilities of successive windows of a sound.

Here: plain steps on values, without an event loop. Not here: the probabilities (voice.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.speech.waves import RATE

if TYPE_CHECKING:
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["Span", "SpanFinder", "SpanRules"]

UNSURE: Final = 0.15  # speech ends only if its probability is so far below the threshold


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which somebody speaks.

    Attributes:
        start, end: seconds from the beginning of the sound.
        samples: of this time, float32, 16,000 a second.
    """

    start: float
    end: float
    samples: F32 = field(repr=False)


@dataclass(frozen=True, slots=True)
class SpanRules:
    """When speech begins and ends; see `VoiceModel.listen`. Times are numbers of samples."""

    threshold: float
    silence: int
    shortest: int
    pad: int
    longest: int | None


class SpanFinder:
    """Makes spans of windows and their probabilities, one by one.

    It keeps the samples of the span that has begun; in silence, only those that the next span could
    begin with.
    """

    def __init__(self, rules: SpanRules) -> None:
        self._rules = rules
        self._kept: list[F32] = []
        self._first = 0  # number of the first sample that is kept
        self._count = 0  # samples so far
        self._speech: int | None = None  # where speech began
        self._quiet: int | None = None  # where the probability fell
        self._before = 0  # the end of the span before
        self._cut = False  # whether that span was cut, and goes on in this one

    def take(self, window: F32, probability: float) -> Span | None:
        """The next window; returns a span if it ends one."""
        rules, at = self._rules, self._count
        self._kept.append(window)
        self._count += len(window)
        if probability >= rules.threshold:
            self._quiet = None
            if self._speech is None:
                self._speech = at
        elif self._speech is None:
            self._drop(max(self._before, self._count - rules.pad))
        elif self._quiet is None and probability < rules.threshold - UNSURE:
            self._quiet = at
        if self._speech is None:
            return None
        if self._quiet is not None and self._count - self._quiet >= rules.silence:
            return self._end(self._quiet, min(self._quiet + rules.pad, self._count))
        if rules.longest is not None and self._count - self._start >= rules.longest:
            return self._end(self._count, self._count, goes_on=True)
        return None

    def finish(self, rest: F32) -> Span | None:
        """The sound ends with these samples, fewer than a window has."""
        self._kept.append(rest)
        self._count += len(rest)
        if self._speech is None:
            return None
        if self._quiet is None:
            return self._end(self._count, self._count)
        return self._end(self._quiet, min(self._quiet + self._rules.pad, self._count))

    @property
    def certain(self) -> float | None:
        """Where the span starts that has begun, in seconds; None: it may prove to be noise."""
        if self._speech is None:
            return None
        spoken = (self._count if self._quiet is None else self._quiet) - self._speech
        if spoken < (1 if self._cut else max(self._rules.shortest, 1)):
            return None
        return self._start / RATE

    @property
    def start(self) -> float | None:
        """Where the span that has begun starts, in seconds; it may prove to be noise."""
        return None if self._speech is None else self._start / RATE

    @property
    def _start(self) -> int:
        """Where the span that has begun starts, with the time before it."""
        assert self._speech is not None
        return max(self._speech - self._rules.pad, self._before)

    def _end(self, speech_end: int, end: int, *, goes_on: bool = False) -> Span | None:
        assert self._speech is not None
        start, length = self._start, speech_end - self._speech
        whole_speech = not (goes_on or self._cut)
        self._speech = end if goes_on else None
        self._quiet = None
        self._cut = goes_on
        if end <= start or (whole_speech and length < self._rules.shortest):
            return None  # its samples stay: the next span may begin within them
        whole = np.concatenate(self._kept)
        found = whole[start - self._first : end - self._first]
        self._kept, self._first = [whole[end - self._first :]], end
        self._before = end
        return Span(start / RATE, end / RATE, found.copy())

    def _drop(self, until: int) -> None:
        """Forget samples before number ``until``."""
        while self._kept and self._first + len(self._kept[0]) <= until:
            self._first += len(self._kept.pop(0))
