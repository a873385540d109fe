"""Sounds: samples of a sound file of any format.

WAV files are read here; all others by FFmpeg, which comes with the package `av` (PyAV): mp3, ogg,
opus, m4a, flac, webm, and the sound of videos. Not here: samples that are there already (waves.py).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.errors import ModelError
from aggml.models.speech.waves import RATE, read_wav
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["read_sound", "read_sound_file"]

WAVE: bytes = b"WAVE"


def read_sound_file(path: Path) -> tuple[F32, int]:
    """`read_sound` of a file.

    Raises:
        ModelError: it cannot be read, or holds no sound.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot open the sound file {str(path)!r}: {error}") from error
    return read_sound(data)


def read_sound(data: bytes) -> tuple[F32, int]:
    """Samples of a sound file from -1 to 1, averaged over channels; and how many a second.

    Blocks: an hour of mp3 takes some seconds. So call it in a thread.

    Args:
        data: the whole file. WAV needs no other package, everything else ``aggml[audio]``.

    Raises:
        ModelError: it holds no sound, is damaged, or the package `av` is missing.
    """
    if data[8:12] == WAVE:
        try:
            return read_wav(data)
        except ModelError:
            if not _has_av():
                raise
    elif not _has_av():
        raise ModelError(
            "the audio is no WAV file (RIFF or RF64, WAVE); for other formats install PyAV: "
            f"{install_command('audio')}"
        )
    return _decode(data), RATE


def _has_av() -> bool:
    try:
        import av  # noqa: F401 whether it is there
    except ImportError:
        return False
    return True


#: Containers of sound. FFmpeg also knows lists of other files and addresses (HLS, concat, DASH),
#: and would open those: a file that somebody sent must not name files of this machine.
CONTAINERS: Final = "aac,ac3,aiff,amr,asf,au,avi,caf,flac,matroska,webm,mov,mp3,ogg,wav,w64"
LONGEST: Final = 12 * 3600  # seconds: a small file may become 2.7 GB of samples, and no more


def _decode(data: bytes) -> F32:
    """What FFmpeg makes of a file: mono, 16,000 samples a second."""
    import av
    import av.error

    pieces: list[Any] = []
    try:
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
        source = io.BytesIO(data)
        with av.open(source, "r", metadata_errors="ignore", options=options) as container:
            if not container.streams.audio:
                raise ModelError("the file holds no sound")
            resampler = av.AudioResampler(format="fltp", rate=RATE)
            length = 0
            for frame in container.decode(audio=0):
                made = [x.to_ndarray().mean(axis=0) for x in resampler.resample(frame)]
                pieces += made
                length += sum(map(len, made))
                if length > LONGEST * RATE:
                    raise ModelError(f"the sound is longer than {LONGEST // 3600} hours")
            pieces += [x.to_ndarray().mean(axis=0) for x in resampler.resample(None)]
    except (av.error.FFmpegError, ValueError, EOFError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the sound file cannot be decoded: {error}") from error
    found: F32 = np.concatenate([np.empty(0, np.float32), *pieces])
    return np.clip(np.nan_to_num(found), -1, 1)
