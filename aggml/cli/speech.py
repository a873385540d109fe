"""``aggml transcribe`` and ``aggml listen``: the speech in a file, and in a sound that goes on.

Not here: decoding (aggml.models.speech), loading (shared.py).
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import click
import numpy as np

from aggml.cli.shared import UserPath, load_model, model_options, run_on_loop, show, tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import numpy.typing as npt

    from aggml.models import Segment

__all__ = [
    "beam_option",
    "fallback_options",
    "listen",
    "raw_options",
    "slots_of",
    "transcribe",
]

#: Samples of raw sound by the names that FFmpeg and ALSA have for them.
ELEMENTS: Final = {"s16le": "<i2", "s32le": "<i4", "f32le": "<f4"}
#: How files of sound begin; raw samples do so once in four thousand million times.
HEADS: Final = (b"RIFF", b"RF64", b"OggS", b"fLaC", b"ID3")
F = TypeVar("F", bound="Callable[..., Any]")


def raw_options(command: F) -> F:
    """The options that say what raw samples on standard input are."""
    for option in (
        click.option(
            "--channels", type=click.IntRange(1, 64), default=1, show_default=True,
            help="Channels of raw samples.",
        ),
        click.option(
            "--rate", type=click.IntRange(1, 1 << 24), default=16000, show_default=True,
            help="Raw samples a second.",
        ),
        click.option(
            "--samples", type=click.Choice([*ELEMENTS]), default="s16le", show_default=True,
            help="What raw samples are.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _check_raw(head: bytes) -> None:
    """Refuse a file of sound, whose head would be heard, and whose rate may be another one.

    Raises:
        UsageError: it is one.
    """
    if head.startswith(HEADS):
        raise click.UsageError(
            f"standard input begins with {head[:4]!r}, as a file of sound does, but raw samples "
            "are expected: arecord and sox write them with -t raw, and "
            "'aggml transcribe MODEL -' reads a file"
        )


def _samples(data: bytes, samples: str, channels: int) -> npt.NDArray[Any]:
    """Raw samples as an array; a part of a sample at the end is left out."""
    element = np.dtype(ELEMENTS[samples])
    whole = len(data) // (element.itemsize * channels) * element.itemsize * channels
    return np.frombuffer(data[:whole], element).reshape(-1, channels)


def beam_option(command: F) -> F:
    """The option of beam search."""
    return click.option(
        "--beam-size", type=click.IntRange(1, 64), default=1, show_default=True,
        help="Texts of a window that are continued side by side; the most probable one is kept.",
    )(command)  # fmt: skip


def _number_or_none(given: str) -> float | None:
    return None if given == "none" else float(given)


def fallback_options(command: F) -> F:
    """The options that say when a text is tried again at a higher temperature."""
    for option in (
        click.option(
            "--no-speech-threshold", type=_number_or_none, metavar="FLOAT|none",
            default=0.6, show_default=True,
            help="Leave out a guess if the probability of silence is above this.",
        ),
        click.option(
            "--logprob-threshold", type=_number_or_none, metavar="FLOAT|none",
            default=-1.0, show_default=True,
            help="A text is a guess if the mean logarithm of its probabilities is below this.",
        ),
        click.option(
            "--compression-ratio-threshold", type=_number_or_none, metavar="FLOAT|none",
            default=2.4, show_default=True,
            help="A text repeats itself if zlib makes it more than so many times shorter.",
        ),
        click.option(
            "--temperature", type=click.FloatRange(0), multiple=True,
            help="Temperatures that are tried in turn, until a text is no guess and does not "
            "repeat itself. [default: 0, 0.2, ... 1; of listen: 0]",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def slots_of(beam_size: int) -> int | None:
    """The sequences that the model needs; None: as many as usual."""
    return None if beam_size == 1 else beam_size


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
@click.option("--words", is_flag=True, help="Print each word with its start and end.")
@beam_option
@fallback_options
@click.option("--raw", is_flag=True, help="Standard input has raw samples, and no file.")
@raw_options
@run_on_loop
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
    words: bool,
    beam_size: int,
    temperature: tuple[float, ...],
    compression_ratio_threshold: float | None,
    logprob_threshold: float | None,
    no_speech_threshold: float | None,
    raw: bool,
    rate: int,
    channels: int,
    samples: str,
) -> None:
    """Print what is said in AUDIO, a sound file, segment by segment.

    MODEL is a file of Whisper: OpenAI's .pt, ggml's .bin, GGUF, or a folder of Hugging Face. AUDIO
    is a WAV file, or with aggml[audio] of any format. If it is "-", standard input is read: a file,
    or with --raw samples.
    """
    from aggml.models import read_sound
    from aggml.models.speech import as_objects, as_text, srt_of, vtt_of

    if audio == "-":
        data = await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
    elif raw:
        raise click.UsageError("--raw is for standard input: give - for AUDIO")
    else:
        data = await anyio.Path(audio).read_bytes()
    heard: Any
    if raw:
        _check_raw(data[:4])
        heard = _samples(data, samples, channels)
    else:
        heard, rate = await anyio.to_thread.run_sync(read_sound, data)
    found: list[Segment] = []
    options: dict[str, Any] = {"language": language, "prompt": prompt}
    options["task"] = "translate" if translate else "transcribe"
    options["words"] = words
    options["beam_size"] = beam_size
    options["compression_ratio_threshold"] = compression_ratio_threshold
    options["logprob_threshold"] = logprob_threshold
    options["no_speech_threshold"] = no_speech_threshold
    if temperature:
        options["temperature"] = temperature
    async with load_model(model, device, threads, ctx, cache, slots=slots_of(beam_size)) as loaded:
        segments = loaded.transcribe(heard, rate, **options)
        if form == "vtt":
            click.echo("WEBVTT\n")
        async for segment in segments:
            found.append(segment)
            if form == "srt":
                click.echo(srt_of(len(found), segment), nl=False)
            elif form == "vtt":
                click.echo(vtt_of(segment), nl=False)
            elif form is None and words:
                for word in segment.words:
                    click.echo(f"{word.start:.2f} {word.end:.2f} {word.text.strip()}")
            elif form is None:
                click.echo(segment.text.strip())
    if form == "json":
        show(
            {
                "text": as_text(found),
                "language": found[0].language if found else language,
                "duration": len(heard) / rate,
                "segments": as_objects(found),
            }
        )


@click.command
@model_options
@click.option(
    "--language", metavar="CODE", help="Language that is spoken, as de or en. [default: detected]"
)
@click.option(
    "--prompt",
    default="",
    help="Text that could come before the sound; it helps with names. [default: none]",
)
@beam_option
@fallback_options
@click.option(
    "--vad",
    type=UserPath(exists=True),
    help="File of Silero's detector of speech: what it takes for silence is not transcribed. "
    "[default: none]",
)
@raw_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object a line, partial ones too."
)
@run_on_loop
async def listen(
    model: Path,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    language: str | None,
    prompt: str,
    beam_size: int,
    temperature: tuple[float, ...],
    compression_ratio_threshold: float | None,
    logprob_threshold: float | None,
    no_speech_threshold: float | None,
    vad: str | None,
    rate: int,
    channels: int,
    samples: str,
    as_json: bool,
) -> None:
    """Print what is said in the raw samples on standard input, while they come.

    MODEL is a file of Whisper, or Silero's detector of speech (.safetensors), which prints when
    somebody speaks. For example: arecord -q -t raw -f S16_LE -r 16000 | aggml listen MODEL
    """
    from aggml.models import VoiceModel

    async with load_model(model, device, threads, ctx, cache, slots=slots_of(beam_size)) as loaded:
        chunks = _standard_input(samples, channels, rate)
        if isinstance(loaded, VoiceModel):
            if vad is not None:
                raise click.UsageError("--vad is for Whisper: MODEL is a detector of speech itself")
            async for span in loaded.listen(chunks, rate):
                if as_json:
                    tell({"start": span.start, "end": span.end})
                else:
                    click.echo(f"{span.start:.2f} {span.end:.2f}")
            return
        options: dict[str, Any] = {
            "language": language, "prompt": prompt, "beam_size": beam_size,
            "compression_ratio_threshold": compression_ratio_threshold,
            "logprob_threshold": logprob_threshold, "no_speech_threshold": no_speech_threshold,
        }  # fmt: skip
        if temperature:
            options["temperature"] = temperature
        async with AsyncExitStack() as stack:
            if vad is not None:
                detector = load_model(Path(vad), device, threads, None, cache)
                options["vad"] = await stack.enter_async_context(detector)
            async for piece in loaded.listen(chunks, rate, **options):
                if as_json:
                    tell(
                        {
                            "text": piece.text, "final": piece.final, "start": piece.start,
                            "end": piece.end, "language": piece.language,
                        }
                    )  # fmt: skip
                elif piece.final:
                    click.echo(piece.text.strip())


async def _standard_input(
    samples: str, channels: int, rate: int
) -> AsyncGenerator[npt.NDArray[Any]]:
    """What comes, in pieces of at most a quarter of a second; a thread waits for it."""
    frame = np.dtype(ELEMENTS[samples]).itemsize * channels
    most = max(1, rate // 4) * frame
    stdin: Any = sys.stdin.buffer  # read1 returns what is there, and does not wait for more
    rest, begun = b"", False
    while True:
        data = await anyio.to_thread.run_sync(stdin.read1, most, abandon_on_cancel=True)
        if not data:
            return
        rest += data
        if not begun:
            if len(rest) < 4:
                continue
            _check_raw(rest[:4])
            begun = True
        whole = len(rest) // frame * frame
        if whole:
            yield _samples(rest[:whole], samples, channels)
            rest = rest[whole:]
