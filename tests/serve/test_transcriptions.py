"""aggml.serve transcribes speech: OpenAI's form of a request, the five forms of answers, events.

The weights are random, so what is said is compared with what the model says alone. Not here: the
model itself (tests/models/test_speech.py).
"""

from __future__ import annotations

import io
import json
import wave
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from models import speech_file
from serve.support import serving

import aggml
from aggml.models.speech.subtitles import as_srt, as_text, as_vtt

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

ROUTE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_short(path)
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    speech_file.shorten(monkeypatch, 12)


def wav(seconds: float = 1.0) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, 16000, 0, "NONE", ""))
        made.writeframes((speech_file.sound(seconds) * 32767).astype("<i2").tobytes())
    return file.getvalue()


async def ask(
    client: httpx.AsyncClient, data: bytes | None = None, route: str = ROUTE, **fields: Any
) -> httpx.Response:
    sent = {"file": ("a.wav", wav() if data is None else data, "audio/wav")}
    return await client.post(route, files=sent, data=fields)


async def alone(model: Path, data: bytes, **options: Any) -> list[aggml.models.Segment]:
    async with await aggml.models.load(model) as loaded:
        return [x async for x in loaded.transcribe(*aggml.models.read_wav(data), **options)]


@pytest.mark.long
async def test_every_form_of_an_answer_tells_what_the_model_says(model: Path) -> None:
    # With a language and temperature 0 nothing depends on random draws.
    wanted = await alone(model, wav(), language="en", temperature=0.0)
    async with serving(models=[model]) as (service, client):
        for transcriber in service.state.service.transcribers.values():
            segments = transcriber.transcribe

            def cold(*given: Any, _segments: Any = segments, **options: Any) -> Any:
                return _segments(*given, **(options | {"temperature": 0.0}))

            transcriber.transcribe = cold
        name = (await client.get("/v1/models")).json()["data"][0]["id"]
        told = {
            form: await ask(client, model=name, language="en", response_format=form)
            for form in ("json", "text", "srt", "vtt", "verbose_json")
        }
        streamed = await ask(client, language="en", stream="true")
        beams = await ask(client, language="en", beam_size="4")
        usual = await ask(client, language="en", beam_size="1")
        none = await ask(client, language="en", no_speech_threshold="0", logprob_threshold="null")
        translated = await ask(client, route="/v1/audio/translations", language="en")
    assert {x.status_code for x in told.values()} == {200}, [x.text for x in told.values()]
    assert none.json()["text"] == ""  # silence is more probable than that in any sound
    text = as_text(wanted)
    assert told["json"].json()["text"] == text
    assert told["json"].json()["usage"] == {"type": "duration", "seconds": 1.0}
    assert told["text"].text == f"{text}\n"
    assert told["srt"].text == as_srt(wanted)
    assert told["vtt"].text == as_vtt(wanted)
    whole = told["verbose_json"].json()
    assert (whole["text"], whole["duration"], whole["task"]) == (text, 1.0, "transcribe")
    assert [x["tokens"] for x in whole["segments"]] == [x.tokens for x in wanted]
    events = [json.loads(x[6:]) for x in streamed.text.split("\n\n") if x.startswith("data: ")]
    assert events[-1] == {"type": "transcript.text.done", "text": text}
    assert "".join(x["delta"] for x in events[:-1]).strip() == text
    assert translated.status_code == 200
    assert usual.json()["text"] == text
    assert beams.status_code == 200


@pytest.mark.long
async def test_requests_together_share_windows(model: Path) -> None:
    sizes: list[int] = []
    async with serving(models=[model]) as (service, client):
        (transcriber,) = service.state.service.transcribers.values()
        together = transcriber._ready()._together

        async def counted(windows: Any) -> Any:
            sizes.append(len(windows))
            return await together(windows)

        transcriber._ready()._together = counted
        async with anyio.create_task_group() as tasks:
            # temperature 0, because a randomly drawn time might need one more window
            for _ in range(6):
                tasks.start_soon(partial(ask, client, language="en", temperature="0"))
    assert sum(sizes) == 6
    assert max(sizes) > 1


