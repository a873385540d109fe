"""The programs that answer questions: answer_speech.py, answer_documents.py; on random weights."""

from __future__ import annotations

import functools
import io
import re
import runpy
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx
import pytest
from models import speech_file, voice_file

from aggml.models import TextModel
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aggml.models.engine.engine import Engine
    from aggml.models.token_stream import TokenStream

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLIENTS, LEAVER = 8, 3
SCOPE = {
    "type": "http", "method": "POST", "path": "/ask", "headers": [], "query_string": b"",
    "http_version": "1.1", "root_path": "", "scheme": "http",
}  # fmt: skip


@pytest.mark.long(cases=1)
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


@pytest.mark.long(cases=1)
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

    with anyio.fail_after(60):
        async with app.router.lifespan_context(app):
            await app(SCOPE, receive, send)
    assert ended[0] == "generate"


class Clients:
    """Eight clients of answer_documents, whose answers begin together; one of them hangs up.

    Attributes:
        steps: the clients whose next token each step of the model computed, in order.
        streams: of each client, the tokens of its answer.
        given: how many of them it has got.
        sent: the messages that the application sent to it.
        left: when its answer was cancelled: how many steps there had been, and tokens of its own.
            That is some turns of the event loop after it hung up, in which there may be steps.
        model: the one that answers.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[set[int]] = []
        self.streams: dict[int, TokenStream] = {}
        self.given = dict.fromkeys(range(CLIENTS), 0)
        self.sent: dict[int, list[Any]] = {i: [] for i in range(CLIENTS)}
        self.left: tuple[int, int] | None = None
        self.model: Any = None
        self._patch = monkeypatch
        self._together, self._tired = anyio.Event(), anyio.Event()
        made, clients = TextModel.generate, self

        async def generate(model: TextModel, prompt: str, **options: Any) -> AsyncIterator[Any]:
            found = re.search(r"Question: (\d)", prompt)
            assert found is not None
            who = int(found[1])
            stream = made(model, prompt, **(options | {"stop": (), "stop_ids": []}))
            async for token in clients._begin(who, model, stream):
                yield token

        monkeypatch.setattr(TextModel, "generate", generate)

    async def _begin(self, who: int, model: TextModel, stream: TokenStream) -> AsyncIterator[Any]:
        if not self.streams:
            self.model, engine = model, cast("Engine", model.engine)
            self._patch.setattr(engine, "_launch", self._counting(engine._launch))
        self.streams[who] = stream
        if len(self.streams) == CLIENTS:
            self._together.set()
        await self._together.wait()
        try:
            async for token in stream:
                self.given[who] += 1
                if min(self.given.values()) >= 2 and self.given[LEAVER] >= 5:
                    self._tired.set()
                yield token
        finally:
            if who == LEAVER:
                self.left = len(self.steps), self.given[who]

    def _counting(self, launch: Any) -> Any:
        def counted(plan: Any) -> Any:
            launched = launch(plan)
            if launched:
                those = [who for who, x in self.streams.items() if x._request in plan.running]
                self.steps.append(set(those))
            return launched

        return counted

    async def ask(self, app: Any, who: int) -> None:
        """One client: asks a question, and waits for the answer or hangs up."""
        body = b'{"question": "%d"}' % who
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            if who != LEAVER:
                await anyio.sleep_forever()
            await self._tired.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent[who].append(message)

        await app(dict(SCOPE), receive, send)


@pytest.mark.long(cases=1)
async def test_of_eight_clients_one_hangs_up_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_small(tmp_path / "small.gguf")
    (tmp_path / "a.txt").write_text("The library opens at nine.")
    app: Any = runpy.run_path(str(EXAMPLES / "answer_documents.py"))["application"](
        tmp_path, small, small
    )
    clients = Clients(monkeypatch)
    with anyio.fail_after(120):
        async with app.router.lifespan_context(app):
            before = {task.id for task in anyio.get_running_tasks()}
            async with anyio.create_task_group() as tasks:
                for who in range(CLIENTS):
                    tasks.start_soon(clients.ask, app, who)
            assert {task.id for task in anyio.get_running_tasks()} == before
            engine = clients.model.engine
            assert (engine.active, engine.queued, engine.owed) == (0, 0, 0)
            assert f"0 of {clients.model.slots} slots" in repr(clients.model)
            # the stream is closed: it has no further tokens, though few of them were made
            assert [x async for x in clients.streams[LEAVER]] == []
    assert clients.left is not None
    steps, tokens = clients.left
    assert clients.steps[steps - 1] == set(range(CLIENTS))
    assert sum(LEAVER in those for those in clients.steps[steps:]) <= 1
    others = set(range(CLIENTS)) - {LEAVER}
    assert clients.steps[steps:].count(others) > 20
    assert clients.given[LEAVER] == tokens < 24  # of 48
    for who in range(CLIENTS):
        status = clients.sent[who][0]["status"]
        if who == LEAVER:
            assert status == 499
        else:
            assert status == 200
            assert b"a.txt" in clients.sent[who][1]["body"]
            assert clients.given[who] == 48
