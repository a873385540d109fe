"""`aggml chat --json` and `aggml serve --json`: each event is an object on a line of its own.

Not here: the conversation itself (test_program.py), what a server answers (tests/serve).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from cli.program import PROGRAM, run

from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GREEDY = ["--temperature", "0", "-n", "6", "--ctx", "256"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


def events(text: str) -> list[dict[str, Any]]:
    # the JSON is ASCII, so splitlines finds no other ends of lines
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.long
def test_a_chat_is_told_as_events(path: Path) -> None:
    text, errors = run("chat", path, "--json", *GREEDY, given='hello\n/clear\n"hello"\n')
    assert errors == ""
    ready, *rest = events(text)
    assert ready == {"event": "ready", "architecture": "llama", "ctx": 256}
    kinds = [event["event"] for event in rest]
    n = kinds.index("answer")  # tokens whose characters are not complete are no events
    one = ["token"] * n + ["answer"]
    assert n > 1
    assert kinds == [*one, "cleared", *one]
    first, second = (event for event in rest if event["event"] == "answer")
    assert first["text"] == "".join(x["text"] for x in rest[:n]) == second["text"]
    assert (first["finish"], first["tokens"]) == ("length", 6)
    assert first["prompt_tokens"] == second["prompt_tokens"] > 0
    assert first["tokens_per_second"] > 0
    shown, _ = run("chat", path, *GREEDY, given="hello\n")
    # text streams translate the ends of lines
    assert shown == f"> {first['text']}\n> \n".replace("\r", "\n")


@pytest.mark.long
def test_a_message_may_have_several_lines(path: Path) -> None:
    one, _ = run("chat", path, "--json", *GREEDY, given=json.dumps("hello\nworld") + "\n")
    (answer,) = (x for x in events(one) if x["event"] == "answer")
    two, _ = run("chat", path, "--json", *GREEDY, given="hello\nworld\n")
    assert [x["event"] for x in events(two)].count("answer") == 2
    first = next(x for x in events(two) if x["event"] == "answer")
    assert answer["prompt_tokens"] > first["prompt_tokens"]


@pytest.mark.long
def test_a_message_that_does_not_fit_is_an_event_and_the_chat_goes_on(path: Path) -> None:
    given = "hello " * 400 + "\nhello\n"
    text, errors = run("chat", path, "--json", *GREEDY, given=given)
    failed, *rest = events(text)[1:]
    assert errors == ""
    assert failed["event"] == "error"
    assert "256" in failed["message"]
    assert rest[-1]["event"] == "answer"
    _, errors = run("chat", path, *GREEDY, given="hello " * 400 + "\n", status=1)
    assert errors.count("\n") == 2  # the greeting and the error


@pytest.mark.long
def test_ctrl_c_is_told_in_the_answer(path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "chat", str(path), "--json", "--temperature", "0", "-n", "100000",
         "--ctx", "60000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as chat:  # fmt: skip
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        assert [json.loads(chat.stdout.readline())["event"] for _ in range(3)] == [
            "ready", "token", "token",
        ]  # fmt: skip
        chat.send_signal(signal.SIGINT)
        chat.stdin.close()
        last = events(chat.stdout.read())[-1]
        assert (last["event"], last["finish"]) == ("answer", "interrupted")
        assert chat.wait(30) == 0


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process if the block raises: leaving a Popen waits for it."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_server_tells_where_it_listens_what_it_answers_and_its_end(path: Path, loop: str) -> None:
    with subprocess.Popen(
        [*PROGRAM, "serve", str(path), "--json", "--port", "0", "--loop", loop, "--ctx", "256",
         "--threads", "1", "--log-level", "debug"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    ) as server, ending(server):  # fmt: skip
        assert server.stdout is not None
        listening = json.loads(server.stdout.readline())
        assert listening["event"] == "listening"
        with urllib.request.urlopen(listening["url"] + "/v1/models") as answer:
            body = answer.read()
        assert [x["id"] for x in json.loads(body)["data"]] == listening["models"]
        request = json.loads(server.stdout.readline())
        assert request.pop("seconds") > 0
        assert request.pop("id") == answer.headers["X-Request-Id"]
        assert request == {
            "event": "request", "method": "GET", "path": "/v1/models", "status": 200,
            "bytes": len(body),
        }  # fmt: skip
        server.send_signal(signal.SIGTERM)
        assert events(server.stdout.read()) == [{"event": "stopped"}]
        assert server.wait(30) == 0


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_port_in_use_is_said_before_anything_is_loaded(path: Path, loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text, errors = run("serve", path, "--port", port, "--loop", loop, status=1)
    assert text == ""
    assert errors.endswith(f": cannot listen on 127.0.0.1:{port}: address already in use\n")
    assert errors.count("\n") == 1
