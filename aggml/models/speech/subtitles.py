"""Segments as text, SRT, WebVTT and objects for JSON.

Here: the formats. Not here: making segments (segments.py), the program and the service, which print
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.speech.segments import Segment

__all__ = ["as_objects", "as_srt", "as_text", "as_vtt", "srt_of", "vtt_of"]


def _clock(seconds: float, point: str) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def srt_of(i: int, segment: Segment) -> str:
    """A segment in the form of an SRT file; ``i`` is its number, counted from 1."""
    times = f"{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}"
    return f"{i}\n{times}\n{segment.text.strip().replace('-->', '->')}\n\n"


def vtt_of(segment: Segment) -> str:
    """A segment in the form of a WebVTT file; the file itself begins with "WEBVTT" and a gap."""
    times = f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}"
    return f"{times}\n{segment.text.strip().replace('-->', '->')}\n\n"


def as_text(segments: Sequence[Segment]) -> str:
    """What is said, without times."""
    return "".join(x.text for x in segments).strip()


def as_srt(segments: Sequence[Segment]) -> str:
    """An SRT file."""
    return "".join(srt_of(i, x) for i, x in enumerate(segments, 1))


def as_vtt(segments: Sequence[Segment]) -> str:
    """A WebVTT file."""
    return "WEBVTT\n\n" + "".join(map(vtt_of, segments))


def as_objects(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Segments as dicts with the names of OpenAI's ``verbose_json``."""
    return [
        {
            "id": i, "start": x.start, "end": x.end, "text": x.text, "tokens": x.tokens,
            "temperature": x.temperature, "avg_logprob": x.logprob,
            "compression_ratio": x.compression, "no_speech_prob": x.no_speech,
            **({"words": [
                {"word": w.text.strip(), "start": w.start, "end": w.end} for w in x.words
            ]} if x.words else {}),
        }
        for i, x in enumerate(segments)
    ]  # fmt: skip