@pytest.mark.long
async def test_the_time_of_each_word_is_told_if_asked_for(model: Path) -> None:
    form = {"response_format": "verbose_json"}
    both = {"timestamp_granularities[]": ["word", "segment"]}
    alone = {"timestamp_granularities[]": "word"}
    async with serving(models=[model]) as (_, client):
        whole = (await ask(client, None, ROUTE, **form, **both)).json()
        words = (await ask(client, None, ROUTE, **form, **alone)).json()
        plain = (await ask(client, None, ROUTE, **form)).json()
    assert "words" not in plain
    assert "segments" not in words
    for answer in (words, whole):
        said = "".join(x["word"] for x in answer["words"])
        assert said == "".join(answer["text"].split())
        times = [t for x in answer["words"] for t in (x["start"], x["end"])]
        assert times == sorted(times)
    assert whole["segments"]
    assert plain["segments"]


@pytest.mark.long
async def test_a_field_that_nobody_knows_is_ignored_and_named(model: Path) -> None:
    async with serving(models=[model]) as (_, client):
        answer = await ask(client, None, ROUTE, chunking_strategy="auto")
    assert answer.status_code == 200
    assert answer.headers["X-Aggml-Ignored"] == "chunking_strategy"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"language": "xx"}, "language", "'xx' is not one of en, zh"),
    ({"response_format": "diarized_json"}, "response_format", "diarized_json"),
    ({"temperature": "2"}, "temperature", "<= 1"),
    ({"temperature": "warm"}, "temperature", "temperature"),
    ({"timestamp_granularities[]": "letter"}, "timestamp_granularities", "letter"),
    ({"stream": "perhaps"}, "stream", "stream"),
    ({"beam_size": "0"}, "beam_size", ">= 1"),
    ({"beam_size": "9"}, "beam_size", "slots=9"),
    ({"no_speech_threshold": "1.5"}, "no_speech_threshold", "<= 1"),
    ({"logprob_threshold": "low"}, "logprob_threshold", "float"),
]


async def test_fields_that_cannot_be_are_refused(model: Path) -> None:
    async with serving(models=[model]) as (_, client):
        for fields, field, message in WRONG:
            answer = await ask(client, None, ROUTE, **fields)
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"] == field
            assert message in answer.json()["error"]["message"]


async def test_bodies_that_are_no_recording_are_refused(model: Path) -> None:
    async with serving(models=[model]) as (_, client):
        for answer, message in (
            (await ask(client, b"ID3"), "the sound file cannot be decoded"),
            (await client.post(ROUTE, json={"model": "x"}), "multipart/form-data"),
            (await client.post(ROUTE, files={"other": b"x"}), "'other'"),
            (await client.post(ROUTE, files={"file": b""}), "the sound file cannot be decoded"),
            (
                await client.post(
                    ROUTE, content=b"x", headers={"content-type": "multipart/form-data"}
                ),
                "cannot be read as multipart/form-data",
            ),
        ):
            assert answer.status_code == 400, answer.text
            assert message in answer.json()["error"]["message"]
        missing = await ask(client, model="none")
        assert missing.status_code == 404
        await ask(client)  # the service still answers


async def test_a_client_that_hangs_up_ends_its_window(model: Path) -> None:
    under_way = anyio.Event()
    ended = anyio.Event()
    async with serving(models=[model]) as (service, client):
        (transcriber,) = service.state.service.transcribers.values()
        windows = transcriber._ready()

        async def waits(_: Any) -> Any:
            under_way.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        kept = windows._together
        windows._together = waits
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            await under_way.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await ended.wait()
        windows._together = kept
        assert (await ask(client)).status_code == 200
