"""Windows: decodes what is said in windows of 30 s, several of them together.

Here: the prompt of a window, greedy decoding, higher temperatures if the text is improbable or
repeats itself. A window that was decoded before, with less sound, has a draft: the device computes
the logits after all of its tokens in one step, and they are taken as long as they are the most
probable ones. Not here: which token may come (deciding.py), several texts side by side (beams.py),
which windows there are (segments.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np
from numpy.random import default_rng

from aggml.models.decoder.sampling import without_nan
from aggml.models.speech.aligning import Aligner
from aggml.models.speech.beams import Beams, SequenceMover
from aggml.models.speech.deciding import SpeechRules, compression, log_softmax, suppressed_tokens
from aggml.models.speech.prompts import prompts
from aggml.models.speech.special import LANGUAGES
from aggml.models.speech.words import token_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from aggml.models.decoder.decoder import Decoder
    from aggml.models.speech.listening import Listener
    from aggml.models.speech.special import Special
    from aggml.models.tokenizers import Vocabulary

    F32 = npt.NDArray[np.float32]

__all__ = ["TEMPERATURES", "SpeechOptions", "Thresholds", "Window", "WindowText", "Windows"]

#: As in Whisper's paper. They are tried in turn until a text is `WindowText.believed`.
TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a text is not believed. The defaults are those of Whisper's paper; None: never.

    Attributes:
        compression: a text repeats itself if zlib makes it more than so many times shorter.
        logprob: a text is a guess if the mean logarithm of its probabilities is below this.
        no_speech: nobody speaks if the probability of `no_speech` is above this, and the text is a
            guess. Without ``logprob``, that probability alone counts.
    """

    compression: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6

    def is_repetition(self, compression: float) -> bool:
        """Whether a text repeats itself that zlib makes so many times shorter."""
        return self.compression is not None and compression > self.compression


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """What a caller wants of a recording.

    Attributes:
        language: its code; None: the model detects it.
        translate: whether to translate into English.
        times: whether the text has times.
        temperatures: tried in turn, until a text is believed.
        seed: of the draws at temperatures above 0.
        words: whether the times of words are wanted.
        beam: how many texts are continued side by side at temperature 0.
        thresholds: of a text that is believed.
    """

    language: str | None = None
    translate: bool = False
    times: bool = True
    temperatures: tuple[float, ...] = TEMPERATURES
    seed: int | None = None
    words: bool = False
    beam: int = 1
    thresholds: Thresholds = Thresholds()


@dataclass(frozen=True, slots=True)
class Window:
    """Thirty seconds of a spectrogram, or fewer.

    Attributes:
        mel: (bands, frames).
        asked: what the caller wants.
        before: tokens of the text before this window.
        frames: how many belong to the recording; None: all.
        draft: tokens that its text probably begins with.
        certain: how many of them it begins with in any case.
        most: the most tokens; None: as many as fit.
    """

    mel: F32
    asked: SpeechOptions
    before: Sequence[int] = ()
    frames: int | None = None
    draft: Sequence[int] = ()
    certain: int = 0
    most: int | None = None

    def __len__(self) -> int:
        """How many of the decoder's sequences it needs."""
        return self.asked.beam


