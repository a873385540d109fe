"""Waves: samples of a WAV file, and samples at another rate.

Here: RIFF and RF64 files with integers of 8 to 32 bits or floats, a polyphase filter, also for a
sound that comes in chunks. Not here: files of other formats (sounds.py).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import integer, show
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["RATE", "Resampler", "mono", "rate_of", "read_wav", "resample"]

RATE: Final = 16000  # samples a second, as models of speech expect
#: Rates of sounds. Below, seconds become hours; above, the filter of an odd rate has gigabytes.
LEAST_RATE: Final = 1000
MOST_RATE: Final = 384_000
PHASES: Final = 512  # whose filters are computed at a time: a rate may have 16000
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats of samples
CROSSINGS: Final = 32  # zero crossings of the filter's sinc on each side
STOPPED: Final = 8.0  # beta of the filter's Kaiser window: 80 dB of attenuation in the stop band
PASSED: Final = 0.94  # cut-off, where half of a tone passes, as a share of half the lower rate
UNKNOWN: Final = 0xFFFFFFFF  # stands for a length that is not known, or does not fit
LARGEST: Final = 0x7FFFF000  # lengths from here on stand for unknown ones
CHUNKS: Final = (b"data", b"fmt ", b"LIST", b"fact", b"bext", b"cue ")
PIECE: Final = 1 << 16  # samples that are filtered together
CHANNELS: Final = 64  # of a sound, at most; an array of channels that each have samples has more
LOUDEST: Final = 100.0  # a float; a sound may be louder than 1, but not by so much
WIDEST: Final = 4  # bytes of an integer; lists of integers become wider ones, of unknown scale


def read_wav(data: bytes) -> tuple[F32, int]:
    """Samples of a WAV file from -1 to 1, averaged over channels; and how many a second.

    Raises:
        ModelError: it is no WAV file, is cut off, or has samples of another form.
    """
    if len(data) < 12 or data[:4] not in (b"RIFF", b"RF64", b"BW64") or data[8:12] != b"WAVE":
        raise ModelError("the audio is no WAV file (RIFF or RF64, WAVE)")
    whole = struct.unpack_from("<I", data, 4)[0]
    told: tuple[int, int, int, int] | None = None
    long_size: int | None = None  # of the samples, in a file whose lengths may exceed 32 bits
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        body = at + 8
        if name == b"ds64" and len(data) >= body + 16:
            long_size = struct.unpack_from("<Q", data, body + 8)[0]
        elif name == b"fmt ":
            told = _read_format(data[body : body + size])
        elif name == b"data":
            if told is None:
                raise ModelError(
                    "the WAV file does not say what its samples are: its chunk 'fmt ' is missing"
                )
            if size == UNKNOWN and long_size is not None:
                size = long_size
            if size == 0 and whole not in (0, UNKNOWN) and _is_chunk(data, body):
                at = body  # an empty chunk; the samples are in a later one
                continue
            end = body + size
            if size == 0 or (end > len(data) and _is_placeholder(size, whole)):
                end = len(data)
            if end > len(data):
                raise ModelError(f"the WAV file is cut off: {len(data)} of {end} bytes")
            return _samples(data[body:end], told), told[2]
        at = body + size + size % 2
        if size % 2 and data[at - 1 : at + 3] in CHUNKS:  # some programs forget the padding
            at -= 1
    raise ModelError("the WAV file has no samples")


def _is_chunk(data: bytes, at: int) -> bool:
    """Whether a whole chunk begins at a byte: four letters, and a length that the file has."""
    if at + 8 > len(data):
        return False
    name, size = struct.unpack_from("<4sI", data, at)
    return all(32 <= x < 127 for x in name) and at + 8 + size <= len(data)


def _is_placeholder(size: int, whole: int) -> bool:
    """Whether a length stands for an unknown one, as in a file that was written to a pipe.

    Programs write 0xFFFFFFFF, 0x7FFFFFFF or a little less, and in the file's own length 0.
    """
    return size >= LARGEST or whole == 0 or whole >= LARGEST


def _read_format(body: bytes) -> tuple[int, int, int, int]:
    """Format, channels, rate and bits of samples."""
    if len(body) < 16:
        raise ModelError(
            "the WAV file does not say what its samples are: its chunk 'fmt ' is cut off"
        )
    form, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", body)
    if form == EXTENSIBLE and len(body) >= 26:
        (form,) = struct.unpack_from("<H", body, 24)
    if not 1 <= channels <= CHANNELS or not LEAST_RATE <= rate <= MOST_RATE:
        raise ModelError(
            f"the WAV file has {channels} channels of {rate} samples a second, expected were 1 to "
            f"{CHANNELS} channels of {LEAST_RATE} to {MOST_RATE}"
        )
    if form == PCM and bits % 8 and channels and frame == (bits + 7) // 8 * channels:
        bits += -bits % 8  # integers of 12 bits stand in the upper bits of 16
    return form, channels, rate, bits


def _samples(body: bytes, told: tuple[int, int, int, int]) -> F32:
    form, channels, _, bits = told
    width = bits // 8
    whole = body[: len(body) // max(width * channels, 1) * width * channels]
    found: npt.NDArray[Any]
    if form == FLOAT and bits in (32, 64):
        found = np.frombuffer(whole, f"<f{width}").astype(np.float32)
    elif form == PCM and bits == 8:
        found = (np.frombuffer(whole, np.uint8).astype(np.float32) - 128) / 128
    elif form == PCM and bits == 24:
        parts = np.frombuffer(whole, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        found = wide.view("<i4")[:, 0] / np.float32(1 << 31)
    elif form == PCM and bits in (16, 32):
        found = np.frombuffer(whole, f"<i{width}") / np.float32(1 << (bits - 1))
    else:
        raise ModelError(
            f"the WAV file has samples of {bits} bits in format {form}: known are 1 (integers of "
            "8, 16, 24, 32 bits) and 3 (floats of 32, 64 bits); ffmpeg -c:a pcm_s16le converts "
            "others"
        )
    return mono(found.reshape(-1, channels))


def mono(samples: npt.ArrayLike) -> F32:
    """Samples as float32 from -1 to 1, (samples,); channels are averaged.

    Raises:
        InvalidArgument: another type or shape of array; samples that are not finite, or far too
            loud, as integers are that became floats.
    """
    try:
        given = np.asarray(samples)
    except (TypeError, ValueError) as error:  # lists of different lengths
        raise InvalidArgument(f"[audio] samples are no array: {error}") from None
    if given.ndim == 0:
        raise InvalidArgument(
            f"[audio] samples are {show(samples)}, expected floats or integers of the shape "
            "(samples,) or (samples, channels)"
        )
    if given.ndim > 2 or given.dtype.kind not in "fi":
        raise InvalidArgument(
            f"[audio] samples must be floats or integers of the shape (samples,) or (samples, "
            f"channels), given was {given.dtype} of the shape {given.shape}"
        )
    if given.ndim == 2 and not 1 <= given.shape[1] <= CHANNELS:
        raise InvalidArgument(
            f"[audio] samples of the shape {given.shape} have {given.shape[1]} channels, expected "
            f"1 to {CHANNELS}: the shape is (samples, channels), so an array of channels needs .T"
        )
    if given.dtype.kind == "i":
        if given.itemsize > WIDEST:
            raise InvalidArgument(
                f"[audio] samples are {given.dtype}, which no sound has: numpy.asarray(samples, "
                '"int16") says that they have 16 bits'
            )
        given = given / np.float32(1 << (8 * given.itemsize - 1))
    found = np.ascontiguousarray(given if given.ndim == 1 else given.mean(axis=1), np.float32)
    if not np.isfinite(found).all():
        raise InvalidArgument("[audio] some samples are no finite numbers")
    loudest = float(np.abs(found).max(initial=0.0))
    if loudest > LOUDEST:
        raise InvalidArgument(
            f"[audio] a sample is {loudest:g} or its negative, expected were floats from -1 to 1: "
            "give integers as integers, or divide them by 32,768 if they have 16 bits"
        )
    return found


def rate_of(place: str, value: object) -> int:
    """Samples a second, as the argument ``rate`` of a call.

    Raises:
        InvalidArgument: it is no whole number, or no rate of sound.
    """
    return integer(place, "rate", value, LEAST_RATE, MOST_RATE)


def resample(samples: F32, rate: int, to: int = RATE) -> F32:
    """Convert samples to another rate by a polyphase filter: a sinc with a Kaiser window.

    Tones above half of the lower rate are removed.

    Raises:
        InvalidArgument: a rate below 1000 or above 384,000.
    """
    rate, to = rate_of("audio", rate), rate_of("audio", to)
    if rate == to or not len(samples):
        return samples
    common = math.gcd(rate, to)
    up, down = to // common, rate // common
    bank = _bank(up, down)
    taps = bank.shape[1]
    n = -(-len(samples) * up // down)
    padded = np.concatenate([np.zeros(taps // 2 - 1, np.float32), samples,
                             np.zeros(taps, np.float32)])  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps)
    found = np.empty(n, np.float32)
    for first in range(0, n, PIECE):
        at = np.arange(first, min(first + PIECE, n), dtype=np.int64) * down
        found[first : first + len(at)] = np.einsum("nt,nt->n", windows[at // up], bank[at % up])
    return found


class Resampler:
    """`resample` for a sound that comes in chunks: the results together are those of the whole.

    Args:
        rate: samples a second of the chunks.
        to: samples a second of the results.
    """

    def __init__(self, rate: int, to: int = RATE) -> None:
        common = math.gcd(rate, to)
        self._up, self._down = to // common, rate // common
        self._same = rate == to
        self._bank = np.empty((1, 0), np.float32) if self._same else _bank(self._up, self._down)
        taps = self._bank.shape[1]
        self._kept = np.zeros(max(taps // 2 - 1, 0), np.float32)  # input that is needed still
        self._dropped = 0  # input before it
        self._taken = self._given = 0

    def take(self, samples: F32) -> F32:
        """The next chunk; returns what can be computed by now."""
        if self._same:
            return samples
        self._taken += len(samples)
        self._kept = np.concatenate([self._kept, samples])
        taps = self._bank.shape[1]
        ready = (self._dropped + len(self._kept) - taps + 1) * self._up  # of upsampled input
        return self._give(max(0, -(-ready // self._down)))

    def finish(self) -> F32:
        """The rest, when no chunk will come any more."""
        if self._same:
            return np.empty(0, np.float32)
        self._kept = np.concatenate([self._kept, np.zeros(self._bank.shape[1], np.float32)])
        return self._give(-(-self._taken * self._up // self._down))

    def _give(self, until: int) -> F32:
        """Results up to number ``until``; forgets the input that no later one needs."""
        if until <= self._given:
            return np.empty(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(self._kept, self._bank.shape[1])
        at = np.arange(self._given, until, dtype=np.int64) * self._down
        first = at // self._up - self._dropped
        found: F32 = np.einsum("nt,nt->n", windows[first], self._bank[at % self._up])
        self._given = until
        unneeded = until * self._down // self._up - self._dropped
        unneeded = min(max(unneeded, 0), len(self._kept))
        self._kept, self._dropped = self._kept[unneeded:], self._dropped + unneeded
        return found


def _bank(up: int, down: int) -> F32:
    """The filter of each phase, (up, taps); a result is a weighted sum over ``taps`` samples."""
    cut = PASSED * min(1.0, up / down)  # cut-off, as a share of half the input's rate
    half = math.ceil(CROSSINGS / cut)
    found: F32 = np.empty((up, 2 * half), np.float32)
    for first in range(0, up, PHASES):
        phases = np.arange(first, min(first + PHASES, up))[:, None] / up
        offset = np.arange(-half + 1, half + 1)[None, :] - phases
        window = np.i0(STOPPED * np.sqrt(np.clip(1 - (offset / half) ** 2, 0, None)))
        bank = cut * np.sinc(cut * offset) * (window / np.i0(STOPPED))
        found[first : first + PHASES] = bank / bank.sum(axis=1, keepdims=True)
    return found
