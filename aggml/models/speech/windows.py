"""Windows: decodes what is said in windows of 30 s, several of them together.

Here: the prompt of a window, greedy decoding, higher temperatures if the text is improbable or
repeats itself. Not here: which token may come (deciding.py), which windows there are (segments.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np
from numpy.random import default_rng

from aggml.models.decoder.sampling import without_nan
from aggml.models.speech.aligning import Aligner
from aggml.models.speech.deciding import SpeechRules, compression, log_softmax, suppressed
from aggml.models.speech.special import LANGUAGES
from aggml.models.speech.words import token_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models.decoder.decoder import Decoder
    from aggml.models.speech.listening import Listener
    from aggml.models.speech.special import Special
    from aggml.models.tokenizers import Vocabulary

    F32 = npt.NDArray[np.float32]

__all__ = ["TEMPERATURES", "Asked", "Said", "Window", "Windows"]

#: As in Whisper's paper. They are tried in turn until a text is believed: see `Said.believed`.
TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
REPEATS: Final = 2.4  # a text repeats itself if zlib makes it more than so many times shorter
UNSURE: Final = -1.0  # a text is a guess if the mean logarithm of its probabilities is below this
SILENT: Final = 0.6  # nobody speaks if the probability of `no_speech` is above this


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller wants of a recording.

    Attributes:
        language: its code; None: the model detects it.
        translate: whether to translate into English.
        times: whether the text has times.
        temperatures: tried in turn, until a text is believed.
        seed: of the draws at temperatures above 0.
        words: whether the times of words are wanted.
    """

    language: str | None = None
    translate: bool = False
    times: bool = True
    temperatures: tuple[float, ...] = TEMPERATURES
    seed: int | None = None
    words: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Thirty seconds of a spectrogram.

    Attributes:
        mel: (bands, frames).
        asked: what the caller wants.
        before: tokens of the text before this window.
        frames: how many belong to the recording; None: all.
    """

    mel: F32
    asked: Asked
    before: Sequence[int] = ()
    frames: int | None = None

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Said:
    """What is said in a window.

    Attributes:
        tokens: without the end token; with times if they were asked for.
        language: its code.
        temperature: at which the text was decoded.
        logprob: mean logarithm of the probabilities of its tokens.
        compression: how many times shorter zlib makes the text.
        no_speech: the probability that nobody speaks.
        begins: when each token that is no time begins, and when the last one ends, in seconds of
            the window; empty: not asked for.
    """

    tokens: list[int]
    language: str
    temperature: float
    logprob: float
    compression: float
    no_speech: float
    begins: tuple[float, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether nobody speaks: silence is probable, and the text is a guess."""
        return self.no_speech > SILENT and self.logprob < UNSURE

    @property
    def believed(self) -> bool:
        """Whether the text, or silence, is kept, so that no higher temperature is tried."""
        return self.silent or (self.compression <= REPEATS and self.logprob >= UNSURE)


@dataclass(slots=True)
class _Run:
    """One window at one temperature."""

    slot: int
    rules: SpeechRules
    temperature: float
    random: np.random.Generator
    position: int  # of the last token
    row: F32  # logits after the last token
    made: list[int] = field(default_factory=list)
    logprob: float = 0.0
    done: bool = False

    def step(self, most: int) -> None:
        """Choose the next token from the logits."""
        logits = without_nan(self.row)
        self.rules.apply(logits, self.made)
        logprobs = log_softmax(logits)
        if self.temperature <= 0:
            token = int(np.argmax(logits))
        else:
            share = np.exp(log_softmax(logits / np.float32(self.temperature)).astype(np.float64))
            token = int(self.random.choice(len(share), p=share / share.sum()))
        self.logprob += float(logprobs[token])
        if token == self.rules.special.end:
            self.done = True
            return
        self.made.append(token)
        self.position += 1
        self.done = len(self.made) >= most


