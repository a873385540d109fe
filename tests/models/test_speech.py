"""Speech to text: features, layers, decoding and segments, on random weights.

Recorded in speech.npz by benchmarks/make_speech.py: features of faster-whisper 1.2.1, logits of
whisper.cpp (pywhispercpp 1.5.1). Not here: trained weights (test_trained_speech.py), WAV files
(test_waves.py).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import speech_file
from models.speech_file import sound

import aggml
from aggml.models import ModelError
from aggml.models.speech.deciding import SpeechRules, compression
from aggml.models.speech.features import spectrogram
from aggml.models.speech.segments import _parts
from aggml.models.speech.special import LANGUAGES, Special
from aggml.models.speech.windows import Thresholds, Window, WindowText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.models import SpeechModel

RECORDED = np.load(Path(__file__).with_name("speech.npz"))
FIRST, THEN = [50258, 50259, 50359, 50363], [1000, 2000, 3000]
MANY = Special.of(51865)
SECOND = 50  # tokens of time in a second


def nmse(found: Any, expected: Any) -> float:
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_bin(path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[SpeechModel]:
    on = aggml.get_device("CPU").backend(n_threads=2)
    with on, speech_file.loaded(file, backend=on, slots=3) as model:
        # the most tokens of a window: with random weights no window ends by itself
        model._ready().most = 24
        yield model


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_those_of_faster_whisper(bands: int) -> None:
    found = spectrogram(sound(3), bands, 160)  # faster-whisper appends a moment of silence
    expected = RECORDED[f"features_{bands}"]
    assert np.abs(found[:, ::7] - expected).max() < 2e-5


def test_features_of_hours_are_made_in_pieces() -> None:
    """Features that are computed in pieces of 3000 frames are equal to those of one piece."""
    samples = sound(65)
    whole = spectrogram(samples, 80)
    assert whole.shape == (80, 6500)
    head = spectrogram(samples[: 16000 * 31], 80)
    assert whole.max() == head.max()
    assert np.abs(whole[:, :3000] - head[:, :3000]).max() < 1e-5


def test_no_samples_have_no_frames() -> None:
    assert spectrogram(np.empty(0, np.float32), 80).shape == (80, 0)


async def _logits(model: SpeechModel, samples: Any) -> np.ndarray[Any, Any]:
    """The logits after the first tokens, and after each of the following ones."""
    mel = spectrogram(samples, 80, 480000)[:, :3000]
    await model._listener.listen([mel])
    found = [await model._decoder.prefill(0, FIRST)]
    for i, token in enumerate(THEN):
        found.append((await model._decoder.decode([token], [len(FIRST) + i]))[0])
    return np.stack(found)[:, ::29]


async def test_logits_are_those_of_whisper_cpp(model: SpeechModel) -> None:
    """Keys, values and matrices are f16 in both programs."""
    assert nmse(await _logits(model, sound(30)), RECORDED["random"]) < 2e-6


@pytest.mark.long
async def test_a_folder_and_a_gguf_file_give_the_same_logits(
    model: SpeechModel, tmp_path: Path
) -> None:
    expected = await _logits(model, sound(30))
    speech_file.write_folder(tmp_path / "folder")
    await aggml.models.convert(tmp_path / "folder", tmp_path / "whisper.gguf")
    for path in (tmp_path / "folder", tmp_path / "whisper.gguf"):
        async with await aggml.models.load(path) as other:
            assert isinstance(other, aggml.models.SpeechModel)
            assert nmse(await _logits(other, sound(30)), expected) < 1e-6
            with pytest.raises(ModelError, match=r"gpt2\.tiktoken"):
                await anext(other.transcribe(sound(1)))


@pytest.mark.parametrize("cache", ["f32", "q8_0"])
async def test_other_types_of_the_cache_serve(file: Path, model: SpeechModel, cache: str) -> None:
    expected = await _logits(model, sound(30))
    async with await aggml.models.load(file, cache=cache) as other:
        assert isinstance(other, aggml.models.SpeechModel)
        assert nmse(await _logits(other, sound(30)), expected) < 2e-3


def test_special_tokens_are_where_whisper_has_them() -> None:
    names = MANY.names()
    assert len(LANGUAGES) == 100
    for token, name in (
        (50257, "<|endoftext|>"), (50258, "<|startoftranscript|>"), (50259, "<|en|>"),
        (50357, "<|su|>"), (50358, "<|translate|>"), (50359, "<|transcribe|>"),
        (50361, "<|startofprev|>"), (50362, "<|nospeech|>"), (50363, "<|notimestamps|>"),
        (50364, "<|0.00|>"), (51864, "<|30.00|>"),
    ):  # fmt: skip
        assert names[token - MANY.end] == name
    assert (MANY.times, MANY.no_speech, MANY.transcribe) == (50364, 50362, 50359)
    assert MANY.language("su") == 50357
    assert Special.of(51864).times == 50363
    assert Special.of(51866).language("yue") == 50358
    with pytest.raises(ModelError, match="32000"):
        Special.of(32000)


def _allowed(made: list[int], *, times: bool = True, boost: int | None = None) -> set[int]:
    """The tokens that the rules allow to follow these."""
    logits = np.zeros(51865, np.float32)
    # so unlikely that all times together are less probable than a word
    logits[MANY.times :] = -20.0
    if boost is not None:
        logits[boost] = 30.0
    never, blank = np.array([MANY.no_speech, 7]), np.array([220, MANY.end])
    SpeechRules(MANY, never, blank, times).apply(logits, made)
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def test_a_window_begins_with_a_time_within_the_first_second() -> None:
    assert _allowed([]) == set(range(MANY.times, MANY.times + SECOND + 1))


def test_times_come_in_pairs_and_never_go_back() -> None:
    t = MANY.times
    after_begin = _allowed([t + 5])
    assert {1, MANY.end} <= after_begin
    assert not {7, MANY.no_times, t, t + 5, t + 6} & after_begin
    after_end = _allowed([t, 1, t + 9])
    assert not {1, t + 8} & after_end
    assert {MANY.end, t + 9, t + 10} <= after_end
    assert not set(range(t, t + 1501)) & _allowed([t, 1, t + 9, t + 9])
    within = _allowed([t, 1, t + 9, t + 9, 2])
    assert 3 in within
    assert t + 9 not in within
    assert t + 10 in within


def test_a_probable_time_comes_before_any_word() -> None:
    t = MANY.times
    assert _allowed([t, 1], boost=t + 40) == set(range(t + 1, t + 1501))


def test_without_times_none_comes() -> None:
    assert not set(range(MANY.no_times, 51865)) & _allowed([], times=False)
    assert 220 not in _allowed([], times=False)
    assert 220 in _allowed([1], times=False)


def test_text_that_repeats_itself_is_told_by_zlib() -> None:
    assert compression("la la " * 100) > 2.4 > compression("It never says this twice.")
    assert compression("") == 0


def _said(tokens: list[int]) -> WindowText:
    return WindowText(tokens, "en", 0.0, -0.1, 1.0, 0.0)


@pytest.mark.parametrize(("logprob", "silent"), [(-1.01, True), (-1.0, False), (-0.99, False)])
def test_a_text_is_a_guess_below_the_same_bound_for_silence_and_belief(
    logprob: float, silent: bool
) -> None:
    quiet = WindowText(THEN, "en", 0.0, logprob, 1.0, no_speech=0.9)
    assert quiet.silent == silent
    assert quiet.believed  # as silence, or as text
    assert replace(quiet, no_speech=0.1).believed != silent


@pytest.mark.parametrize("compression", [None, 0.5, 2.0])
@pytest.mark.parametrize("logprob", [None, -2.0, -0.5])
@pytest.mark.parametrize("silence", [None, 0.2, 0.95])
def test_thresholds_decide_as_in_openais_program(
    compression: float | None, logprob: float | None, silence: float | None
) -> None:
    """Which texts are tried again, and which are left out, as its transcribe.py has it."""
    thresholds = Thresholds(compression, logprob, silence)
    for ratio, mean, quiet in itertools.product((0.4, 1.0, 3.0), (-3.0, -1.0, -0.1), (0.1, 0.9)):
        again = (compression is not None and ratio > compression) or (
            logprob is not None and mean < logprob
        )
        skip = silence is not None and quiet > silence
        if skip and logprob is not None and mean < logprob:
            again = False
        if logprob is not None and mean > logprob:
            skip = False
        said = WindowText(THEN, "en", 0.0, mean, ratio, quiet, thresholds=thresholds)
        assert said.silent == skip
        if not skip:  # what is left out anyway is not tried again
            assert said.believed == (not again)


async def test_without_thresholds_the_first_text_is_kept(model: SpeechModel) -> None:
    options: dict[str, Any] = {"temperature": (0.0, 1.0), "seed": 1, "language": "en"}
    off: dict[str, Any] = dict.fromkeys(
        ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
    )
    kept = [x async for x in model.transcribe(sound(3), **options, **off)]
    assert {x.temperature for x in kept} == {0.0}
    strict: dict[str, Any] = off | {"logprob_threshold": 0.0}  # no text is so probable
    again = [x async for x in model.transcribe(sound(3), **options, **strict)]
    assert {x.temperature for x in again} == {1.0}
    nobody: dict[str, Any] = off | {"no_speech_threshold": 0.0}
    assert [x async for x in model.transcribe(sound(3), **options, **nobody)] == []


def test_segments_lie_between_times_and_the_next_window_begins_with_what_was_cut() -> None:
    t = MANY.times
    tokens = [t, 1, 2, t + 100, t + 100, 3, t + 200, t + 200, 4, 5]
    found, step = _parts(_said(tokens), MANY, 3000)
    assert [(a, b) for a, b, _ in found] == [(0.0, 2.0), (2.0, 4.0)]
    assert [x for *_, x in found] == [tokens[:4], tokens[4:7]]
    assert step == 400


def test_a_window_that_ends_with_one_time_is_done() -> None:
    t = MANY.times
    found, step = _parts(_said([t, 1, t + 100, t + 100, 3, t + 200]), MANY, 3000)
    assert [(a, b) for a, b, _ in found] == [(0.0, 2.0), (2.0, 4.0)]
    assert step == 3000


def test_text_without_pairs_of_times_is_one_segment() -> None:
    t = MANY.times
    assert _parts(_said([t, 1, t + 150]), MANY, 3000) == ([(0.0, 3.0, [t, 1, t + 150])], 3000)
    assert _parts(_said([1, 2]), MANY, 1000) == ([(0.0, 10.0, [1, 2])], 1000)


async def test_the_same_seed_gives_the_same_segments(model: SpeechModel) -> None:
    """With random weights nothing is likely: all tokens depend on the draws."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "language": "de"}
    first = [x async for x in model.transcribe(sound(4), **options)]
    again = [x async for x in model.transcribe(sound(4), **options)]
    assert first
    assert first == again
    assert all(x.language == "de" and 0 <= x.start < x.end <= 30 for x in first)
    other = [x async for x in model.transcribe(sound(4), **{**options, "seed": 6})]
    assert other != first


