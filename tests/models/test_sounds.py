"""Sound files of other formats than WAV, which PyAV decodes; WAV itself: test_waves.py."""

from __future__ import annotations

import builtins
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aggml.models import ModelError, read_sound

if TYPE_CHECKING:
    from pathlib import Path

RATE = 44100


def tone(seconds: float = 1.0) -> Any:
    """A tone on the left, silence on the right."""
    t = np.arange(int(seconds * RATE)) / RATE
    left = np.sin(2 * np.pi * 440 * t).astype(np.float32) / 2
    return np.stack([left, np.zeros_like(left)])


def encoded(container: str, codec: str, form: str, samples: Any, rate: int = RATE) -> bytes:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=container) as made:
        stream = made.add_stream(codec, rate=rate, layout="stereo")
        stream.format = form
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
        frame.sample_rate = RATE
        resampler = av.AudioResampler(
            format=form, layout="stereo", rate=rate,
            frame_size=stream.codec_context.frame_size or 1024,
        )  # fmt: skip
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            made.mux(stream.encode(part))
        made.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "form", "rate"),
    [
        ("mp3", "mp3", "s16p", RATE), ("flac", "flac", "s16", RATE), ("mp4", "aac", "fltp", RATE),
        ("webm", "libopus", "s16", 48000), ("ogg", "libopus", "s16", 48000),
        ("wav", "adpcm_ms", "s16", RATE),
    ],
)  # fmt: skip
def test_a_sound_of_any_format_is_read(container: str, codec: str, form: str, rate: int) -> None:
    """Channels are averaged, so the tone of one of two channels has half of its height."""
    samples, found = read_sound(encoded(container, codec, form, tone(), rate))
    assert found == 16000
    assert abs(len(samples) - 16000) < 1200  # some codecs add silence
    middle = samples[4000:12000]
    power = np.abs(np.fft.rfft(middle))
    assert np.argmax(power) * 16000 / len(middle) == pytest.approx(440, abs=3)
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.25 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("data", [b"", b"abc", b"RIFF1234WAVEjunk" * 9, bytes(5000), b"ID3" * 999])
def test_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        read_sound(data)


def test_a_list_of_other_files_is_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("av")
    secret = tmp_path / "secret.mp3"
    secret.write_bytes(encoded("mp3", "mp3", "s16p", tone()))
    for text in (
        f"ffconcat version 1.0\nfile '{secret}'\n",
        f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
        f"[playlist]\nNumberOfEntries=1\nFile1={secret}\n",
    ):
        with pytest.raises(ModelError, match="decoded"):
            read_sound(text.encode())


def test_a_sound_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("mp3", "mp3", "s16p", tone(3))
    monkeypatch.setattr("aggml.models.speech.sounds.LONGEST", 2)
    with pytest.raises(ModelError, match="longer than"):
        read_sound(data)


def test_cut_and_damaged_files_are_read_or_refused() -> None:
    whole = encoded("mp4", "aac", "fltp", tone())
    rng = np.random.default_rng(2)
    for k in range(40):
        data = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        for _ in range(k):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            samples, rate = read_sound(bytes(data))
        except ModelError:
            continue
        assert rate > 0
        assert np.isfinite(samples).all()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return load(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelError, match=r"aggml\[audio\]"):
        read_sound(b"OggS" + bytes(100))
