"""Sessions of live speech on both servers: OpenAI's own client, and clients that break off.

Not here: the events themselves (test_realtime.py).
"""

from __future__ import annotations

import base64
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from models import speech_file, voice_file
from serve.support import LOOPS, PATIENCE, started
from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai import OpenAI

# OpenAI's client opens a WebSocket in a way that newer websockets warn of.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
SHORT = ["--header-timeout", "1", "--max-body", "1"]


@pytest.fixture(scope="module", params=LOOPS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    speech_file.write_short(folder / "random.bin", 32)
    files = [folder / "random.bin", voice_file.write(folder / "vad.safetensors")]
    more = [*SHORT, "--api-key", "right"]
    with started(files, request.param, more=more) as (_, found):
        yield found


def client(**options: Any) -> OpenAI:
    # Importing it takes a second of a core, which each process that collects tests would spend.
    from openai import OpenAI

    return OpenAI(timeout=PATIENCE, **options)


def sessions(url: str) -> float:
    """How many sessions the server has."""
    text = httpx.get(f"{url}/metrics", headers={"x-api-key": "right"}, timeout=PATIENCE).text
    (line,) = [x for x in text.splitlines() if x.startswith("aggml_sessions ")]
    return float(line.split()[1])


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.long
def test_the_client_of_openai_gets_its_turns(url: str) -> None:
    pcm = np.round(voice_file.sound() * 32767).astype("<i2").tobytes()
    with client(base_url=f"{url}/v1", api_key="right").realtime.connect(
        extra_query={"intent": "transcription"}
    ) as talk:
        kinds: list[str] = []
        sound: Any = {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"model": "random", "language": "en"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 100},
        }
        talk.session.update(session={"type": "transcription", "audio": {"input": sound}})
        for first in range(0, len(pcm), 9600):
            talk.input_audio_buffer.append(audio=encoded(pcm[first : first + 9600]))
        text: str | None = None
        for event in talk:
            kinds.append(event.type)
            assert event.type != "error", event
            if event.type == "session.updated":
                assert event.session.type == "transcription"
            if event.type == "conversation.item.input_audio_transcription.completed":
                text = event.transcript
                break
    assert text is not None
    assert kinds[:2] == ["session.created", "session.updated"]
    assert "input_audio_buffer.speech_started" in kinds
    assert "input_audio_buffer.committed" in kinds


@pytest.mark.long(cases=1)
def test_the_older_client_of_openai_commits_its_turns(url: str) -> None:
    address = url.replace("http", "ws") + "/v1"
    with (
        client(api_key="right", websocket_base_url=address) as older,
        older.beta.realtime.connect(
            model="random", extra_query={"intent": "transcription"}
        ) as talk,
    ):
        session: Any = {
            "input_audio_format": "pcm16", "turn_detection": None,
            "input_audio_transcription": {"model": "random", "language": "en"},
        }  # fmt: skip
        talk.transcription_session.update(session=session)
        talk.input_audio_buffer.append(audio=encoded(bytes(48000)))
        talk.input_audio_buffer.commit()
        kinds = []
        for event in talk:
            kinds.append(str(event.type))
            assert event.type != "error", event
            if kinds[-1].endswith("transcription.completed"):
                break
    assert kinds[:2] == ["transcription_session.created", "transcription_session.updated"]
    assert kinds[2:4] == ["input_audio_buffer.committed", "conversation.item.created"]


@pytest.mark.long
def test_a_wrong_key_is_told_at_the_handshake(url: str) -> None:
    wrong = client(base_url=f"{url}/v1", api_key="wrong")
    with pytest.raises(Exception, match="401"), wrong.realtime.connect():
        pass


@pytest.mark.long(cases=1)
def test_a_session_outlives_the_time_of_a_head_and_too_long_messages_end_it(url: str) -> None:
    address = url.replace("http", "ws") + "/v1/realtime"
    headers = {"authorization": "Bearer right"}
    with connect(address, additional_headers=headers, open_timeout=PATIENCE) as talk:
        assert json.loads(talk.recv(PATIENCE))["type"] == "session.created"
        with pytest.raises(TimeoutError):
            talk.recv(1.3)  # longer than --header-timeout
        talk.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert json.loads(talk.recv(PATIENCE))["type"] == "input_audio_buffer.cleared"
        talk.send("x" * (3 << 20))
        with pytest.raises(Exception, match=r"1009|connection|pipe"):
            talk.recv(PATIENCE)


def test_sockets_that_break_off_leave_no_session(url: str) -> None:
    host, port = "127.0.0.1", int(url.rpartition(":")[2])
    event = json.dumps({"type": "input_audio_buffer.append", "audio": encoded(bytes(600))})
    frame = bytes([0x81, 0xFE, *len(event).to_bytes(2, "big"), 0, 0, 0, 0]) + event.encode()
    head = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Authorization: Bearer right\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    whole = head + 2 * frame
    for cut in range(1, len(whole), 53):
        with socket.create_connection((host, port)) as raw:
            raw.settimeout(PATIENCE)
            raw.sendall(whole[: min(cut, len(head))])
            if cut >= len(head):
                assert b" 101 " in raw.recv(64)
                raw.sendall(whole[len(head) : cut])
    for _ in range(200):
        if not sessions(url):
            return
    raise AssertionError(sessions(url))
