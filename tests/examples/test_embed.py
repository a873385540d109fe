"""The program that embeds sentences: its command line, and files that are no model.

Not here: the vectors (tests/models/test_minilm.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import embed
import numpy as np
import pytest

from aggml.models import ModelError

SCRIPT = Path(embed.__file__)


async def test_a_missing_or_damaged_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = embed.model_folder()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((real / name).read_bytes())
    monkeypatch.setattr(embed, "model_folder", lambda: tmp_path)
    with pytest.raises(ModelError, match="safetensors"):
        async with embed.loaded():
            pass
    for damaged in (
        b"",
        b"short",
        b"\xff" * 100,
        bytes(8) + b"{}",
        (2).to_bytes(8, "little") + b"{}",
    ):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ModelError):
            async with embed.loaded():
                pass


async def test_half_a_surrogate_pair_counts_as_a_replacement_character() -> None:
    async with embed.loaded() as model:
        broken, whole, pair, joined = await embed.embed_all(
            model,
            ["half \ud83d a pair", "half \ufffd a pair", "\ud83d\ude00", "\U0001f600"],
        )
    np.testing.assert_allclose(broken, whole, atol=1e-6)
    np.testing.assert_allclose(pair, joined, atol=1e-6)  # as json.loads would have joined them


# -- the command line


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own, which takes 0.7 s of a core to start."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script in this process, for calls that end before a loop begins."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = embed.main([*map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_file_of_sentences_becomes_a_file_of_vectors(tmp_path: Path, loop: str) -> None:
    sentences = ["", "A cat.", "a cat .", "ünï 天 \U0001f600", "x" * 10_000, "long " * 500]
    # the file gets just this name, without ".npy"
    source, target = tmp_path / "in.json", tmp_path / "vectors.out"
    source.write_text(json.dumps(sentences), encoding="utf-8")
    done = run("--sentences", source, "--out", target, "--loop", loop, "--threads", "1")
    assert done.returncode == 0, done.stderr
    found = np.load(target)
    assert (found.shape, found.dtype) == ((len(sentences), 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[1], found[2], atol=1e-5)  # both give the same tokens


@pytest.mark.long
def test_an_empty_list_gives_no_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.npy"
    source.write_text("[]", encoding="utf-8")
    assert run("--sentences", source, "--out", target).returncode == 0
    assert np.load(target).shape == (0, 384)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "JSON"),
        ('{"a": 1}', "dict"),
        ('["a", 3]', "item 1"),
        ("\xff\xfe", "UTF-8"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, word: str) -> None:
    source = tmp_path / "in.json"
    source.write_bytes(content.encode("latin-1"))
    done = run_here("--sentences", source, "--out", tmp_path / "out.npy")
    assert done.returncode == 2
    assert word in done.stderr
    assert "in.json" in done.stderr
    assert done.stderr.count("\n") == 1


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text("[]", encoding="utf-8")
    missing = run_here("--sentences", tmp_path / "none.json", "--out", tmp_path / "out.npy")
    assert (missing.returncode, "none.json" in missing.stderr) == (2, True)
    folder = run_here("--sentences", source, "--out", tmp_path / "no" / "out.npy")
    assert (folder.returncode, "folder" in folder.stderr) == (2, True)
    half = run_here("--sentences", source)
    assert (half.returncode, "--out" in half.stderr) == (2, True)
    dtype = run_here("--dtype", "f64")
    assert (dtype.returncode, "q8_0" in dtype.stderr) == (2, True)
    threads = run_here("--threads", "0")
    assert (threads.returncode, "--threads" in threads.stderr) == (2, True)


def test_help_names_the_options() -> None:
    done = run_here("--help")
    assert done.returncode == 0
    for option in ("--sentences", "--out", "--dtype", "--loop", "--threads"):
        assert option in done.stdout


@pytest.mark.long
def test_the_demonstration_shows_pairs_speed_and_lag_on_both_loops() -> None:
    done = run("--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("trio, f32:")
    assert first.startswith("asyncio, f32:")
    for part in (first, second):
        assert "exoplanet" in part
        assert "sentences/s" in part
        assert "median" in part
        assert "p99.9" in part
