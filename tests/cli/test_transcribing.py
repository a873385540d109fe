"""``aggml transcribe``: text, subtitles and JSON; errors in one line."""

from __future__ import annotations

import io
import json
import re
import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cli.program import run
from models import speech_file, voice_file, weights

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_short(path)
    return path


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    speech_file.shorten(monkeypatch, 24)


def wav(rate: int = 8000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, rate, 0, "NONE", ""))
        made.writeframes((speech_file.sound(1) * 32767).astype("<i2").tobytes()[: 2 * rate])
    return file.getvalue()


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    path.write_bytes(wav())
    return path


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_a_recording_becomes_json(model: Path, audio: Path) -> None:
    """The text of random weights has no meaning, so the form is checked, at any sample rate."""
    told = json.loads(run("transcribe", model, audio, "--language", "de", "--json")[0])
    assert told["duration"] == 1.0
    assert set(told) == {"text", "language", "duration", "segments"}
    for i, segment in enumerate(told["segments"]):
        assert segment["id"] == i
        assert segment["tokens"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--language", "xx"], 1, "language is 'xx'"),
        (["--bits", "3"], 2, "No such option"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    model: Path, audio: Path, arguments: list[str], status: int, message: str
) -> None:
    out, err = run("transcribe", model, audio, *arguments, status=status)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_files_that_are_no_sound_are_told_in_one_line(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "a.mp3"
    other.write_bytes(b"ID3" + bytes(100))
    for path, message in ((other, "audio|sound file"), (tmp_path / "none.wav", "No such file")):
        out, err = run("transcribe", model, path, status=1)
        assert (out, err.count("\n")) == ("", 1)
        assert re.search(message, err)


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_raw_samples_of_standard_input_are_heard(model: Path) -> None:
    samples = np.repeat(speech_file.sound(1)[:, None], 2, axis=1)
    options = ["--raw", "--rate", "8000", "--channels", "2", "--language", "en", "--json"]
    for name, data in (
        ("s16le", (samples * 32767).astype("<i2")), ("f32le", samples.astype("<f4")),
    ):  # fmt: skip
        out, _ = run(
            "transcribe", model, "-", *options, "--samples", name, given=data.tobytes() + b"x"
        )
        assert json.loads(out)["duration"] == 2.0
    _, err = run("transcribe", model, "a.wav", "--raw", status=2)
    assert "standard input" in err


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_words_are_printed_with_their_times(model: Path, audio: Path) -> None:
    out, _ = run("transcribe", model, audio, "--words", "--language", "en")
    assert all(re.match(r"\d+\.\d\d \d+\.\d\d \S", line) for line in out.splitlines())
    segments = json.loads(
        run("transcribe", model, audio, "--words", "--language", "en", "--json")[0]
    )["segments"]
    assert segments
    assert any(x.get("words") for x in segments) == bool(out)


@pytest.mark.long
def test_the_thresholds_of_a_text_are_options(model: Path, audio: Path) -> None:
    options = ("--language", "en", "--temperature", "0", "--logprob-threshold", "none")
    said = json.loads(
        run("transcribe", model, audio, *options, "--no-speech-threshold", "none", "--json")[0]
    )
    assert {x["temperature"] for x in said["segments"]} == {0.0}
    out, _ = run("transcribe", model, audio, *options, "--no-speech-threshold", "0")
    assert not out  # silence is more probable than that in any sound
    _, err = run("transcribe", model, audio, "--logprob-threshold", "low", status=2)
    assert "low" in err


def test_a_file_of_sound_is_no_raw_samples(model: Path, audio: Path) -> None:
    for command in (("listen", model), ("transcribe", model, "-", "--raw")):
        out, err = run(*command, given=audio.read_bytes(), status=2)
        assert out == ""
        assert "standard input begins with b'RIFF', as a file of sound does" in err


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_a_sound_that_goes_on_is_listened_to(model: Path, tmp_path: Path) -> None:
    samples = (speech_file.sound(3) * 32767).astype("<i2").tobytes()
    out, _ = run("listen", model, "--language", "en", "--json", given=samples)
    for line in out.splitlines():
        assert set(json.loads(line)) == {"text", "final", "start", "end", "language"}
    options = ("--temperature", "0", "--no-speech-threshold", "0", "--logprob-threshold", "none")
    out, _ = run("listen", model, "--language", "en", *options, given=samples)
    assert not out  # silence is more probable than that in any sound
    detector = voice_file.write(tmp_path / "vad.safetensors")
    data = voice_file.sound().astype("<f4").tobytes()
    out, _ = run("listen", detector, "--samples", "f32le", given=data)
    assert out
    assert all(re.fullmatch(r"\d+\.\d\d \d+\.\d\d", line) for line in out.splitlines())
    out, _ = run("listen", detector, "--samples", "f32le", "--json", given=data)
    assert set(json.loads(out.splitlines()[0])) == {"start", "end"}


def test_trained_weights_give_subtitles() -> None:
    tiny, recording = weights.find("ggml-tiny.bin"), weights.find("a13.wav")
    srt, _ = run("transcribe", tiny, recording, "--srt", "--language", "en")
    first = "1\n00:00:00,000 --> 00:00:04,000\nOkay, we've had a problem here.\n\n2\n00:00:04,000"
    assert srt.startswith(first)
    vtt, _ = run("transcribe", tiny, recording, "--vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:04.000\nOkay, we've had a problem")
    text, _ = run("transcribe", tiny, recording)
    assert re.match(r"Okay, we've had a problem here\.\nThis is Houston, say again", text)
    assert len(np.unique(text.splitlines())) >= 8
