"""Recordings over HTTP: reads a form with a sound file, writes answers as OpenAI does.

Here: reading ``multipart/form-data``, the five forms of an answer, events. Not here: fields
(schema.py), the route (app.py), the transcription (`SpeechModel.transcribe`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from aggml import InvalidArgument
from aggml.models import ModelError, read_sound
from aggml.models.speech import as_objects, as_srt, as_text, as_vtt
from aggml.serve.http.bodies import read_body
from aggml.serve.http.forms import as_json, event_of
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from starlette.requests import Request

    from aggml.models import Segment, SpeechModel
    from aggml.serve.http.resuming import Write
    from aggml.serve.http.schema import Transcription

__all__ = ["answer_whole", "events", "form_of", "options_of", "sound_of"]

LARGEST_SOUND: Final = 64 << 20  # bytes: 35 minutes at 16,000 samples of 16 bits a second
THRESHOLDS: Final = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
NUMBERS: Final = frozenset(
    {"temperature", "stream", "timeout", "priority", "beam_size", *THRESHOLDS}
)
LISTS: Final = "[]"  # ends the name of a field that may come several times


async def form_of(request: Request, seconds: float = 60.0) -> tuple[bytes, bytes]:
    """The file of a form, and its other fields as a JSON object.

    Raises:
        RequestError: the body is no form, or has no file.
        TooLargeError: the body is larger than `LARGEST_SOUND`.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise RequestError(
            400, "the body must be multipart/form-data with a field 'file'", field="file"
        )
    body = await read_body(request, LARGEST_SOUND, seconds)

    async def parts() -> AsyncGenerator[bytes]:
        yield body

    try:
        form = await MultiPartParser(request.headers, parts(), max_files=1, max_fields=32).parse()
    except (MultiPartException, KeyError) as error:
        raise RequestError(
            400, f"the body cannot be read as multipart/form-data: {error}"
        ) from error
    sound: bytes | None = None
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if not isinstance(value, str):
                if name != "file":
                    raise RequestError(
                        400, f"there is no field {name[:64]!r} for a file: send it as 'file'"
                    )
                sound = await value.read()
            elif name.endswith(LISTS):
                fields.setdefault(name.removesuffix(LISTS), []).append(value)
            else:
                fields[name] = _number(value) if name in NUMBERS else value
    finally:
        await form.close()
    if sound is None:
        raise RequestError(400, "the field 'file' is missing", field="file")
    return sound, msgspec.json.encode(fields)


def _number(text: str) -> object:
    """The value of a field that should be a number or a bool; the text if it is no JSON."""
    try:
        found: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return found


def sound_of(data: bytes) -> tuple[npt.NDArray[np.float32], int]:
    """The samples of a sound file, and their rate in Hz. Blocks.

    Raises:
        RequestError: the data is no sound file, or one for which PyAV is not installed.
    """
    try:
        return read_sound(data)
    except (ModelError, InvalidArgument) as error:
        raise RequestError(400, f"file: {error}", field="file") from error


def options_of(given: Transcription, model: SpeechModel, *, translate: bool) -> dict[str, Any]:
    """The arguments of `SpeechModel.transcribe` for a request.

    Raises:
        RequestError: the model does not know the language or the task.
    """
    known = model.languages
    if given.language is not None and given.language not in known:
        raise RequestError(
            400, f"language: {given.language[:64]!r} is not one of {', '.join(known)}",
            field="language",
        )  # fmt: skip
    if translate and len(known) == 1:
        raise RequestError(
            400, "this model knows English alone, so it cannot translate", field="model"
        )
    options: dict[str, Any] = {
        "language": given.language, "prompt": given.prompt,
        "task": "translate" if translate else "transcribe",
        "words": "word" in given.timestamp_granularities,
        "beam_size": given.beam_size,
        **{name: getattr(given, name) for name in THRESHOLDS},
    }  # fmt: skip
    # As with OpenAI, 0 lets the model raise the temperature where it is not sure.
    return options | ({"temperature": given.temperature} if given.temperature else {})


def answer_whole(
    given: Transcription, segments: Sequence[Segment], seconds: float, *, translate: bool
) -> Response:
    """The answer in one piece, in the asked form."""
    text, form = as_text(segments), given.response_format
    if form == "json":
        return as_json({"text": text, "usage": {"type": "duration", "seconds": round(seconds, 2)}})
    if form == "verbose_json":
        found: dict[str, Any] = {
            "task": "translate" if translate else "transcribe",
            "language": segments[0].language if segments else None,
            "duration": seconds,
            "text": text,
        }
        wanted = given.timestamp_granularities
        if "word" in wanted:
            found["words"] = [
                {"word": x.text.strip(), "start": x.start, "end": x.end}
                for segment in segments
                for x in segment.words
            ]
        if "segment" in wanted or not wanted:
            found["segments"] = as_objects(segments)
        return as_json(found)
    told = {"text": f"{text}\n", "srt": as_srt(segments), "vtt": as_vtt(segments)}[form]
    return Response(told, media_type="text/vtt" if form == "vtt" else "text/plain")


async def events(write: Write, segments: AsyncIterator[Segment]) -> None:
    """Write an event for each segment, then one with the whole text."""
    found: list[Segment] = []
    async for segment in segments:
        piece = segment.text if found else segment.text.lstrip()
        found.append(segment)
        await write(event_of({"type": "transcript.text.delta", "delta": piece}))
    await write(event_of({"type": "transcript.text.done", "text": as_text(found)}))
