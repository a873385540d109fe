"""Live speech: which words become final, what is cut off, and that nothing is lost or said twice.

Not here: transcribing a window (test_speech.py), times of words (test_words.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import speech_file, voice_file, weights

import aggml
from aggml import InvalidArgument, InvalidState, Unsupported
from aggml.models import Segment, SpeechModel, VoiceModel, Word, read_wav
from aggml.models.speech.live import FULL, Agreement, LiveSound
from aggml.models.speech.voice import WINDOW, VoiceDetector
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


def said(n: int, first: int = 0) -> list[Word]:
    return [Word(float(i), i + 0.8, f" w{i}") for i in range(first, n)]


@pytest.mark.long
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    wrong=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    shifts=st.lists(st.sampled_from([-0.1, 0.0, 0.1]), min_size=12, max_size=12),
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_final_words_are_those_that_were_said_each_once(
    lengths: list[int], wrong: list[int], shifts: list[float]
) -> None:
    """The last words of each transcription may be wrong, differently each time."""
    agreement, given_out = Agreement(), list[Word]()
    lengths = sorted(lengths)
    for k, n in enumerate(lengths):
        right = max(0, n - wrong[k])
        heard = said(right)
        heard += [Word(x.start, x.end, f" no{k}") for x in said(n, right)]
        heard = [Word(x.start + shifts[k], x.end + shifts[k], x.text) for x in heard]
        given_out += agreement.hear(heard)
        assert given_out == agreement.final
        assert [x.text for x in given_out] == [f" w{i}" for i in range(len(given_out))]
    agreement.hear(said(lengths[-1]))
    agreement.close()
    assert [x.text for x in agreement.final] == [f" w{i}" for i in range(lengths[-1])]


def test_words_in_which_two_transcriptions_differ_stay_open() -> None:
    agreement = Agreement()
    assert agreement.hear([Word(0, 1, " One"), Word(1, 2, " too")]) == []
    assert [x.text for x in agreement.hear([Word(0, 1, " one,"), Word(1, 2, " two")])] == [" one,"]
    assert [x.text for x in agreement.open] == [" two"]
    assert [x.text for x in agreement.close(1.5)] == []
    assert [x.text for x in agreement.close()] == [" two"]


def test_a_sound_that_nobody_speaks_in_does_not_grow() -> None:
    sound, agreement = LiveSound(), Agreement()
    for _ in range(100):
        sound.add(np.zeros(16000, np.float32))
        assert sound.trim(agreement) == []
        assert sound.seconds <= 3
    assert sound.begin + sound.seconds == 100


def test_a_sound_on_which_transcriptions_do_not_agree_is_cut_all_the_same() -> None:
    sound, agreement = LiveSound(), Agreement()
    for k in range(90):
        sound.add(np.zeros(16000, np.float32))
        agreement.hear([Word(float(i), i + 0.8, f" {k}.{i}") for i in range(int(sound.begin), k)])
        sound.trim(agreement)
        assert sound.seconds <= FULL + 1
    texts = [x.start for x in agreement.final]
    assert texts == sorted(texts)
    assert len(texts) > 50


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_bin(path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[SpeechModel]:
    with speech_file.loaded(file, slots=1) as model:
        yield model


def speaks(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the model hear a word in each second, whose number is the value of its samples."""
    heard: list[float] = []

    async def segments(samples: Any, rate: int, asked: Any, *_: Any, **__: Any) -> Any:
        heard.append(len(samples) / rate)
        values = np.round(samples * 1000).astype(int)
        for number in np.unique(values):
            at = np.flatnonzero(values == number)
            if len(at) > 8000:  # more than half of a word
                word = Word(at[0] / 16000, (at[-1] + 1) / 16000, f" w{number}")
                yield Segment(
                    word.start, word.end, word.text, [], asked.language or "de", 0, 0, 1, 0, [word]
                )

    monkeypatch.setattr(model, "_segments", segments)
    return heard


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("size", [160, 5000, 16000, 100000])
async def test_a_long_sound_is_written_once_from_its_beginning_to_its_end(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    heard = speaks(model, monkeypatch)
    sound = np.repeat(np.arange(70) / 1000, 16000).astype(np.float32)
    chunks = [sound[i : i + size] for i in range(0, len(sound), size)]
    final, partial = [], 0
    async for piece in model.listen(chunks, step=0.5):
        assert piece.text == "".join(x.text for x in piece.words)
        assert piece.language == "de"
        if piece.final:
            final += piece.words
        else:
            partial += 1
            assert piece.start >= (final[-1].end if final else 0) - 0.5
    assert [x.text for x in final] == [f" w{i}" for i in range(70)]
    assert all(abs(x.start - i) < 0.6 for i, x in enumerate(final))
    assert partial > 0
    assert max(heard) <= FULL + 7


@pytest.fixture
async def vad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VoiceModel]:
    """Takes for speech whatever is not zero."""
    path = voice_file.write(tmp_path / "vad.safetensors")
    async with aggml.models.load(path) as loaded:
        assert isinstance(loaded, VoiceModel)

        async def hear(state: Any, samples: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return (np.abs(samples).reshape(-1, WINDOW).max(axis=1) > 0).astype(np.float32)

        monkeypatch.setattr(loaded._detector, "hear", hear)
        yield loaded


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("size", [160, 5000, 16000, 100000])
@pytest.mark.parametrize("quiet", [1, 7])
async def test_with_a_detector_only_speech_is_heard_and_final_where_it_ends(
    model: SpeechModel, vad: VoiceModel, monkeypatch: pytest.MonkeyPatch, size: int, quiet: int
) -> None:
    heard = speaks(model, monkeypatch)
    turns = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [16, 17]]
    numbers = [0] * quiet
    for turn in turns:
        numbers += turn + [0] * quiet
    sound = np.repeat(np.array(numbers) / 1000, 16000).astype(np.float32)
    position = 0.0

    async def chunks() -> AsyncIterator[Any]:
        nonlocal position
        for i in range(0, len(sound), size):
            position = min(i + size, len(sound)) / 16000
            yield sound[i : i + size]

    final: list[Word] = []
    known: dict[str, float] = {}  # when each word was final
    async for piece in model.listen(chunks(), vad=vad):
        if piece.final:
            final += piece.words
            known |= {x.text.strip(): position for x in piece.words}
    assert [x.text for x in final] == [f" w{i}" for i in range(1, 18)]
    for word in final:
        at = numbers.index(int(word.text.strip(" w")))
        assert abs(word.start - at) < 0.6
    for turn in turns:
        end = numbers.index(turn[-1]) + 1
        assert known[f"w{turn[-1]}"] <= end + 0.6 + size / 16000
    # what is heard has the silence before and behind a turn alone
    assert max(heard) <= 12
    assert 0 < len(heard) <= 3 * 17


