"""Segments: a recording from its beginning to its end, window by window.

A window begins where the last segment of the previous window ended. Here: the segments of a window,
the begin of the next window, the text that it gets as context. Not here: decoding (windows.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint

from aggml.models.speech.features import HOP, spectrogram
from aggml.models.speech.listening import frames_for
from aggml.models.speech.waves import RATE, mono, resample
from aggml.models.speech.windows import Window
from aggml.models.speech.words import Word, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

    import numpy.typing as npt

    from aggml.models.speech.live import Draft
    from aggml.models.speech.special import Special
    from aggml.models.speech.windows import SpeechOptions, WindowText
    from aggml.models.tokenizers import Vocabulary

    F32 = npt.NDArray[np.float32]

__all__ = ["HOT", "Recording", "Segment", "segments"]

TIME: Final = 0.02  # seconds from a token of time to the next
MARGIN: Final = 200  # frames of silence behind a sound that goes on; with fewer, text is repeated
FEWEST: Final = 16  # tokens that are not certain of such a sound, at most, however short it is
DENSEST: Final = 10  # and for each second
STEPS: Final = 2  # frames of the spectrogram in that time
BEHIND: Final = 2 * HOP  # samples of silence behind a recording: its last frames reach into it
HOT: Final = 0.5  # text of a higher temperature is not given to the next window as context


@dataclass(frozen=True, slots=True)
class Segment:
    """What is said between two times of a recording.

    Attributes:
        start, end: seconds.
        text: begins with a space if the model begins a new word.
        tokens: of the text and, if they were asked for, of its times.
        language: its code, such as "en".
        temperature: at which the text was decoded; above 0 the model was not sure.
        logprob: mean logarithm of the probabilities of the tokens of its window.
        compression: how many times shorter zlib makes the text of its window.
        no_speech: the probability that nobody speaks in its window.
        words: with their times, if they were asked for.
    """

    start: float
    end: float
    text: str
    tokens: list[int] = field(repr=False)
    language: str
    temperature: float
    logprob: float
    compression: float
    no_speech: float
    words: list[Word] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Recording:
    """The spectrogram of a recording.

    Attributes:
        mel: (bands, frames), followed by a moment of silence.
        frames: of the recording itself.
    """

    mel: F32
    frames: int

    @classmethod
    async def of(cls, samples: npt.ArrayLike, rate: int, bands: int) -> Recording:
        """The spectrogram of samples at any rate; computed in a thread.

        Raises:
            InvalidArgument: as `mono` and `resample`.
        """

        def make() -> Recording:
            heard = resample(mono(samples), rate)
            return cls(spectrogram(heard, bands, BEHIND), len(heard) // HOP)

        return await anyio.to_thread.run_sync(make)

    def window(self, at: int, length: int) -> F32:
        """The ``length`` frames from ``at`` on; zeros after the end of the recording."""
        found = np.zeros((len(self.mel), length), np.float32)
        n = min(length, self.frames - at)
        found[:, :n] = self.mel[:, at : at + n]
        return found


async def segments(
    say: Callable[[Window], Awaitable[WindowText]],
    recording: Recording,
    asked: SpeechOptions,
    words: Vocabulary,
    special: Special,
    *,
    length: int,
    prompt: Sequence[int] = (),
    previous: bool = True,
    draft: Draft | None = None,
) -> AsyncGenerator[Segment]:
    """The segments of a recording, each as soon as its window is decoded.

    Args:
        say: decodes a window.
        recording: what was recorded.
        asked: what the caller wants.
        words: the vocabulary.
        special: ids of special tokens.
        length: frames of a window.
        prompt: tokens of a text as if it had been said before.
        previous: whether the text of each window is given to the next one as context.
        draft: how the text probably begins; then the sound is one window and at most one segment.
            The window is as short as it may be, but if the text repeats itself, it is decoded
            again with the longest window. Higher temperatures are tried after that. None: there
            are as many windows as are needed.
    """
    longest = length
    if draft is not None:
        length = frames_for(recording.frames + MARGIN, length)
    told: list[int] = list(prompt)
    at = 0
    while at < recording.frames:
        size = min(length, recording.frames - at)
        window = Window(recording.window(at, length), asked, tuple(told), size)
        if draft is not None and not at:
            most = draft.certain + FEWEST + round((size * HOP / RATE - draft.until) * DENSEST)
            window = replace(window, draft=draft.tokens, certain=draft.certain, most=most)
        if draft is None or at or length == longest:
            said = await say(window)
        else:
            said = await _say_short(say, window, recording.window(at, longest))
        asked = replace(asked, language=said.language)
        if said.silent:
            at += size
            continue
        if draft is None:
            found, step = _parts(said, special, size)
        else:
            found, step = [(0.0, size * HOP / RATE, said.tokens)], size
        count = 0  # tokens of the segments before
        for start, end, tokens in found:
            begin = at * HOP / RATE
            spoken = [x for x in tokens if x < special.end]
            text = words.decode(spoken)
            times = [begin + x for x in said.begins[count : count + len(spoken) + 1]]
            count += len(spoken)
            if start != end and text.strip():
                yield Segment(
                    round(begin + start, 2), round(begin + end, 2), text, tokens, said.language,
                    said.temperature, said.logprob, said.compression, said.no_speech,
                    words_of(spoken, times, words.decode, said.language) if times else [],
                )  # fmt: skip
                told += tokens
        if not previous or said.temperature > HOT:
            told.clear()
        at += step
        await checkpoint()


async def _say_short(
    say: Callable[[Window], Awaitable[WindowText]], window: Window, longest: F32
) -> WindowText:
    """What is said in a window that is shorter than ``longest``, which begins where it does."""
    asked = window.asked
    said = await say(replace(window, asked=replace(asked, temperatures=asked.temperatures[:1])))
    if said.repeats:  # in longer windows the model errs less
        certain = window.draft[: window.certain]
        return await say(replace(window, mel=longest, draft=certain))
    if said.believed or len(asked.temperatures) == 1:
        return said
    hotter = replace(asked, temperatures=asked.temperatures[1:])
    return await say(replace(window, asked=hotter))


def _parts(
    said: WindowText, special: Special, size: int
) -> tuple[list[tuple[float, float, list[int]]], int]:
    """The segments of a window of ``size`` frames, and after how many frames the next one begins.

    A segment is its start and end in seconds, and its tokens. If the window ends within a segment,
    the next window begins with that segment.
    """
    tokens = said.tokens
    is_time = [token >= special.times for token in tokens]
    cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    ends_once = is_time[-2:] == [False, True]
    if cuts:
        if ends_once:
            cuts.append(len(tokens))
        found = [_between(tokens[first:last], special) for first, last in _pairs(cuts)]
        if ends_once:
            return found, size
        return found, max((tokens[cuts[-1] - 1] - special.times) * STEPS, 1)
    times = [token - special.times for token in tokens if token >= special.times]
    seconds = size * HOP / RATE
    end = times[-1] * TIME if times and times[-1] else seconds
    return [(0.0, end, tokens)], size


def _pairs(cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for last in cuts:
        yield first, last
        first = last


def _between(tokens: list[int], special: Special) -> tuple[float, float, list[int]]:
    """Start, end and tokens of a segment whose first and last tokens are times."""
    return (tokens[0] - special.times) * TIME, (tokens[-1] - special.times) * TIME, tokens