@dataclass(frozen=True, slots=True)
class WindowText:
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
        certain: how many of the tokens the window had to begin with; they do not count in
            ``logprob`` and ``compression``.
        thresholds: of a text that is believed.
    """

    tokens: list[int]
    language: str
    temperature: float
    logprob: float
    compression: float
    no_speech: float
    begins: tuple[float, ...] = ()
    certain: int = 0
    thresholds: Thresholds = Thresholds()

    @property
    def is_guess(self) -> bool:
        """Whether the text is improbable."""
        return self.thresholds.logprob is not None and self.logprob < self.thresholds.logprob

    @property
    def silent(self) -> bool:
        """Whether nobody speaks: silence is probable, and the text is a guess."""
        most = self.thresholds.no_speech
        if most is None or self.no_speech <= most or self.certain:
            return False
        return self.thresholds.logprob is None or self.is_guess

    @property
    def repeats(self) -> bool:
        """Whether the text repeats itself."""
        return self.thresholds.is_repetition(self.compression)

    @property
    def believed(self) -> bool:
        """Whether the text, or silence, is kept, so that no higher temperature is tried."""
        return self.silent or not (self.repeats or self.is_guess)


@dataclass(slots=True)
class _Run:
    """One window at one temperature."""

    slot: int
    rules: SpeechRules
    temperature: float
    random: np.random.Generator
    position: int  # of the last token
    most: int  # tokens
    row: F32  # logits after the last token
    made: list[int] = field(default_factory=list)
    draft: deque[tuple[int, F32]] = field(default_factory=deque)  # tokens, logits after each
    certain: int = 0  # of the tokens made, how many were given
    logprob: float = 0.0
    done: bool = False
    size: int = 1

    @property
    def rows(self) -> list[F32]:
        """Logits after the last token, as `Beams` has them."""
        return [self.row]

    @rows.setter
    def rows(self, rows: list[F32]) -> None:
        (self.row,) = rows

    @property
    def last(self) -> list[int]:
        """The last token."""
        return [self.made[-1] if self.made else self.rules.special.begin]

    @property
    def best(self) -> tuple[list[int], float]:
        """The tokens, and the sum of the logarithms of their probabilities."""
        return self.made, self.logprob

    def step(self) -> None:
        """Choose the next token from the logits, and further ones while the draft has them, too."""
        self._choose()
        while self.draft and not self.done:
            token, row = self.draft.popleft()
            if token != self.made[-1]:
                break
            self.row = row
            self._choose()
        self.draft.clear()

    def _choose(self) -> None:
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
        self.done = len(self.made) >= self.most


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
        self._words = words
        self.special: Special = special
        self.most: int = (
            context // 2
        )  # the most tokens of a window's text; one fewer of the text before
        self._aligner = Aligner(decoder, multilingual=special.multilingual)
        listener.freed.append(self._aligner.clear)
        self._never = suppressed_tokens(words, special)
        blank = [*words.encode(" ", special=False), special.end]
        self._blank = np.array(blank, np.int64)

    async def say(self, windows: Sequence[Window]) -> list[WindowText]:
        """Decode windows; returns what is said in each of them.

        Cancellation: aborts the computation; its results are dropped.
        """
        found: list[WindowText] = []
        together: list[Window] = []
        for window in windows:
            if sum(map(len, together)) + len(window) > self._decoder.sequences:
                found += await self._together(together)
                together = []
            together.append(window)
        return found + await self._together(together)

    async def _together(self, windows: Sequence[Window]) -> list[WindowText]:
        sizes = [len(window) for window in windows]
        slots = [sum(sizes[:i]) for i in range(len(windows))]
        await self._listener.listen([window.mel for window in windows], slots)
        languages = [
            await self._language(slot, x.asked) for slot, x in zip(slots, windows, strict=True)
        ]
        found: dict[int, WindowText] = {}
        open_ = list(range(len(windows)))
        for i in range(max(len(x.asked.temperatures) for x in windows)):
            tried = [k for k in open_ if i < len(windows[k].asked.temperatures)]
            if not tried:
                break
            said = await self._try(tried, slots, windows, languages, i)
            found.update(said)
            open_ = [k for k in tried if not said[k].believed]
        timed = [
            k
            for k, x in enumerate(windows)
            if x.asked.words and not found[k].silent and any(map(self._is_text, found[k].tokens))
        ]
        if timed:
            found |= await self._find_times(timed, slots, windows, found)
        return [found[i] for i in range(len(windows))]

    def _is_text(self, token: int) -> bool:
        return token < self.special.end

    async def _find_times(
        self, timed: Sequence[int], slots: Sequence[int], windows: Sequence[Window],
        found: Mapping[int, WindowText],
    ) -> dict[int, WindowText]:  # fmt: skip
        """What is said in some windows, with the times of the tokens."""
        special = self.special
        low = slots[timed[0]]
        texts: list[Sequence[int]] = [[special.end]] * (slots[timed[-1]] + 1 - low)
        firsts, frames = {}, {}
        for k in timed:
            said, window = found[k], windows[k]
            first = [special.begin]
            if special.multilingual:
                task = special.translate if window.asked.translate else special.transcribe
                first += [special.language(said.language), task]
            first.append(special.no_times)
            text = filter(self._is_text, said.tokens)
            texts[slots[k] - low] = [*first, *text, special.end]
            firsts[k] = len(first)
            frames[k] = (window.mel.shape[1] if window.frames is None else window.frames) // 2
        # Rounded up to fifths of a whole window, since the graph is for so many rows.
        whole, rows = self._listener.frames // 2, max(windows[k].mel.shape[1] for k in timed) // 2
        fifths = -(-rows * 5 // whole)
        most = -(-fifths * whole // 5)
        attention = await self._aligner.attention_of(low, texts, most)

        def times() -> dict[int, WindowText]:
            timed_ = {}
            for k in timed:
                steps = attention[slots[k] - low][:, firsts[k] - 1 : -1]
                begins = token_times(steps, frames[k])
                timed_[k] = replace(found[k], begins=tuple(float(x) for x in begins))
            return timed_

        return await anyio.to_thread.run_sync(times)

    async def _language(self, slot: int, asked: SpeechOptions) -> str:
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
        self,
        tried: Sequence[int],
        slots: Sequence[int],
        windows: Sequence[Window],
        languages: Sequence[str],
        i: int,
    ) -> dict[int, WindowText]:
        """Decode these windows, each from its sequence on, at their ``i``-th temperature."""
        runs: list[_Run | Beams] = []
        mover = SequenceMover(self._decoder)
        try:
            begun, silence = await self._begin_runs(tried, slots, windows, languages, i)
            for k, one in zip(tried, begun, strict=True):
                beam = windows[k].asked.beam
                if beam > 1 and one.temperature <= 0:
                    await mover.spread(one.slot, beam, one.position + 1)
                    beams = Beams(one.slot, beam, one.rules, one.position, one.most, [one.row])
                    runs.append(beams)
                else:
                    runs.append(one)
            firsts = [run.position + 1 for run in runs]
            while True:
                going = [run for run in runs if not run.done]
                await anyio.to_thread.run_sync(_step_all, going)  # a row of logits takes 1 ms
                for run, first in zip(runs, firsts, strict=True):
                    if isinstance(run, Beams) and not run.done:
                        await mover.move(run.moves, first, run.position)
                if all(run.done for run in runs):
                    break
                await self._advance(runs)
        finally:
            mover.close()
        return {
            k: self._finish_run(run, windows[k].asked, i, languages[k], silent)
            for k, run, silent in zip(tried, runs, silence, strict=True)
        }

    async def _begin_runs(
        self,
        tried: Sequence[int],
        slots: Sequence[int],
        windows: Sequence[Window],
        languages: Sequence[str],
        i: int,
    ) -> tuple[list[_Run], list[float]]:
        """Process the prompts and drafts of windows.

        Returns their runs, and the probability of silence in each.
        """
        special, low = self.special, slots[tried[0]]
        n = slots[tried[-1]] + 1 - low
        texts: list[tuple[Sequence[int], int]] = [([special.end], 0)] * n
        ends: list[Sequence[int]] = [()] * n
        runs = []
        for k in tried:
            window, asked = windows[k], windows[k].asked
            before = list(window.before)[-(self.most - 1) :]
            prompt = [*((special.previous, *before) if before else ()), special.begin]
            begin = len(prompt) - 1
            if special.multilingual:
                task = special.translate if asked.translate else special.transcribe
                prompt += [special.language(languages[k]), task]
            if not asked.times:
                prompt.append(special.no_times)
            heat = asked.temperatures[i]
            most = min(self.most, 2 * self.most - len(prompt), window.most or self.most)
            draft = window.draft if heat <= 0 else window.draft[: window.certain]
            draft = list(draft)[: most - 1] if asked.beam == 1 else []
            given = min(window.certain, len(draft))
            rules = SpeechRules(special, self._never, self._blank, asked.times)
            seed = None if asked.seed is None else [asked.seed, i]
            run = _Run(
                slots[k], rules, heat, default_rng(seed), len(prompt) - 1 + given, most,
                np.empty(0, np.float32), draft[:given], certain=given,
            )  # fmt: skip
            run.draft.extend((x, run.row) for x in draft[given:])
            at = slots[k] - low
            texts[at] = [*prompt, *draft], 0
            ends[at] = [begin, *range(len(prompt) - 1 + given, len(prompt) + len(draft))]
            runs.append(run)
        future = await self._decoder.queue(prompts(self._decoder, low, texts, ends))
        (logits,) = await future
        rows = np.asarray(logits).reshape(-1, self._decoder.vocabulary)
        firsts, at = [], 0
        for run in runs:
            firsts.append(rows[at])
            run.row = rows[at + 1]
            after = rows[at + 2 :]
            run.draft = deque((x, after[i]) for i, (x, _) in enumerate(run.draft))
            at += 2 + len(run.draft)

        def silence() -> list[float]:
            return [float(np.exp(log_softmax(row)[special.no_speech])) for row in firsts]

        return runs, await anyio.to_thread.run_sync(silence)

    async def _advance(self, runs: Sequence[_Run | Beams]) -> None:
        """One decoding step of all sequences from the first to the last unfinished one.

        Finished sequences between them process their last token again, at the same position.
        """
        going = [run for run in runs if not run.done]
        low = min(run.slot for run in going)
        high = max(run.slot + run.size for run in going)
        ids, positions = [self.special.end] * (high - low), [0] * (high - low)
        for run in runs:
            for k, token in enumerate(run.last):
                if low <= run.slot + k < high:
                    ids[run.slot + k - low] = token
                    positions[run.slot + k - low] = run.position
        rows = await self._decoder.decode(ids, positions, low)
        for run in going:
            run.rows = list(rows[run.slot - low : run.slot + run.size - low])

    def _finish_run(
        self, run: _Run | Beams, asked: SpeechOptions, i: int, language: str, silence: float
    ) -> WindowText:  # fmt: skip
        made, logprob = run.best
        given = run.certain if isinstance(run, _Run) else 0
        text = self._words.decode([x for x in made[given:] if x < self.special.end])
        mean = logprob / (len(made) - given + 1)
        return WindowText(
            made, language, asked.temperatures[i], mean, compression(text), silence, certain=given,
            thresholds=asked.thresholds,
        )  # fmt: skip


def _step_all(runs: Sequence[_Run | Beams]) -> None:
    for run in runs:
        run.step()
