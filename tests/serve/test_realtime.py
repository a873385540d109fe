"""Sessions of live speech: events of OpenAI's realtime API, on any server, hang-ups anywhere.

The weights are random, so what is said is compared with what the model says alone. Not here:
OpenAI's client and real servers (test_realtime_clients.py).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import speech_file, voice_file
from serve.realtime_support import append, as_pcm, talking, without_turns
from serve.support import serving

import aggml
from aggml.models.small import write_small
from aggml.models.speech.subtitles import as_text
from aggml.models.speech.windows import Windows
from aggml.serve.http.raw_sound import SoundForm

if TYPE_CHECKING:
    from pathlib import Path

SOUND = speech_file.sound(1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_short(path)
    return path


@pytest.fixture(scope="module")
def vad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voice_file.write(tmp_path_factory.mktemp("voice") / "vad.safetensors")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of at most 8 tokens at temperature 0: the weights are random."""
    made, segments = Windows.__init__, aggml.models.SpeechModel.transcribe

    def shorter(self: Windows, *given: Any) -> None:
        made(self, *given)
        self.most = 8

    def cold(self: Any, *given: Any, **options: Any) -> Any:
        return segments(self, *given, **(options | {"temperature": 0.0}))

    monkeypatch.setattr(Windows, "__init__", shorter)
    monkeypatch.setattr(aggml.models.SpeechModel, "transcribe", cold)


async def said(model: Path, samples: Any, rate: int, **options: Any) -> str:
    async with aggml.models.load(model) as loaded:
        return as_text([x async for x in loaded.transcribe(samples, rate, **options)])


@pytest.mark.long
@pytest.mark.either_loop
async def test_a_committed_turn_is_transcribed_as_the_model_does(model: Path) -> None:
    pcm = as_pcm(SOUND)
    wanted = await said(model, pcm, 24000, language="en", prompt="a b, c, d")
    async with serving(models=[model]) as (app, _), talking(app) as talk:
        created = await talk.take("session.created")
        assert created["session"]["audio"]["input"]["turn_detection"] is None  # no detector here
        transcription = {"language": "en", "prompt": "a b,", "keywords": ["c", "d"]}
        await talk.update({"transcription": transcription})
        settings = (await talk.take("session.updated"))["session"]["audio"]["input"]
        assert settings["transcription"]["language"] == "en"
        for first in range(0, len(pcm), 5000):
            await talk.put(**append(pcm[first : first + 5000].tobytes()))
        await talk.put(type="input_audio_buffer.commit")
        committed = await talk.take("input_audio_buffer.committed")
        added = await talk.take("conversation.item.added")
        done = await talk.take("conversation.item.done")
        text, deltas = await talk.transcript()
        assert committed["previous_item_id"] is None
        assert {committed["item_id"], added["item"]["id"], done["item"]["id"]} == {text["item_id"]}
        assert text["transcript"] == wanted
        assert "".join(deltas).strip() == wanted
        assert text["usage"] == {"type": "duration", "seconds": 1.0}
        await talk.put(**append(pcm.tobytes()))
        await talk.put(type="input_audio_buffer.commit")
        second = await talk.take("input_audio_buffer.committed")
        assert second["previous_item_id"] == text["item_id"]
        talk.events.clear()
        await talk.until("conversation.item.input_audio_transcription.completed")


@pytest.mark.long
@pytest.mark.either_loop
async def test_the_older_events_are_answered_with_older_ones(model: Path, vad: Path) -> None:
    async with (
        serving(models=[model, vad]) as (app, _),
        talking(app, headers={"openai-beta": "realtime=v1"}) as talk,
    ):
        created = await talk.take("transcription_session.created")
        assert created["session"]["turn_detection"]["type"] == "server_vad"
        session = {
            "input_audio_format": "g711_ulaw", "turn_detection": None,
            "input_audio_transcription": {"language": "en", "prompt": ""},
        }  # fmt: skip
        await talk.put(type="transcription_session.update", session=session)
        updated = await talk.take("transcription_session.updated")
        assert updated["session"]["input_audio_format"] == "g711_ulaw"
        assert updated["session"]["turn_detection"] is None
        await talk.put(**append(bytes(8000)))
        await talk.put(type="input_audio_buffer.commit")
        await talk.take("input_audio_buffer.committed")
        assert (await talk.take("conversation.item.created"))["item"]["role"] == "user"
        text, _ = await talk.transcript()
        assert text["usage"]["seconds"] == 1.0


