"""Features: the log-mel spectrogram, the input of models of speech, with 100 frames a second.

Here: frames, mel bands after Slaney, logarithms, as Whisper was trained (25 ms under a Hann window
every 10 ms). Not here: reading audio (waves.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.speech.waves import RATE

if TYPE_CHECKING:
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["HOP", "filters", "powers", "spectrogram"]

WINDOW: Final = 400  # samples
HOP: Final = 160
PIECE: Final = 3000  # frames that are transformed together
LEAST: Final = 1e-10
RANGE: Final = 8.0  # values more than 80 dB below the loudest one are raised to 80 dB below it


@functools.cache
def filters(bands: int) -> F32:
    """The weight of each frequency in each band: (bands, 201)."""
    hertz = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    edges = _hertz(np.linspace(0, _mel(RATE / 2), bands + 2))
    below = (hertz[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    above = (edges[2:, None] - hertz[None]) / (edges[2:] - edges[1:-1])[:, None]
    shares = np.maximum(0, np.minimum(below, above)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    found: F32 = shares.astype(np.float32)
    return found


@functools.cache
def _spans(bands: int) -> list[tuple[npt.NDArray[np.intp], F32]]:
    """`filters` without most of its zeros: of each band up to so many frequencies in turn.

    Each item has one frequency of every band, and its weight, 0 where a band has no more of them.
    """
    shares = filters(bands)
    first = (shares > 0).argmax(axis=1)
    most = int((shares > 0).sum(axis=1).max())
    rows, last = np.arange(bands), shares.shape[1] - 1
    places = [np.minimum(first + i, last) for i in range(most)]
    found = []
    for i, place in enumerate(places):
        weights = np.where(first + i <= last, shares[rows, place], 0).astype(np.float32)
        found.append((place, weights[:, None]))
    return found


#: Slaney's mel scale: linear up to 1000 Hz, then 27 steps for each factor of 6.4.
EVEN: Final = 200 / 3
LOGARITHMIC: Final = np.log(6.4) / 27


def _mel(hertz: float) -> float:
    return float(1000 / EVEN + np.log(hertz / 1000) / LOGARITHMIC)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    over = 1000 * np.exp(LOGARITHMIC * (mels - 1000 / EVEN))
    return np.where(mels < 1000 / EVEN, mels * EVEN, over)


def powers(samples: F32, first: int, bands: int) -> F32:
    """The logarithm of each band's power in up to `PIECE` frames from ``first`` on: (bands, n).

    Args:
        samples: with half a window before the first frame and after the last one.
        first: the first frame.
        bands: how many bands.
    """
    all_ = max((len(samples) - WINDOW) // HOP, 0)  # one frame less than fit, as in Whisper
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)
    frames = windows[first * HOP : min(first + PIECE, all_) * HOP : HOP]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
    spectrum = np.fft.rfft(frames * hann, axis=1)
    power = np.ascontiguousarray((spectrum.real**2 + spectrum.imag**2).astype(np.float32).T)
    # Not a product of matrices: its library has threads of its own, which spin beside ours. A
    # hundredth of the filters is not 0.
    found: F32 = np.full((bands, power.shape[1]), 0, np.float32)
    for place, weights in _spans(bands):
        found += weights * power[place]
    np.maximum(found, np.float32(LEAST), out=found)
    return np.log10(found, out=found)


def spectrogram(samples: F32, bands: int, behind: int = 0) -> F32:
    """The log-mel spectrogram, (bands, frames) float32. Blocks for 4 ms a second of audio.

    Args:
        samples: at 16,000 a second.
        bands: how many bands the model has.
        behind: how many samples of silence to append.
    """
    silence = np.zeros(behind, np.float32)
    padded = np.concatenate([samples, silence])
    n = len(padded) // HOP
    if not n:
        return np.empty((bands, 0), np.float32)
    padded = np.pad(padded, WINDOW // 2, mode="reflect")
    pieces = [powers(padded, at, bands) for at in range(0, n, PIECE)]
    whole = np.concatenate(pieces, axis=1)
    found: F32 = ((np.maximum(whole, whole.max() - RANGE) + 4) / 4).astype(np.float32)
    return found
