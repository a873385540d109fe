"""Speech: models that write what was said (Whisper, Radford et al. 2022), and detectors of speech.

From samples to segments: waves.py reads WAV files and changes the rate, sounds.py reads other
files, features.py makes the log-mel spectrogram, listening.py runs the encoder over windows of it,
deciding.py says which token may come next, windows.py decodes windows together, segments.py goes
through a recording. aligning.py and words.py find when each word is said. chunks.py and live.py are
for a sound that goes on. voice.py and spans.py hear when somebody speaks. Not here: the public
objects (../speech_model.py, ../voice_model.py), the layers (../architectures/whisper.py).
"""

from __future__ import annotations

from aggml.models.speech.live import Partial
from aggml.models.speech.segments import Segment
from aggml.models.speech.spans import Span
from aggml.models.speech.subtitles import as_objects, as_srt, as_text, as_vtt, srt_of, vtt_of
from aggml.models.speech.waves import mono, resample
from aggml.models.speech.words import Word

__all__ = [
    "Partial", "Segment", "Span", "Word", "as_objects", "as_srt", "as_text", "as_vtt", "mono",
    "resample", "srt_of", "vtt_of",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