@pytest.mark.long
@pytest.mark.either_loop
async def test_a_detector_finds_the_turns(model: Path, vad: Path) -> None:
    sound = voice_file.sound()
    turns = {"threshold": 0.5, "silence_duration_ms": 100, "prefix_padding_ms": 30}
    async with aggml.models.load(vad) as loaded:
        options = {"silence": 0.1, "pad": 0.03, "shortest": 0.1}
        spans = [x async for x in loaded.listen([sound], 16000, **options)]
    assert len(spans) > 1
    texts = [await said(model, x.samples, 16000, language="en") for x in spans]
    async with serving(models=[model, vad]) as (app, _), talking(app) as talk:
        await talk.take("session.created")
        await talk.update(
            {
                "format": {"type": "audio/pcm", "rate": 16000},
                "transcription": {"language": "en"},
                "turn_detection": {"type": "server_vad", **turns},
            }
        )
        await talk.take("session.updated")
        pcm = np.round(sound * 32767).astype("<i2").tobytes()
        for first in range(0, len(pcm), 3333):  # cuts samples, too
            await talk.put(**append(pcm[first : first + 3333]))
        await talk.put(type="input_audio_buffer.commit")  # the last turn goes on
        found = [await talk.transcript() for _ in spans]
    began = talk.all("input_audio_buffer.speech_started")
    ended = talk.all("input_audio_buffer.speech_stopped")
    committed = talk.all("input_audio_buffer.committed")
    assert [x["audio_start_ms"] for x in began] == [round(1000 * x.start) for x in spans]
    assert [x["audio_end_ms"] for x in ended] == [round(1000 * x.end) for x in spans]
    items = [x["item_id"] for x in began]
    assert items == [x["item_id"] for x in ended] == [x["item_id"] for x in committed]
    assert [x["item_id"] for x, _ in found] == items
    assert [x["transcript"] for x, _ in found] == texts
    order = [x["type"] for x in talk.events if x.get("item_id") == items[0]]
    assert order[:3] == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
    ]  # fmt: skip


@pytest.mark.either_loop
async def test_clearing_forgets_the_buffer_and_the_turn_that_goes_on(
    model: Path, vad: Path
) -> None:
    pcm = np.round(voice_file.sound() * 32767).astype("<i2").tobytes()
    async with serving(models=[model, vad]) as (app, _), talking(app) as talk:
        for change in (None, {"type": "server_vad"}):
            form = {"type": "audio/pcm", "rate": 16000}
            await talk.update({"turn_detection": change, "format": form})
            await talk.until("session.updated")
            await talk.put(**append(pcm[:6400]))
            await talk.put(type="input_audio_buffer.clear")
            await talk.until("input_audio_buffer.cleared")
            talk.events.clear()
            await talk.put(type="input_audio_buffer.commit", event_id="mine")
            error = (await talk.until("error"))["error"]
            assert error["code"] == "input_audio_buffer_commit_empty"
            assert error["event_id"] == "mine"
            talk.events.clear()


@pytest.mark.either_loop
async def test_models_that_are_loaded_when_they_are_needed_find_turns_and_texts(
    model: Path, vad: Path
) -> None:
    pcm = np.round(voice_file.sound() * 32767).astype("<i2").tobytes()
    async with serving(models=[vad, model], memory=1 << 30) as (app, _), talking(app) as talk:
        created = await talk.until("session.created")
        assert created["session"]["audio"]["input"]["turn_detection"] is None
        form = {"type": "audio/pcm", "rate": 16000}
        turns = {"type": "server_vad", "silence_duration_ms": 100}
        await talk.update({"turn_detection": turns, "format": form})
        await talk.put(**append(pcm))
        await talk.until("conversation.item.input_audio_transcription.completed")
        assert not talk.all("error")


