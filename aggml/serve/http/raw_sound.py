"""Raw sound: the bytes that a client sends, as samples of 16 bits.

Here: linear samples, and the two laws of telephones (ITU-T G.711). Not here: who sends them
(realtime.py), files (speech.py), other rates (aggml.models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    I16 = npt.NDArray[np.int16]

__all__ = ["TELEPHONE", "SoundForm"]

TELEPHONE: Final = 8000  # samples a second of G.711


def _mu_law() -> I16:
    """The sample that each byte stands for: sign, exponent, four bits; all bits inverted."""
    byte = ~np.arange(256, dtype=np.int32) & 255
    size = (((byte & 15) << 3) + 132 << (byte >> 4 & 7)) - 132
    found: I16 = np.where(byte & 128, -size, size).astype(np.int16)
    return found


def _a_law() -> I16:
    """The sample that each byte stands for: sign, exponent, four bits; every other bit inverted."""
    byte = np.arange(256, dtype=np.int32) ^ 0x55
    exponent = byte >> 4 & 7
    size = ((byte & 15) << 4) + np.where(exponent, 264, 8) << np.maximum(exponent - 1, 0)
    found: I16 = np.where(byte & 128, size, -size).astype(np.int16)
    return found


_LAWS: Final = {"audio/pcmu": _mu_law(), "audio/pcma": _a_law()}


@dataclass(frozen=True, slots=True)
class SoundForm:
    """What the bytes of a sound mean.

    Attributes:
        type: "audio/pcm": little-endian integers of 16 bits; "audio/pcmu", "audio/pcma": G.711.
        rate: samples a second.
    """

    type: str = "audio/pcm"
    rate: int = 24000

    @property
    def width(self) -> int:
        """Bytes of a sample."""
        return 1 if self.type in _LAWS else 2

    def seconds(self, nbytes: int) -> float:
        """How long a sound of so many bytes is."""
        return nbytes / (self.width * self.rate)

    def samples(self, data: bytes | bytearray) -> I16:
        """The samples of a sound; a cut one at the end is left out."""
        law = _LAWS.get(self.type)
        if law is not None:
            found: I16 = law[np.frombuffer(data, np.uint8)]
            return found
        return np.frombuffer(data, "<i2", len(data) // 2).astype(np.int16, copy=False)
