"""examples/generate.py as a program: its output, Ctrl-C, refusals in one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import generate
import pytest

from aggml.models import Hyperparameters, ModelError
from aggml.models.catalogue import describe
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: llama_files.write(folder / f"{name}.gguf", name) for name in ("llama",)}


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = generate.main([str(x) for x in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str], loop: str) -> None:
    status, out, _ = called(
        capsys, files["llama"], "--prompt-ids", "1,40,270", "--n-predict", 5, "--temperature", 0,
        "--ignore-eos", "--loop", loop, "--json", "--threads", 1,
    )  # fmt: skip
    assert status == 0
    told = json.loads(out)
    assert told["prompt_ids"] == [1, 40, 270]
    assert len(told["ids"]) == 5
    assert isinstance(told["text"], str)
    assert told["prompt_tokens_per_second"] > 0 < told["tokens_per_second"]


def test_text_is_shown_as_it_comes(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (files["llama"], "--prompt", "hello world", "--n-predict", 8, "--temperature", 0)
    _, out, err = called(capsys, *arguments)
    _, told, _ = called(capsys, *arguments, "--json")
    assert out.strip("\n").removeprefix(" ") == json.loads(told)["text"]
    assert "prompt: " in err


@pytest.mark.long
def test_control_c_ends_it_at_once(files: dict[str, Path]) -> None:
    command = [
        sys.executable, generate.__file__, str(files["llama"]), "--prompt-ids", "1,40,270",
        "--n-predict", "100000", "--ctx", "100010", "--ignore-eos", "--seed", "1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_several_sequences(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(
        capsys, files["llama"], "--prompt", "hello", "--parallel", 3, "--n-predict", 4, "--seed", 1,
        "--ignore-eos", "--json",
    )  # fmt: skip
    told = json.loads(out)
    assert status == 0
    assert [len(ids) for ids in told["ids"]] == [4, 4, 4]
    assert len(told["text"]) == 3


def test_what_is_wrong_is_told_in_one_line(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = llama_files.write(tmp_path / "bare.gguf", vocabulary=False)
    for arguments, message in (
        ((tmp_path / "none.gguf", "--prompt", "x"), "cannot open the model"),
        ((bare, "--prompt", "x"), "no vocabulary"),
        ((bare, "--prompt-ids", "1,99999"), "99999 is no token"),
        ((bare, "--prompt-ids", "1", "--ctx", 256, "--n-predict", 256), "context of 256"),
    ):
        status, out, err = called(capsys, *arguments)
        assert status == 2
        assert out == ""
        assert message in err
        assert err.count("\n") == 1
    with pytest.raises(SystemExit):
        generate.main([str(bare), "--prompt-ids", "1,x"])
    assert "no list of numbers" in capsys.readouterr().err
    with pytest.raises(ModelError, match="architecture is 'clip'"):
        describe(Hyperparameters({"general.architecture": "clip"}))