@pytest.mark.either_loop
async def test_turns_without_transcription_are_told_alone(model: Path) -> None:
    async with serving(models=[model]) as (app, _), talking(app) as talk:
        await talk.update({"transcription": None})
        updated = await talk.until("session.updated")
        assert updated["session"]["audio"]["input"]["transcription"] is None
        await talk.put(**append(bytes(48000)))
        await talk.put(type="input_audio_buffer.commit")
        await talk.until("conversation.item.done")
        await talk.update({"transcription": {}})
        await talk.until("session.updated")
    assert not [x for x in talk.events if "transcription." in x["type"]]


WRONG: list[tuple[dict[str, Any] | str, str | None, str]] = [
    ("{", None, "JSON"),
    ("[]", None, "JSON"),
    ("\udc80", None, "JSON"),
    ("[" * 9000, None, "JSON"),
    ({}, "type", "missing"),
    ({"type": 5}, "type", "'5' is not one of"),
    ({"type": "response.create"}, "type", "not one of session.update"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing"),
    ({"type": "input_audio_buffer.append", "audio": "ä"}, "audio", "base64"),
    ({"type": "input_audio_buffer.append", "audio": 5}, "audio", "int"),
    ({"type": "session.update"}, "session", "missing"),
    ({"type": "session.update", "session": []}, "session", "array"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "session.type", "alone"),
    ({"type": "session.update", "session": {"include": ["x"]}}, "session.include", "'x'"),
    (
        {"type": "session.update", "session": {"input_audio_format": "mp3"}},
        "session.input_audio_format", "pcm16",
    ),
]  # fmt: skip
WRONG_INPUT: list[tuple[dict[str, Any], str, str]] = [
    ({"format": {"type": "audio/opus"}}, "session", "audio/opus"),
    ({"format": {"type": "audio/pcm", "rate": 7999}}, "session", "8000"),
    ({"format": {"type": "audio/pcmu", "rate": 16000}}, "rate", "8000"),
    ({"noise_reduction": {"type": "near_field"}}, "noise_reduction", "not reduced"),
    ({"turn_detection": {"type": "semantic_vad"}}, "turn_detection.type", "server_vad"),
    ({"turn_detection": {"type": "server_vad"}}, "turn_detection", "no detector of speech"),
    ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "session", "<= 1"),
    ({"transcription": {"model": "whisper-9"}}, "model", "whisper-9"),
    ({"transcription": {"language": "xx"}}, "language", "'xx' is not one of en"),
    ({"transcription": {"prompt": "a" * 5000}}, "session", "4096"),
]


@pytest.mark.either_loop
async def test_what_cannot_be_is_refused_and_the_session_goes_on(model: Path) -> None:
    inner = [
        ({"type": "session.update", "session": {"audio": {"input": x}}}, field, why)
        for x, field, why in WRONG_INPUT
    ]
    async with serving(models=[model]) as (app, client), talking(app) as talk:
        before = (await talk.take("session.created"))["session"]
        for event, field, why in [*WRONG, *inner]:
            if isinstance(event, str):
                await talk.put_text(event.encode("utf-8", "surrogatepass"))
            else:
                await talk.put(**event)
            error = (await talk.take("error"))["error"]
            assert why in error["message"], (event, error)
            assert (error["param"] or "").endswith(field or ""), (event, error)
            assert error["type"] == "invalid_request_error"
        form = {"type": "audio/pcmu"}
        await talk.put(**append(b"abc"))
        await talk.update({"format": form})
        assert "the buffer has 3 bytes" in (await talk.take("error"))["error"]["message"]
        unknown = {"audio": {"input": {"transcription": {"tempo": 1}}}, "voice": "alloy"}
        await talk.put(type="session.update", session=unknown)
        updated = await talk.take("session.updated")
        assert updated["aggml_ignored"] == "session.audio.input.transcription.tempo, session.voice"
        assert updated["session"] == before
        metrics = (await client.get("/metrics")).text
        assert 'aggml_ignored_fields_total{field="session.voice"} 1.0' in metrics
        assert "aggml_sessions 1.0" in metrics