async def test_with_a_detector_silence_is_never_transcribed(
    model: SpeechModel, vad: VoiceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = speaks(model, monkeypatch)
    click = np.zeros(16000, np.float32)
    click[8000:8100] = 0.5  # shorter than speech is
    assert [
        x async for x in model.listen([np.zeros(50000, np.float32), click, click], vad=vad)
    ] == []
    assert heard == []


async def test_two_listeners_share_a_detector(
    model: SpeechModel, vad: VoiceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaks(model, monkeypatch)
    found: dict[int, str] = {}

    async def listen(first: int) -> None:
        numbers = [0, first, first + 1, 0, first + 2, 0]
        sound = np.repeat(np.array(numbers) / 1000, 16000).astype(np.float32)
        text = ""
        async for piece in model.listen(np.split(sound, 24), vad=vad):
            text += piece.text if piece.final else ""
        found[first] = text

    async with anyio.create_task_group() as tasks:
        for first in (10, 20):
            tasks.start_soon(listen, first)
    assert found == {10: " w10 w11 w12", 20: " w20 w21 w22"}


def test_a_blocking_detector_serves_a_blocking_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hear(_: Any, state: Any, samples: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return np.zeros(len(samples) // WINDOW, np.float32)

    monkeypatch.setattr(VoiceDetector, "hear", hear)
    speech_file.write_bin(tmp_path / "random.bin")
    path = voice_file.write(tmp_path / "vad.safetensors")
    with (
        aggml.models.blocking.load(tmp_path / "random.bin", slots=1) as model,
        aggml.models.blocking.load(path) as vad,
    ):
        assert [*model.listen([np.zeros(20000, np.float32)], vad=vad)] == []


@pytest.mark.long
async def test_speech_of_random_weights_is_heard_and_the_source_is_closed(
    model: SpeechModel,
) -> None:
    closed = 0

    async def chunks() -> AsyncIterator[Any]:
        nonlocal closed
        try:
            for i in range(40):
                yield speech_file.sound(4)[1600 * i : 1600 * (i + 1)]
        finally:
            closed += 1

    async for _ in model.listen(chunks(), language="en", step=1.5):
        pass
    assert closed == 1
    pieces = model.listen(chunks(), language="en", step=0.1)
    async for _ in pieces:
        break
    await pieces.aclose()
    assert closed == 2


async def test_a_trained_model_writes_live_what_it_writes_of_the_whole() -> None:
    part, _ = read_wav(weights.find("jfk.wav").read_bytes())
    async with aggml.models.load(weights.find("ggml-tiny.bin")) as model:
        options: dict[str, Any] = {"language": "en"}
        whole = "".join([x.text async for x in model.transcribe(part, **options)])
        chunks = [part[i : i + 24000] for i in range(0, len(part), 24000)]
        live = [x async for x in model.listen(chunks, step=3, **options)]
    text = "".join(x.text for x in live if x.final)
    words, those = ({x.strip(",.?").lower() for x in t.split()} for t in (text, whole))
    assert len(words & those) >= 0.9 * len(those), (text, whole)
    assert live[-1].final


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"language": "xx"}, "[listen] language is 'xx'"),
        ({"step": 0}, "step is 0, must be above 0"),
        ({"step": "1"}, "step is '1'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"compression_ratio_threshold": "2"}, "compression_ratio_threshold is '2'"),
        ({"no_speech_threshold": 2}, "no_speech_threshold is 2"),
        ({"prompt": 3}, "prompt is 3"),
        ({"vad": "silero"}, "vad is 'silero', expected a detector of speech"),
        ({"chunks": 5}, "chunks is 5"),
    ],
)
async def test_wrong_arguments_are_refused_at_the_call(
    model: SpeechModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        model.listen(**{"chunks": [], **options})
    assert message in str(caught.value)


async def test_a_listener_whose_model_is_closed_is_told_so(file: Path) -> None:
    async with aggml.models.load(file, slots=1) as model:
        assert isinstance(model, SpeechModel)

        async def chunks() -> AsyncIterator[Any]:
            yield speech_file.sound(1.5)
            await model.aclose()
            yield speech_file.sound(1.5)

        with pytest.raises(InvalidState, match=r"^\[listen\] the model is closed"):
            async for _ in model.listen(chunks()):
                pass


async def test_what_cannot_listen_says_so(file: Path, tmp_path: Path) -> None:
    async with aggml.models.load(file, slots=1) as model:
        assert isinstance(model, SpeechModel)
    with pytest.raises(InvalidState, match="closed"):
        model.listen([])
    async with aggml.models.load(llama_files.write(tmp_path / "llama.gguf")) as text:
        with pytest.raises(Unsupported, match="hears nothing"):
            text.listen([])
