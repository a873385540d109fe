"""Settings of a session of live speech: what an update changes, and how a session tells them.

Here: plain functions on values; OpenAI's older form of a session, which is flat. Not here: the
fields themselves (schema.py), the session (realtime.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from aggml.serve.http.raw_sound import TELEPHONE, SoundForm
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from aggml.serve.http.schema import (
        RealtimeFormat,
        RealtimeSession,
        RealtimeTranscription,
        RealtimeTurns,
    )

__all__ = [
    "SessionSettings",
    "TurnSettings",
    "as_new_form",
    "describe_flat",
    "describe_session",
    "update_settings",
]

#: Names of the flat form, and what they are called under ``audio.input``.
FLAT: Final = {
    "input_audio_format": "format", "input_audio_transcription": "transcription",
    "turn_detection": "turn_detection", "input_audio_noise_reduction": "noise_reduction",
}  # fmt: skip
#: Formats of the flat form, and their names in the new one.
FORMATS: Final = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
DROPPED: Final = ("client_secret", "modalities")  # of the flat form; they change nothing here
DETECTOR: Final = "server_vad"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How a detector of speech finds the turns; the defaults are OpenAI's."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session.

    Attributes:
        form: what the bytes of the sound mean.
        transcribes: whether turns are transcribed.
        model: the name of the model; None: the first one that can.
        language: a code; None: the model finds out.
        prompt, keywords: show names and spelling.
        turns: how turns are found; None: the client commits them.
    """

    form: SoundForm = field(default_factory=SoundForm)
    transcribes: bool = True
    model: str | None = None
    language: str | None = None
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    turns: TurnSettings | None = None

    @property
    def context(self) -> str:
        """The prompt and the keywords as one text."""
        return " ".join(x for x in (self.prompt.strip(), ", ".join(self.keywords)) if x)


def as_new_form(session: dict[str, Any]) -> dict[str, Any]:
    """A session in the new form, whichever form it came in.

    Raises:
        RequestError: a format that there is not.
    """
    moved = {new: session[old] for old, new in FLAT.items() if old in session}
    if not moved:
        return session
    given = moved.get("format")
    if given is None:
        moved.pop("format", None)
    elif given not in FORMATS:
        raise RequestError(
            400, f"input_audio_format: {str(given)[:64]!r} is not one of {', '.join(FORMATS)}",
            field="session.input_audio_format",
        )  # fmt: skip
    else:
        moved["format"] = {"type": FORMATS[given]}
    kept = {k: x for k, x in session.items() if k not in FLAT and k not in DROPPED}
    return {**kept, "audio": {"input": moved}}


def update_settings(old: SessionSettings, given: RealtimeSession) -> SessionSettings:
    """The settings after an update.

    Raises:
        RequestError: it asks for something that is not built.
    """
    if given.type != "transcription":
        raise _make_refusal("type", f"{given.type[:64]!r}: there are transcription sessions alone")
    if given.include:
        raise _make_refusal(
            "include", f"{given.include[0][:64]!r}: probabilities of tokens are not told"
        )
    sound = given.audio.input if given.audio is not None else None
    if sound is None:
        return old
    place = "audio.input."
    if sound.noise_reduction is not None:
        raise _make_refusal(f"{place}noise_reduction", "noise is not reduced here; leave it out")
    new = old
    if sound.format is not UNSET and sound.format is not None:
        new = replace(new, form=_form(sound.format, place))
    if sound.transcription is None:
        new = replace(new, transcribes=False)
    elif sound.transcription is not UNSET:
        new = _transcription(new, sound.transcription)
    if sound.turn_detection is None:
        new = replace(new, turns=None)
    elif sound.turn_detection is not UNSET:
        new = replace(new, turns=_turns(new.turns or TurnSettings(), sound.turn_detection, place))
    return new


def _make_refusal(name: str, why: str) -> RequestError:
    return RequestError(400, f"{name}: {why}", field=f"session.{name}")


def _form(given: RealtimeFormat, place: str) -> SoundForm:
    if given.type == "audio/pcm":
        return SoundForm(given.type, SoundForm().rate if given.rate is None else given.rate)
    if given.rate not in (None, TELEPHONE):
        raise _make_refusal(f"{place}format.rate", f"G.711 has {TELEPHONE} samples a second")
    return SoundForm(given.type, TELEPHONE)


def _transcription(old: SessionSettings, given: RealtimeTranscription) -> SessionSettings:
    new = replace(old, transcribes=True)
    if given.model is not UNSET:
        new = replace(new, model=given.model or None)
    if given.language is not UNSET:
        new = replace(new, language=given.language or None)
    if given.prompt is not UNSET:
        new = replace(new, prompt=given.prompt or "")
    if given.keywords is not UNSET:
        new = replace(new, keywords=tuple(given.keywords or ()))
    return new


def _turns(old: TurnSettings, given: RealtimeTurns, place: str) -> TurnSettings:
    if given.type is not UNSET and given.type != DETECTOR:
        raise _make_refusal(
            f"{place}turn_detection.type",
            f"{given.type[:64]!r} is not built: {DETECTOR!r} is, and null lets the client commit",
        )
    usual = TurnSettings()
    new = old
    if given.threshold is not UNSET:
        threshold = usual.threshold if given.threshold is None else given.threshold
        new = replace(new, threshold=threshold)
    if given.prefix_padding_ms is not UNSET:
        before = given.prefix_padding_ms
        new = replace(new, prefix_padding_ms=usual.prefix_padding_ms if before is None else before)
    if given.silence_duration_ms is not UNSET:
        quiet = given.silence_duration_ms
        new = replace(
            new, silence_duration_ms=usual.silence_duration_ms if quiet is None else quiet
        )
    return new


def _describe_turns(settings: SessionSettings) -> dict[str, Any] | None:
    turns = settings.turns
    if turns is None:
        return None
    return {
        "type": DETECTOR, "threshold": turns.threshold,
        "prefix_padding_ms": turns.prefix_padding_ms,
        "silence_duration_ms": turns.silence_duration_ms,
    }  # fmt: skip


def _describe_transcription(settings: SessionSettings) -> dict[str, Any] | None:
    if not settings.transcribes:
        return None
    found: dict[str, Any] = {
        "model": settings.model,
        "language": settings.language,
        "prompt": settings.prompt,
    }
    return found | ({"keywords": settings.keywords} if settings.keywords else {})


def describe_session(settings: SessionSettings, name: str) -> dict[str, Any]:
    """The session ``name`` as its client is told."""
    return {
        "id": name, "object": "realtime.transcription_session", "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": settings.form.type, "rate": settings.form.rate},
                "transcription": _describe_transcription(settings),
                "noise_reduction": None,
                "turn_detection": _describe_turns(settings),
            }
        },
        "include": [],
    }  # fmt: skip


def describe_flat(settings: SessionSettings, name: str) -> dict[str, Any]:
    """The same in the older form."""
    old = {new: old for old, new in FORMATS.items()}
    return {
        "id": name, "object": "realtime.transcription_session",
        "input_audio_format": old[settings.form.type],
        "input_audio_transcription": _describe_transcription(settings),
        "input_audio_noise_reduction": None,
        "turn_detection": _describe_turns(settings),
        "include": [],
    }  # fmt: skip