@pytest.mark.either_loop
async def test_a_strict_service_refuses_fields_that_nobody_knows(model: Path) -> None:
    async with serving(models=[model], strict=True) as (app, _), talking(app) as talk:
        await talk.put(type="session.update", session={"voice": "alloy"})
        assert (await talk.until("error"))["error"]["param"] == "session.voice"


@pytest.mark.long
@pytest.mark.either_loop
async def test_a_buffer_is_bounded(model: Path) -> None:
    async with serving(models=[model]) as (app, _), talking(app) as talk:
        for _ in range(3):
            await talk.put(**append(bytes(6 << 20)))
        error = (await talk.until("error"))["error"]
        assert error["code"] == "input_audio_buffer_full"
        await talk.put(type="input_audio_buffer.clear")
        await talk.until("input_audio_buffer.cleared")


@pytest.mark.either_loop
async def test_handshakes_are_answered_with_the_reason(model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"api_key": "right", "sessions": 1, "cors": ("https://here",)}
    bearer = {"authorization": "Bearer right"}
    async with serving(models=[model], **options) as (app, client):
        refused: list[tuple[dict[str, Any], int]] = [
            ({}, 401),
            ({"headers": {"authorization": "Bearer wrong"}}, 401),
            ({"protocols": ["realtime", "openai-insecure-api-key.wrong"]}, 401),
            ({"headers": {**bearer, "origin": "https://elsewhere"}}, 403),
            ({"headers": bearer, "query": "intent=conversation"}, 400),
            ({"headers": bearer, "query": "model=none"}, 404),
            ({"headers": bearer, "path": "/v1/none"}, 403),
        ]
        for more, status in refused:
            async with talking(app, **more) as talk:
                assert talk.status == status, (more, talk.status)
                if status != 403:
                    assert talk.body["error"]["message"]
        accepted: list[dict[str, Any]] = [
            {"headers": bearer, "query": "model=random&intent=transcription"},
            {"protocols": ["realtime", "openai-insecure-api-key.right"]},
            {"headers": {**bearer, "origin": "https://here"}, "path": "/realtime/"},
            {"headers": {**bearer, "origin": "http://server", "host": "server"}},
        ]
        for more in accepted:
            async with talking(app, **more) as talk:
                assert talk.status == 101, more
                assert talk.protocol == ("realtime" if "protocols" in more else None)
                async with talking(app, headers=bearer) as second:
                    assert second.status == 503
        answer = await client.get("/v1/realtime")
        assert answer.status_code == 426
        assert answer.headers["upgrade"] == "websocket"
    other = tmp_path / "small.gguf"
    write_small(other)
    async with serving(models=[other]) as (app, _), talking(app) as talk:
        assert talk.status == 404


@pytest.mark.long(cases=1)
async def test_a_session_from_which_nothing_comes_is_ended(model: Path) -> None:
    async with serving(models=[model], session_idle=0.05) as (app, _), talking(app) as talk:
        error = (await talk.until("error"))["error"]
        assert error["code"] == "session_expired"
        assert await talk.closed() == 1001
        assert not app.state.service.sessions


@pytest.mark.long(cases=1)
async def test_a_stopping_server_transcribes_what_was_committed_and_says_so(model: Path) -> None:
    async with serving(models=[model]) as (app, _), talking(app) as talk, talking(app) as other:
        await talk.put(**append(as_pcm(SOUND).tobytes()))
        await talk.put(type="input_audio_buffer.commit")
        await talk.until("input_audio_buffer.committed")
        await app.state.service.drain(60)
        await talk.until("conversation.item.input_audio_transcription.completed")
        for one in (talk, other):
            assert (await one.until("error"))["error"]["code"] == "server_stopping"
            assert await one.closed() == 1001
        async with talking(app) as late:
            assert late.status == 503


