"""``aggml transcribe``: prints the speech in a WAV file as text, subtitles or JSON.

Not here: decoding (aggml.models.speech), loading (shared.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import anyio
import click

from aggml.cli.shared import UserPath, awaited, model_options, opened, show

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models import Segment

__all__ = ["transcribe"]


@click.command
@model_options
@click.argument("audio", type=UserPath())
@click.option(
    "--language", metavar="CODE", help="Language that is spoken, as de or en. [default: detected]"
)
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option(
    "--prompt",
    default="",
    help="Text that could come before the recording; it helps with names. [default: none]",
)
@click.option("--srt", "form", flag_value="srt", help="Print subtitles in the format SRT.")
@click.option("--vtt", "form", flag_value="vtt", help="Print subtitles in the format WebVTT.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object: text, segments.")
@awaited
async def transcribe(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    audio: str,
    language: str | None,
    translate: bool,
    prompt: str,
    form: str | None,
) -> None:
    """Print what is said in AUDIO, a WAV file, segment by segment.

    MODEL is a file of Whisper: OpenAI's .pt, ggml's .bin, GGUF, or a folder of Hugging Face. If
    AUDIO is "-", standard input is read.
    """
    from aggml.models import read_wav
    from aggml.models.speech import as_objects, as_text, srt_of, vtt_of

    if audio == "-":
        data = sys.stdin.buffer.read()
    else:
        data = await anyio.Path(audio).read_bytes()
    samples, rate = read_wav(data)
    found: list[Segment] = []
    options: dict[str, Any] = {"language": language, "prompt": prompt}
    options["task"] = "translate" if translate else "transcribe"
    async with opened(model, device, threads, ctx, cache) as loaded:
        segments = loaded.transcribe(samples, rate, **options)
        if form == "vtt":
            click.echo("WEBVTT\n")
        async for segment in segments:
            found.append(segment)
            if form == "srt":
                click.echo(srt_of(len(found), segment), nl=False)
            elif form == "vtt":
                click.echo(vtt_of(segment), nl=False)
            elif form is None:
                click.echo(segment.text.strip())
    if form == "json":
        show(
            {
                "text": as_text(found),
                "language": found[0].language if found else language,
                "duration": len(samples) / rate,
                "segments": as_objects(found),
            }
        )