class Windows:
    """Decodes windows, as many together as the decoder has sequences.

    Args:
        listener: runs the encoder.
        decoder: writes what was said.
        words: the vocabulary.
        special: ids of special tokens.
        context: tokens that a window may have, those of the text before it included.
    """

    def __init__(
        self, listener: Listener, decoder: Decoder, words: Vocabulary, special: Special,
        context: int,
    ) -> None:  # fmt: skip
        self._listener, self._decoder = listener, decoder
        self._words, self.special = words, special
        self.most = context // 2  # the most tokens of a window's text; one fewer of the text before
        self._aligner = Aligner(decoder, multilingual=special.multilingual)
        self._never = suppressed(words, special)
        blank = [*words.encode(" ", special=False), special.end]
        self._blank = np.array(blank, np.int64)

    async def say(self, windows: Sequence[Window]) -> list[Said]:
        """Decode windows; returns what is said in each of them.

        Cancellation: aborts the computation; its results are dropped.
        """
        found: list[Said] = []
        for first in range(0, len(windows), self._decoder.sequences):
            found += await self._together(windows[first : first + self._decoder.sequences])
        return found

    async def _together(self, windows: Sequence[Window]) -> list[Said]:
        await self._listener.listen([window.mel for window in windows])
        languages = [await self._language(slot, x.asked) for slot, x in enumerate(windows)]
        found: dict[int, Said] = {}
        open_ = list(range(len(windows)))
        for i in range(max(len(x.asked.temperatures) for x in windows)):
            tried = [k for k in open_ if i < len(windows[k].asked.temperatures)]
            if not tried:
                break
            said = await self._try(tried, windows, languages, i)
            found.update(said)
            open_ = [k for k in tried if not said[k].believed]
        for i, window in enumerate(windows):
            if window.asked.words and not found[i].silent:
                found[i] = await self._timed(i, window, found[i])
        return [found[i] for i in range(len(windows))]

    async def _timed(self, slot: int, window: Window, said: Said) -> Said:
        """What is said with the times of its tokens."""
        special = self.special
        text = [x for x in said.tokens if x < special.end]
        first = [special.begin]
        if special.multilingual:
            task = special.translate if window.asked.translate else special.transcribe
            first += [special.language(said.language), task]
        first.append(special.no_times)
        attention = await self._aligner.attention(slot, [*first, *text, special.end])
        frames = (window.mel.shape[1] if window.frames is None else window.frames) // 2
        steps = attention[:, len(first) - 1 : -1]
        begins = await anyio.to_thread.run_sync(token_times, steps, frames)
        return replace(said, begins=tuple(float(x) for x in begins))

    async def _language(self, slot: int, asked: Asked) -> str:
        """The language that was asked for, or the most probable one."""
        if not self.special.multilingual:
            return "en"
        if asked.language is not None:
            return asked.language
        logits = await self._decoder.prefill(slot, [self.special.begin])
        first = self.special.begin + 1
        own = without_nan(logits[first : first + self.special.languages])
        return LANGUAGES[int(np.argmax(own))]

    async def _try(
        self, slots: Sequence[int], windows: Sequence[Window], languages: Sequence[str], i: int
    ) -> dict[int, Said]:
        """Decode the windows of these sequences at their ``i``-th temperature."""
        runs: list[_Run] = []
        silence: dict[int, float] = {}
        for slot in slots:
            run, silence[slot] = await self._begun(slot, windows[slot], languages[slot], i)
            runs.append(run)
        for run in runs:
            run.step(self.most)
        while any(not run.done for run in runs):
            await self._advance(runs)
            for run in runs:
                if not run.done:
                    run.step(self.most)
        return {run.slot: self._said(run, languages[run.slot], silence[run.slot]) for run in runs}

    async def _begun(
        self, slot: int, window: Window, language: str, i: int
    ) -> tuple[_Run, float]:  # fmt: skip
        """Process a window's prompt; returns the window's run and the probability of silence."""
        special, asked = self.special, window.asked
        before = list(window.before)[-(self.most - 1) :]
        first = [*((special.previous, *before) if before else ()), special.begin]
        rest: list[int] = []
        if special.multilingual:
            task = special.translate if asked.translate else special.transcribe
            rest += [special.language(language), task]
        if not asked.times:
            rest.append(special.no_times)
        row = await self._decoder.prefill(slot, first)
        silence = float(np.exp(log_softmax(row)[special.no_speech]))
        if rest:
            row = await self._decoder.prefill(slot, rest, len(first))
        rules = SpeechRules(special, self._never, self._blank, asked.times)
        seed = None if asked.seed is None else [asked.seed, i]
        position = len(first) + len(rest) - 1
        return _Run(slot, rules, asked.temperatures[i], default_rng(seed), position, row), silence

    async def _advance(self, runs: Sequence[_Run]) -> None:
        """One decoding step of all sequences from the first to the last unfinished one.

        Finished sequences between them process their last token again, at the same position.
        """
        going = [run.slot for run in runs if not run.done]
        low, high = min(going), max(going) + 1
        ids, positions = [self.special.end] * (high - low), [0] * (high - low)
        for run in runs:
            if low <= run.slot < high:
                ids[run.slot - low] = run.made[-1] if run.made else self.special.begin
                positions[run.slot - low] = run.position
        rows = await self._decoder.decode(ids, positions, low)
        for run in runs:
            if not run.done:
                run.row = rows[run.slot - low]

    def _said(self, run: _Run, language: str, silence: float) -> Said:
        text = self._words.decode([x for x in run.made if x < self.special.end])
        return Said(
            run.made, language, run.temperature, run.logprob / (len(run.made) + 1),
            compression(text), silence,
        )  # fmt: skip
