"""Speech: models that write what was said (Whisper, Radford et al. 2022).

From samples to segments: waves.py reads WAV files and changes the rate, features.py makes the
log-mel spectrogram, listening.py runs the encoder over windows of it, deciding.py says which token
may come next, windows.py decodes windows together, segments.py goes through a recording. Not here:
the public object (../speech_model.py), the layers (../architectures/whisper.py).
"""

from __future__ import annotations

from aggml.models.speech.segments import Segment

__all__ = ["Segment"]


def __dir__() -> list[str]:
    return __all__
