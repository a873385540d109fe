"""The commands and clients of docs/serve.md: each runs as it is printed, against a real server."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from docs.pages import blocks
from models import random_models
from serve.support import started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/serve.md"
HERE = "http://localhost:8000"
SHELL = [block.code for block in blocks(PAGE) if block.language == "sh"]
COMMANDS = SHELL[0].splitlines()
LOOPS = ["uvicorn", "hypercorn"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


def encoder(path: Path) -> Path:
    return random_models.write(path, "bert", random_models.words())


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_starts_a_server(command: str, small: Path, tmp_path: Path) -> None:
    program, name, *given = shlex.split(command, comments=True)
    assert (program, name) == ("aggml", "serve")
    files = {"MODEL.gguf": small}
    if "ENCODER.gguf" in given:
        files["ENCODER.gguf"] = encoder(tmp_path / "encoder.gguf")
    more = [x for x in given if x not in files]
    loop = LOOPS["trio" in given]
    with started([*files.values()], loop, more=more) as (_, address):
        headers = {"x-api-key": "SECRET"} if "--api-key" in more else {}
        health = httpx.get(f"{address}/health", headers=headers).json()
        assert (health["status"], len(health["models"])) == ("ok", len(files))


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("server", LOOPS)
def test_the_client_of_the_page_gets_an_answer(
    server: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = [block.code for block in blocks(PAGE) if block.language == "python"]
    (code,) = (code for code in python if HERE in code)
    with started([small], server) as (_, address):
        names: dict[str, Any] = {}
        exec(code.replace(HERE, address), names)
        names["client"].close()
    assert capsys.readouterr().out.strip()


@pytest.mark.long
def test_curl_gets_answers(small: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    files = [small, encoder(tmp_path / "encoder.gguf")]
    lines = SHELL[1].splitlines()
    assert len(lines) == 5
    with started(files, "uvicorn") as (_, address):
        for line in lines:
            done = subprocess.run(
                ["sh", "-ec", line.replace("curl ", "curl -sS ").replace(HERE[7:], address)],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip()
            assert '"error"' not in done.stdout, done.stdout
