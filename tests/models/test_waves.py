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
from aggml.models.speech.waves import mono, resample


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
    found = resample(tone(1000, rate), rate)
    assert len(found) == 16000
    middle = slice(1000, 15000)
    assert np.abs(found[middle] - tone(1000, 16000)[middle]).max() < 1e-3


@pytest.mark.parametrize("rate", [44100, 48000])
def test_tones_that_the_rate_cannot_carry_are_taken_away(rate: int) -> None:
    found = resample(tone(9000, rate), rate)[1000:15000]
    assert np.abs(found).max() < 5e-4


def test_the_same_rate_changes_nothing() -> None:
    x = tone(440, 16000)
    assert resample(x, 16000) is x
    assert len(resample(x[:0], 8000)) == 0
    with pytest.raises(InvalidArgument, match="rate is 0, must be within 1000 and 384000"):
        resample(x, 0)


def test_integers_and_channels_become_one_line_of_floats() -> None:
    found = mono(np.array([[32767, 0], [-32768, -32768]], np.int16))
    assert found.dtype == np.float32
    assert np.allclose(found, [0.5, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 16000), np.float32), r"\(2, 16000\) have 16000 channels.*needs \.T"),
        (np.zeros((16000, 0), np.float32), "have 0 channels"),
        ([100, -100], "int64, which no sound has"),
        (np.zeros(4, np.uint8), "must be floats or integers"),
        (None, r"^\[audio\] samples are None, expected floats"),
        (0.5, r"samples are 0.5 \(float\), expected floats"),
        (np.array([0.0, -32768.0], np.float32), "a sample is 32768 or.*divide them by 32,768"),
        (np.full(4, 1e30, np.float32), "a sample is 1e\\+30"),
    ],
)
def test_arrays_that_would_be_heard_as_another_sound_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        mono(given)


def as_16_bits(n: int) -> tuple[bytes, np.ndarray[Any, Any]]:
    x = tone(440, 8000, n / 8000)
    whole = np.round(x * 32767).astype("<i2")
    return whole.tobytes(), whole / np.float32(32768)


@pytest.mark.parametrize("whole", [0, 0xFFFFFFFF, 0x7FFFFFFF, None])
@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF - 36])
def test_a_length_that_is_not_known_means_all_that_follows(size: int, whole: int | None) -> None:
    body, wanted = as_16_bits(400)
    made = bytearray(riff(body, 1, 1, 8000, 16))
    struct.pack_into("<I", made, made.index(b"data") + 4, size)
    if whole is not None:
        struct.pack_into("<I", made, 4, whole)
    found, _ = read_wav(bytes(made))
    np.testing.assert_array_equal(found, wanted)


def test_an_empty_chunk_of_samples_before_another_one_is_no_sound() -> None:
    body, wanted = as_16_bits(300)
    made = riff(body, 1, 1, 8000, 16)
    at = made.index(b"data")
    for between in (b"", b"LIST\x04\0\0\0abcd"):
        found, _ = read_wav(made[:at] + b"data\0\0\0\0" + between + made[at:])
        np.testing.assert_array_equal(found, wanted)


def test_a_file_of_64_bit_lengths_is_read() -> None:
    body, wanted = as_16_bits(300)
    made = riff(body, 1, 1, 8000, 16)
    sizes = b"ds64" + struct.pack("<IQQQI", 28, len(made), len(body), 300, 0)
    more = b"cue \x04\0\0\0\1\2\3\4"  # not sound
    whole = b"RF64\xff\xff\xff\xffWAVE" + sizes + made[12:]
    at = whole.index(b"data") + 4
    found, _ = read_wav(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :] + more)
    np.testing.assert_array_equal(found, wanted)


def test_a_padding_byte_may_be_missing_and_12_bits_stand_in_16() -> None:
    body, wanted = as_16_bits(300)
    made = riff(body, 1, 1, 8000, 16)
    found, _ = read_wav(made.replace(b"abc\0data", b"abcdata"))
    np.testing.assert_array_equal(found, wanted)
    twelve = bytearray(made)
    struct.pack_into("<H", twelve, twelve.index(b"fmt ") + 22, 12)
    np.testing.assert_array_equal(read_wav(bytes(twelve))[0], wanted)


@pytest.mark.parametrize("rate", [1, 999, 384_001, 999_983, (1 << 30) - 1])
def test_a_rate_that_is_none_of_sound_is_refused(rate: int) -> None:
    """Its resampling would take gigabytes."""
    body, _ = as_16_bits(300)
    with pytest.raises(ModelError, match=rf"{rate} samples a second, expected .* 1000 to 384000"):
        read_wav(riff(body, 1, 1, rate, 16))
    with pytest.raises(InvalidArgument, match=rf"rate is {rate}, must be within 1000 and 384000"):
        resample(np.zeros(5, np.float32), rate)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_read_or_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    made = riff(as_16_bits(50)[0], 1, 1, 8000, 16)
    for _ in range(700):
        damaged = bytearray(made[: random.integers(0, len(made) + 1)])
        for _ in range(int(random.integers(0, 4))):
            if damaged:
                damaged[int(random.integers(0, min(len(damaged), 60)))] = int(random.integers(256))
        try:
            samples, rate = read_wav(bytes(damaged))
        except (ModelError, InvalidArgument):
            continue
        assert np.isfinite(samples).all()
        assert rate > 0