@pytest.mark.either_loop
async def test_a_transcription_that_fails_is_told_and_the_next_turn_works(model: Path) -> None:
    async with serving(models=[model]) as (app, _), talking(app) as talk:
        (transcriber,) = app.state.service.transcribers.values()
        windows = transcriber._ready()
        kept = windows._together

        async def fails(_: Any) -> Any:
            raise RuntimeError("no")

        windows._together = fails
        await talk.put(**append(bytes(48000)))
        await talk.put(type="input_audio_buffer.commit")
        failed = await talk.until("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["type"] == "server_error"
        windows._together = kept
        await talk.put(**append(bytes(48000)))
        await talk.put(type="input_audio_buffer.commit")
        await talk.until("conversation.item.input_audio_transcription.completed")


@pytest.mark.long(cases=1)
async def test_a_client_that_goes_ends_its_window(model: Path) -> None:
    begun, ended = anyio.Event(), anyio.Event()
    async with serving(models=[model]) as (app, _):
        (transcriber,) = app.state.service.transcribers.values()
        windows = transcriber._ready()

        async def waits(_: Any) -> Any:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        windows._together = waits
        async with talking(app) as talk:
            await talk.put(**append(bytes(48000)))
            await talk.put(type="input_audio_buffer.commit")
            await begun.wait()
        await ended.wait()
        assert not app.state.service.sessions


@pytest.mark.long(cases=1)
async def test_a_client_that_does_not_read_is_given_up_after_a_time(model: Path) -> None:
    async with serving(models=[model], session_idle=0.1) as (app, _):
        async with talking(app, reads=False) as talk:
            for _ in range(200):
                if not await talk.try_put(type="none"):
                    break
            await talk.ended.wait()
        assert not app.state.service.sessions


@pytest.mark.long
@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.slow)])
async def test_sessions_with_hang_ups_at_every_point_leave_nothing(
    model: Path, vad: Path, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = np.zeros((speech_file.BANDS, 2 * speech_file.SHORT), np.float32)  # saves time
    monkeypatch.setattr("aggml.models.speech.segments.spectrogram", lambda *_: silence)
    pcm = np.round(voice_file.sound()[:16000] * 32767).astype("<i2").tobytes()
    script: list[dict[str, Any]] = [
        without_turns(16000), append(pcm[:8001]), append(pcm[8001:]),
        {"type": "input_audio_buffer.commit"},
        {"type": "session.update", "session": {"audio": {"input": {
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 100}}}}},
        append(pcm), append(bytes(6400)), {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
    ]  # fmt: skip
    most = 40  # more messages than both sides send
    async with serving(models=[model, vad], sessions=1000) as (app, _):
        (transcriber,) = app.state.service.transcribers.values()
        windows = transcriber._ready()

        async def quick(given: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return [_said(window) for window in given]

        windows._together = quick

        async def visit(point: int) -> None:
            async with talking(app, hang_up=point) as talk:
                for event in script:
                    if not await talk.try_put(**event):
                        return
                await talk.until("input_audio_buffer.cleared", gone=True)

        for _ in range(rounds):
            async with anyio.create_task_group() as tasks:
                for point in range(most):
                    tasks.start_soon(visit, point)
        assert len(app.state.service.sessions) == 0
        assert app.state.service.under_way.count == 0
        engine = transcriber._batches
        assert not engine._queue
        assert not engine._batches
        async with talking(app) as talk:
            await talk.update({"turn_detection": None})
            await talk.put(**append(bytes(48000)))
            await talk.put(type="input_audio_buffer.commit")
            await talk.until("conversation.item.input_audio_transcription.completed")


def _said(window: Any) -> Any:
    from aggml.models.speech.windows import WindowText

    return WindowText([100, 200], window.asked.language or "en", 0.0, -0.1, 1.0, 0.0)


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_telephone_laws_are_those_of_ffmpeg(kind: str) -> None:
    import av

    name = {"audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}[kind]
    codec: Any = av.CodecContext.create(name, "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    packet = av.Packet(bytes(range(256)))
    packet.time_base = Fraction(1, 8000)
    (frame,) = codec.decode(packet)
    wanted = frame.to_ndarray().reshape(-1)
    found = SoundForm(kind, 8000).samples(bytes(range(256)))
    assert np.array_equal(found, wanted)
