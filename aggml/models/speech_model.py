"""SpeechModel: a model that writes what is said, from samples to segments.

Here: the public object. Not here: loading (loading.py), the computation (speech/).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.to_thread

from aggml import InvalidArgument
from aggml.models.arguments import (
    file_path,
    flag,
    integer,
    number,
    one_text,
    recordings_of,
    show,
    urgency_of,
)
from aggml.models.engine.batches import BatchEngine
from aggml.models.errors import ModelError
from aggml.models.model import Model
from aggml.models.speech.chunks import heard_chunks
from aggml.models.speech.listening import Listener
from aggml.models.speech.live import (
    SETTLED,
    Agreement,
    Draft,
    LiveSound,
    Pace,
    Partial,
    context_of,
    draft_of,
    once,
)
from aggml.models.speech.segments import HOT, Recording, Segment, segments
from aggml.models.speech.sounds import read_sound_file
from aggml.models.speech.special import LANGUAGES, Special
from aggml.models.speech.waves import RATE, rate_of
from aggml.models.speech.windows import (
    TEMPERATURES,
    SpeechOptions,
    Thresholds,
    Window,
    Windows,
    WindowText,
)
from aggml.models.speech.words import Word
from aggml.models.voice_model import VoiceModel, follow_voice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Sequence

    import numpy.typing as npt

    from aggml.models.decoder.decoder import F32, Decoder
    from aggml.models.description import SpeechDescription
    from aggml.models.model import Closing, TokenIds
    from aggml.models.tokenizers import Vocabulary
    from aggml.models.voice_model import VoiceFollower

__all__ = ["SpeechModel"]

BREATH: Final = 0.2  # seconds of silence that are kept, as speech is noticed a little late
HOTTEST: Final = 1e30  # temperature; logits are float32
MOST_WAITING: Final = 1 << 16  # windows of tasks that wait at a time; more are refused


class SpeechModel(Model):
    """A model of speech: `load` returns it for Whisper.

    ``async for segment in model.transcribe(samples): print(segment.start, segment.text)``

    Attributes:
        architecture: as the file names it.
        tokenizer: token ids to text and back.
        ctx: tokens that a window may have, those of the previous text included.
        slots: how many windows are decoded together.
    """

    def __init__(
        self,
        model: SpeechDescription,
        decoder: Decoder,
        tokenizer: Vocabulary | None,
        *,
        owned: Closing | None = None,
    ) -> None:
        self.architecture: str = model.architecture
        self.ctx: int = model.text.context_length
        self.slots: int = decoder.sequences
        self._listener = Listener(model, decoder)
        super().__init__(self._listener, tokenizer, owned)
        self._model = model
        self._decoder = decoder
        self._windows: Windows | None = None
        self._batches: BatchEngine[Window, WindowText] = BatchEngine(
            self._say, full=self.slots, max_waiting=MOST_WAITING
        )

    @property
    def width(self) -> int:
        """Elements of a token's vector between layers."""
        return self._model.text.width

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return self._decoder.vocabulary

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that it knows."""
        special = Special.of(self.vocabulary_size)
        return LANGUAGES[: special.languages] if special.multilingual else ("en",)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.slots} windows at a time"
        return f"<SpeechModel {self.architecture}, {len(self.languages)} languages, {state}>"

    async def embed(self, texts: Sequence[str]) -> F32:
        """A model of speech makes no vectors of texts.

        Raises:
            Unsupported: always.
        """
        raise self._cannot("embed", "transcribes speech, and makes no vectors of texts")

    async def embed_ids(self, sequences: Sequence[TokenIds]) -> F32:
        """A model of speech makes no vectors of texts.

        Raises:
            Unsupported: always.
        """
        raise self._cannot("embed_ids", "transcribes speech, and makes no vectors of texts")

    def transcribe(  # type: ignore[override]  # its options by name
        self,
        samples: npt.ArrayLike | str | os.PathLike[str],
        rate: int | None = None,
        *,
        words: bool = False,
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        timestamps: bool = True,
        temperature: float | Sequence[float] = TEMPERATURES,
        prompt: str = "",
        previous: bool = True,
        seed: int | None = None,
        beam_size: int = 1,
        compression_ratio_threshold: float | None = 2.4,
        logprob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
    ) -> AsyncGenerator[Segment]:
        """Write what is said, segment by segment.

        Args:
            samples: floats from -1 to 1 or integers; if (samples, channels), channels are averaged.
                Or the path of a sound file: WAV, or with ``aggml[audio]`` mp3, ogg, m4a, flac,
                webm and whatever else FFmpeg reads.
            rate: samples a second; None: 16,000. A file has its own.
            words: whether segments have their words, each with the time at which it is said.
            language: the code of the language, such as "de"; None: the model detects it in the
                first window.
            task: "translate" writes English, whatever language is spoken.
            timestamps: whether the model writes times; if not, a segment is a window of 30 s.
            temperature: 0 takes the most probable tokens. Several temperatures are tried in turn,
                until the text neither repeats itself nor is improbable.
            prompt: a text as if it had been said before, which shows names and spelling.
            previous: whether the text of each window is given to the next one as context.
            seed: of the draws at temperatures above 0; None: a different seed each time.
            beam_size: how many texts of a window are continued side by side at temperature 0, of
                which the most probable one is kept; at most ``slots``. 1: the most probable token
                is taken each time.
            compression_ratio_threshold: a text that zlib makes more than so many times shorter
                repeats itself, so the next temperature is tried. None: no text does.
            logprob_threshold: if the mean logarithm of the probabilities of a text's tokens is
                below this, the text is a guess, and the next temperature is tried. None: no text
                is.
            no_speech_threshold: a guess is left out if the probability of silence is above this.
                None: nothing is left out.

        Yields:
            Each segment as soon as its window of 30 s is decoded.

        Raises:
            InvalidArgument: an unknown language or task, an argument of another type or out of its
                range. By the first segment: ``samples`` is no audio.
            ModelError: the file has no vocabulary. By the first segment: the sound file cannot be
                read.
            InvalidState: the model is closed.

        Cancellation, and closing the generator: aborts the window that is being decoded.
        """
        place = "transcribe"
        self._check_open(place)
        asked = self._read_request(place, language, task, timestamps, temperature, seed)
        asked = replace(
            asked, words=flag(place, "words", words), beam=self._beam(place, beam_size),
            thresholds=_thresholds(
                place, compression_ratio_threshold, logprob_threshold, no_speech_threshold
            ),
        )  # fmt: skip
        hertz = RATE if rate is None else rate_of(place, rate)
        if isinstance(samples, bytes):
            raise InvalidArgument(
                f"[{place}] samples is {show(samples)}, expected an array or a path: "
                "read_sound(bytes of a file) gives samples and rate"
            )
        if isinstance(samples, (str, os.PathLike)):
            if rate is not None:
                raise InvalidArgument(
                    f"[{place}] rate is {hertz}, but samples is a path: a file has its own rate"
                )
            samples = file_path(place, "samples", samples)
        return self._segments(
            samples, hertz, asked,
            one_text(place, "prompt", prompt), flag(place, "previous", previous),
        )  # fmt: skip

    async def transcribe_all(
        self,
        recordings: Sequence[npt.ArrayLike],
        rate: int | None = None,
        **options: Any,  # noqa: ANN401 those of `transcribe`
    ) -> list[list[Segment]]:
        """Write what is said in each of several recordings; ``slots`` windows are decoded together.

        Args:
            recordings: the samples of each recording.
            rate: samples a second; None: 16,000.
            options: those of `transcribe`.

        Raises:
            InvalidArgument: as for `transcribe`.

        Cancellation: aborts the computation.
        """
        samples = recordings_of("transcribe_all", recordings)
        found: list[list[Segment]] = [[] for _ in samples]
        failed: list[Exception] = []

        async def one(i: int) -> None:
            try:
                async with contextlib.aclosing(
                    self.transcribe(samples[i], rate, **options)
                ) as said:
                    async for segment in said:
                        found[i].append(segment)
            except Exception as error:
                failed.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for i in range(len(samples)):
                tasks.start_soon(one, i)
        if failed:
            raise failed[0]
        return found

    def listen(  # type: ignore[override]  # its options by name
        self,
        chunks: Iterable[npt.ArrayLike] | AsyncIterable[npt.ArrayLike],
        rate: int = RATE,
        *,
        language: str | None = None,
        prompt: str = "",
        step: float = 1.0,
        temperature: float | Sequence[float] = 0.0,
        seed: int | None = None,
        beam_size: int = 1,
        compression_ratio_threshold: float | None = 2.4,
        logprob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        vad: VoiceModel | None = None,
    ) -> AsyncGenerator[Partial]:
        """Write what is said in a sound that still goes on.

        ``async for partial in model.listen(chunks): print(partial.text, partial.final)``

        Args:
            chunks: pieces of the sound, of any length, as they come: floats from -1 to 1 or
                integers; if (samples, channels), channels are averaged. An asynchronous
                generator is closed at the end.
            rate: samples a second.
            language: the code of the language; None: the model detects it, and keeps to it from
                the first final piece on.
            prompt: a text as if it had been said before, which shows names and spelling.
            step: seconds of sound from one transcription to the next. Where a transcription takes
                longer than that, the next one comes later.
            temperature: as for `transcribe`, but of several temperatures only those are tried for
                which there is time until the next transcription; without that, the first one.
                Drawn texts seldom agree with each other, so their words are final later.
            seed: as for `transcribe`.
            beam_size: as for `transcribe`.
            compression_ratio_threshold: as for `transcribe`, but the text is decoded again in a
                window of 30 s before another temperature is tried.
            logprob_threshold: as for `transcribe`; only tokens that are not final count.
            no_speech_threshold: as for `transcribe`.
            vad: a detector of speech, which any number of listeners may share. Then only what it
                takes for speech is transcribed, and where speech ends, all words are final.

        Yields:
            Final pieces, and behind them the piece that may still change, whenever it did.

        Raises:
            InvalidArgument: an argument of another type or out of its range. By the first piece: a
                chunk is no audio.
            ModelError: the file has no vocabulary.
            InvalidState: the model is closed.

        Cancellation, and closing the generator: aborts the window that is being decoded.
        """
        place = "listen"
        self._check_open(place)
        asked = self._read_request(place, language, "transcribe", True, temperature, seed)
        asked = replace(
            asked, words=True, beam=self._beam(place, beam_size),
            thresholds=_thresholds(
                place, compression_ratio_threshold, logprob_threshold, no_speech_threshold
            ),
        )  # fmt: skip
        hertz = rate_of(place, rate)
        seconds = number(place, "step", step, 0, above=True)
        before = one_text(place, "prompt", prompt)
        if vad is not None and not isinstance(vad, VoiceModel):
            raise InvalidArgument(
                f"[{place}] vad is {show(vad)}, expected a detector of speech, as load returns it "
                "for silero_vad_16k.safetensors"
            )
        voice = None if vad is None else follow_voice(vad)
        pieces = heard_chunks(place, chunks, hertz)
        return self._live(pieces, asked, before, seconds, voice)

    async def _live(
        self, pieces: AsyncGenerator[F32], asked: SpeechOptions, prompt: str, step: float,
        voice: VoiceFollower | None,
    ) -> AsyncGenerator[Partial]:  # fmt: skip
        sound, agreement, pace = LiveSound(), Agreement(), Pace(step)
        special, draft = Special.of(self.vocabulary_size), Draft()
        language = asked.language or "en"
        said = ""
        cold = 0  # of the final words, how many are no context, since one was drawn
        over: float | None = None  # where speech has ended that was not transcribed to its end

        async def transcribe_again(*, ended: bool, until: float | None = None) -> list[Word]:
            """Returns the words that became final; all of them if the speech has ``ended``.

            ``until``: where the detector heard the speech end.
            """
            nonlocal asked, language, draft, cold
            begin = time.monotonic()
            before = f"{prompt} {context_of(agreement, sound.begin, cold)}"
            words, tokens, repeats, heat = list[Word](), list[int](), False, 0.0
            heard = sound.samples
            if until is not None:
                heard = heard[: max(round((until - sound.begin) * RATE), 0)]
            tried = replace(asked, temperatures=asked.temperatures[: pace.tries])
            found = self._segments(
                heard, RATE, tried, before, previous=True, draft=draft, place="listen"
            )
            async with contextlib.aclosing(found):
                async for segment in found:
                    language = segment.language
                    tokens += segment.tokens
                    heat = segment.temperature
                    repeats = asked.thresholds.is_repetition(segment.compression)
                    words += [
                        Word(x.start + sound.begin, x.end + sound.begin, x.text)
                        for x in segment.words
                    ]
            seconds = len(heard) / RATE
            words = once(words, draft.words, 0.0 if repeats else seconds - draft.until)
            pace.missing, pace.took = 0.0, time.monotonic() - begin
            final = agreement.hear(words, draft.words)
            final += agreement.close(None if ended else sound.end - SETTLED)
            if heat > HOT:
                cold = len(agreement.final)
            if final and asked.language is None:
                asked = replace(asked, language=language)
            first = sound.begin
            if until is None:
                final += sound.trim(agreement, ended=ended)
            elif sound.drop(until):
                pace.missing = sound.seconds
            if asked.beam == 1:
                draft = draft_of(
                    tokens, words, agreement, special, self.tokenizer.decode,
                    begin=sound.begin, cut=sound.begin > first,
                )  # fmt: skip
            return final

        try:
            async for piece in pieces:
                sound.add(piece)
                pace.missing += len(piece) / RATE
                if voice is None:
                    ended = pace.may_hurry and bool(agreement.open) and sound.pauses()
                    if not (ended or pace.due):
                        continue
                else:
                    for span in await voice.take(piece):
                        over = span.end
                    ended = over is not None and pace.keeps_up
                    if over is None:
                        start = voice.start
                        if sound.drop(sound.end - BREATH if start is None else start):
                            draft = Draft()
                        if not voice.speaks:  # what is there is no speech yet
                            pace.missing = sound.seconds
                            continue
                    if not (ended or pace.due):
                        continue
                final = await transcribe_again(ended=ended, until=over if ended else None)
                over = None if ended else over
                if final:
                    yield Partial.of(final, language, final=True)
                text = "".join(x.text for x in agreement.open)
                if text and (final or text != said):
                    yield Partial.of(agreement.open, language, final=False)
                said = text
        finally:
            await pieces.aclose()
        final = []
        if voice is not None:
            last = voice.finish()
            over = over if last is None else last.end
            if over is None:
                pace.missing = 0.0
        if pace.missing and sound.seconds:
            final = await transcribe_again(ended=True, until=over)
        final += agreement.close()
        if final:
            yield Partial.of(final, language, final=True)

    async def _say(self, windows: list[Window]) -> list[WindowText]:
        """Decode windows together.

        Cancellation: aborts the computation.
        """
        self._check_open("transcribe")
        with self._open("transcribe"):
            return await self._ready().say(windows)

    async def _one(self, window: Window, place: str = "transcribe") -> WindowText:
        with self._open(place):
            return await self._batches.submit(window, *urgency_of(place, 0, None), place)

    async def _segments(
        self,
        samples: npt.ArrayLike | Path,
        rate: int,
        asked: SpeechOptions,
        prompt: str,
        previous: bool,
        draft: Draft | None = None,
        place: str = "transcribe",
    ) -> AsyncGenerator[Segment]:
        words = self.tokenizer
        length = self._listener.frames
        heard: npt.ArrayLike
        if isinstance(samples, Path):
            heard, rate = await anyio.to_thread.run_sync(read_sound_file, samples)
        else:
            heard = samples
        recording = await Recording.of(heard, rate, self._model.bands)
        before = words.encode(" " + prompt.strip(), special=False) if prompt.strip() else ()
        found = segments(
            partial(self._one, place=place), recording, asked, words,
            Special.of(self.vocabulary_size), length=length, prompt=before, previous=previous,
            draft=draft,
        )  # fmt: skip
        async with contextlib.aclosing(found):
            async for segment in found:
                yield segment

    def _ready(self) -> Windows:
        if self._windows is None:
            special = Special.of(self.vocabulary_size)
            self._windows = Windows(
                self._listener, self._decoder, self.tokenizer, special, self.ctx
            )
        return self._windows

    def _beam(self, place: str, size: int) -> int:
        found = integer(place, "beam_size", size, 1)
        if found > self.slots:
            raise InvalidArgument(
                f"[{place}] beam_size is {found}, but the model decodes {self.slots} texts at a "
                f"time: load it with slots={found} or more"
            )
        return found

    def _read_request(
        self, place: str, language: str | None, task: str, timestamps: bool,
        temperature: float | Sequence[float], seed: int | None,
    ) -> SpeechOptions:  # fmt: skip
        if self._tokenizer is None:
            raise ModelError(
                "the model has no vocabulary: put gpt2.tiktoken, or multilingual.tiktoken, of "
                "Whisper's package beside its file"
            )
        if language is not None and one_text(place, "language", language) not in self.languages:
            known = ", ".join(self.languages)
            raise InvalidArgument(f"[{place}] language is {language!r}, not one of {known}")
        if one_text(place, "task", task) not in ("transcribe", "translate"):
            raise InvalidArgument(f"[{place}] task is {task!r}, not transcribe or translate")
        if task == "translate" and len(self.languages) == 1:
            raise InvalidArgument(
                "[transcribe] task is 'translate', but this model knows English alone: load a "
                "multilingual one"
            )
        given: Any = temperature
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
            heats = [number(place, f"temperature[{i}]", x, 0, HOTTEST) for i, x in enumerate(given)]
        else:
            heats = [number(place, "temperature", given, 0, HOTTEST)]
        if not heats:
            raise InvalidArgument(f"[{place}] temperature is empty, expected at least one number")
        times = flag(place, "timestamps", timestamps)
        start = None if seed is None else integer(place, "seed", seed, 0)
        return SpeechOptions(language, task == "translate", times, tuple(heats), start)


def _thresholds(
    place: str, compression: float | None, logprob: float | None, no_speech: float | None
) -> Thresholds:
    return Thresholds(
        _threshold(place, "compression_ratio_threshold", compression, 0),
        _threshold(place, "logprob_threshold", logprob, -math.inf),
        _threshold(place, "no_speech_threshold", no_speech, 0, 1),
    )


def _threshold(
    place: str, name: str, value: float | None, least: float, most: float = math.inf
) -> float | None:
    return None if value is None else number(place, name, value, least, most)
