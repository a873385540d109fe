"""The programs that answer questions: answer_speech.py, answer_documents.py; on random weights."""

from __future__ import annotations

import functools
import io
import re
import runpy
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from models import speech_file, voice_file

from aggml.models import TextModel
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_spoken_questions_are_answered(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, 16000, 0, "NONE", ""))
        made.writeframes((voice_file.sound() * 32767).astype("<i2").tobytes())
    sound = tmp_path / "a.wav"
    sound.write_bytes(file.getvalue())
    speech_file.write_short(tmp_path / "whisper.bin")
    speech_file.shorten(monkeypatch, 24)
    small = str(write_small(tmp_path / "small.gguf"))
    files = [str(voice_file.write(tmp_path / "vad.safetensors")), str(tmp_path / "whisper.bin")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["answer_speech", *files, small, small, str(sound)])
    monkeypatch.setattr(anyio, "run", functools.partial(anyio.run, backend=loop))
    runpy.run_path(str(EXAMPLES / "answer_speech.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("\n! ") >= 1
    assert "-> search" in printed
    assert re.search(r">answer \d<", (tmp_path / "answer_speech.svg").read_text())


async def test_questions_about_documents_are_answered_with_sources(tmp_path: Path) -> None:
    small = write_small(tmp_path / "small.gguf")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("The library opens at nine. " * 40)
    (folder / "b.txt").write_text("Trains leave from platform four.")
    made: Any = runpy.run_path(str(EXAMPLES / "answer_documents.py"))["application"]
    app = made(folder, small, small)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        found = await client.post("/ask", json={"question": "When?"}, timeout=60)
    assert found.status_code == 200
    assert set(found.json()["sources"]) <= {"a.txt", "b.txt"}
    assert len(found.json()["sources"]) == 3


async def test_a_client_that_hangs_up_ends_the_work_of_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_small(tmp_path / "small.gguf")
    (tmp_path / "a.txt").write_text("The library opens at nine.")
    app: Any = runpy.run_path(str(EXAMPLES / "answer_documents.py"))["application"](
        tmp_path, small, small
    )
    working, ended = anyio.Event(), []

    async def endless(*_: Any, **__: Any) -> AsyncIterator[Any]:
        working.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("generate")
        yield None

    monkeypatch.setattr(TextModel, "generate", endless)
    messages = [{"type": "http.request", "body": b'{"question": "When?"}', "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await working.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        ended.append(message["type"])

    scope = {
        "type": "http", "method": "POST", "path": "/ask", "headers": [], "query_string": b"",
        "http_version": "1.1", "root_path": "", "scheme": "http",
    }  # fmt: skip
    with anyio.fail_after(60):
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)
    assert ended[0] == "generate"