@pytest.mark.long
async def test_recordings_together_give_what_each_gives_alone(model: SpeechModel) -> None:
    recordings = [sound(4), sound(33)[: 16000 * 2], sound(9), sound(1), sound(34)]
    options: dict[str, Any] = {"temperature": 0.0, "previous": False}
    alone = [[x async for x in model.transcribe(r, **options)] for r in recordings]
    together = await model.transcribe_all(recordings, **options)
    assert [[s.tokens for s in x] for x in together] == [[s.tokens for s in x] for x in alone]
    assert [[(s.start, s.end) for s in x] for x in together] == [
        [(s.start, s.end) for s in x] for x in alone
    ]


async def test_a_window_is_heard_once_at_all_temperatures(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    listen = model._listener.listen

    async def counted(windows: Any, *more: Any) -> None:
        heard.append(len(windows))
        await listen(windows, *more)

    monkeypatch.setattr(model._listener, "listen", counted)
    monkeypatch.setattr(WindowText, "believed", False)
    said = await model._batches.submit(Window(spectrogram(sound(30), 80), _asked(0.0, 0.5, 1.0)))
    assert said.temperature == 1.0
    assert heard == [1]


def _asked(*temperatures: float) -> Any:
    from aggml.models.speech.windows import SpeechOptions

    return SpeechOptions("en", temperatures=temperatures, seed=1)


async def test_the_first_temperature_whose_text_is_believed_counts(model: SpeechModel) -> None:
    said = await model._batches.submit(Window(spectrogram(sound(30), 80), _asked(0.0, 1.0)))
    assert said.temperature == (0.0 if said.logprob >= -1 and said.compression <= 2.4 else 1.0)


async def test_closing_the_generator_leaves_the_model_usable(model: SpeechModel) -> None:
    segments = model.transcribe(sound(65), temperature=1.0, seed=5)
    await anext(segments)
    await segments.aclose()
    assert [x async for x in model.transcribe(sound(2), temperature=1.0, seed=5)]


@pytest.mark.long
async def test_cancellation_ends_the_window_under_way(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancellation leaves nothing behind: the model answers as if it had never been cancelled."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5}
    expected = [x async for x in model.transcribe(sound(4), **options)]
    heard = anyio.Event()
    steps = 0
    decode = model._decoder.decode

    async def told(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        heard.set()
        return await decode(*given)

    monkeypatch.setattr(model._decoder, "decode", told)
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            async for _ in model.transcribe(sound(300), **options):
                pass

        tasks.start_soon(listen)
        await heard.wait()
        tasks.cancel_scope.cancel()
    assert steps < 2 * 24
    assert [x async for x in model.transcribe(sound(4), **options)] == expected


async def test_silence_and_nothing_have_no_segments(model: SpeechModel) -> None:
    assert [x async for x in model.transcribe(np.empty(0, np.float32))] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "language is 'xx'"),
        ({"task": "sing"}, "task is 'sing'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": ()}, "temperature is"),
        ({"rate": 0}, "rate is 0, must be within 1000 and 384000"),
    ],
)
async def test_options_that_cannot_be_are_refused(
    model: SpeechModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(aggml.InvalidArgument, match=message):
        await anext(model.transcribe(sound(1), **options))
    with pytest.raises(aggml.InvalidArgument, match=message):
        await model.transcribe_all([sound(1)], **options)


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 2, 2)), np.array(["a"]), np.array([np.nan]), np.zeros(3, complex)]
)
async def test_what_is_no_sound_is_refused(model: SpeechModel, samples: Any) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"\[audio\]"):
        await anext(model.transcribe(samples))


async def test_a_model_of_speech_says_what_it_cannot(model: SpeechModel) -> None:
    with pytest.raises(aggml.Unsupported, match="makes no vectors"):
        await model.embed(["a"])
    with pytest.raises(aggml.Unsupported, match="does not continue text"):
        model.generate("a")


@pytest.fixture(scope="module")
def whole(file: Path) -> bytes:
    return file.read_bytes()


async def test_a_file_that_is_cut_off_is_refused(whole: bytes, tmp_path: Path) -> None:
    short = tmp_path / "short.bin"
    await anyio.Path(short).write_bytes(whole[:1_000_000])
    with pytest.raises(ModelError, match=r"cut off|damaged|no tensor"):
        await aggml.models.load(short)
