"""WAV files with every sample format, and samples at other rates."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import numpy as np
import pytest

from aggml import InvalidArgument
from aggml.models import ModelError, read_wav
from aggml.models.speech.waves import mono, resampled


def tone(hertz: float, rate: int, seconds: float = 1.0) -> np.ndarray[Any, Any]:
    t = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * t)).astype(np.float32)


def riff(body: bytes, kind: int, channels: int, rate: int, bits: int, more: bytes = b"") -> bytes:
    head = struct.pack(
        "<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits
    )
    form = b"fmt " + struct.pack("<I", len(head + more)) + head + more
    # a chunk of odd length, so that a padding byte follows
    note = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    data = b"data" + struct.pack("<I", len(body)) + body
    whole = b"WAVE" + form + note + data
    return b"RIFF" + struct.pack("<I", len(whole)) + whole


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_integers_of_every_width_are_read(width: int, channels: int) -> None:
    x = tone(440, 8000, 0.1)
    whole = (x.astype(np.float64) * (1 << (8 * width - 1))).astype(np.int64)
    if width == 1:
        raw = (whole + 128).astype(np.uint8).tobytes()
    else:
        raw = b"".join(int(v).to_bytes(width, "little", signed=True) for v in whole)
    if channels == 2:
        parts = [raw[i : i + width] for i in range(0, len(raw), width)]
        raw = b"".join(part * 2 for part in parts)
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((channels, width, 8000, 0, "NONE", ""))
        made.writeframes(raw)
    found, rate = read_wav(file.getvalue())
    assert rate == 8000
    assert np.abs(found - x).max() <= 1 / (1 << (8 * width - 1)) + 1e-6


@pytest.mark.parametrize("bits", [32, 64])
def test_floats_and_extensible_heads_are_read(bits: int) -> None:
    x = tone(440, 8000, 0.1)
    body = x.astype(f"<f{bits // 8}").tobytes()
    for kind, more in ((3, b""), (0xFFFE, struct.pack("<HHIH", 22, bits, 0, 3) + bytes(14))):
        found, rate = read_wav(riff(body, kind, 1, 8000, bits, more))
        assert rate == 8000
        assert np.array_equal(found, x)


def test_a_file_without_a_length_goes_to_its_end() -> None:
    whole = riff(np.arange(4, dtype="<i2").tobytes(), 1, 1, 8000, 16)
    at = whole.index(b"data") + 4
    found, _ = read_wav(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :])
    assert len(found) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no WAV"),
        (b"ID3" + bytes(100), "no WAV"),
        (riff(bytes(8), 1, 1, 8000, 16)[:-4], "cut off"),
        (riff(bytes(8), 85, 1, 8000, 16), "format 85"),
        (riff(bytes(8), 1, 1, 8000, 12), "12 bits"),
        (riff(bytes(8), 1, 0, 8000, 16), "0 channels"),
        (b"RIFF\0\0\0\0WAVE", "no samples"),
        (b"RIFF\0\0\0\0WAVEdata\x02\0\0\0\0\0", "what its samples are"),
        (b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0\0\0", "what its samples are"),
    ],
)
def test_other_files_are_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_wav(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000, 16001])
def test_tones_keep_their_pitch_and_loudness_at_another_rate(rate: int) -> None:
    found = resampled(tone(1000, rate), rate)
    assert len(found) == 16000
    middle = slice(1000, 15000)
    assert np.abs(found[middle] - tone(1000, 16000)[middle]).max() < 1e-3


@pytest.mark.parametrize("rate", [44100, 48000])
def test_tones_that_the_rate_cannot_carry_are_taken_away(rate: int) -> None:
    found = resampled(tone(9000, rate), rate)[1000:15000]
    assert np.abs(found).max() < 5e-4


def test_the_same_rate_changes_nothing() -> None:
    x = tone(440, 16000)
    assert resampled(x, 16000) is x
    assert len(resampled(x[:0], 8000)) == 0
    with pytest.raises(InvalidArgument, match="a rate is 0"):
        resampled(x, 0)


def test_integers_and_channels_become_one_line_of_floats() -> None:
    found = mono(np.array([[32767, 0], [-32768, -32768]], np.int16))
    assert found.dtype == np.float32
    assert np.allclose(found, [0.5, -1], atol=1e-4)
