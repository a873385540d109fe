"""The embedding service on real streams: many tasks, cancellation, the command line."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import anyio
import embed
import numpy as np
import pytest
from embed import SENTENCES, embed_all
from minilm import Embedder, ModelError, model_folder

SCRIPT = Path(embed.__file__)


async def test_200_tasks_each_get_their_own_answer() -> None:
    async with Embedder(batch_tokens=256) as embedder:
        expected = {text: await embedder.embed(text) for text in SENTENCES}

        async def ask(seed: int) -> None:
            text = random.Random(seed).choice(SENTENCES)
            np.testing.assert_allclose(await embedder.embed(text), expected[text], atol=1e-5)

        async with anyio.create_task_group() as tasks:
            for seed in range(200):
                tasks.start_soon(ask, seed)


async def test_cancelling_at_random_points_leaves_the_service_healthy() -> None:
    choose = random.Random(1)
    finished = 0
    async with Embedder(batch_tokens=128) as embedder:
        expected = await embedder.embed(SENTENCES[0])

        async def ask(seconds: float) -> None:
            nonlocal finished
            with anyio.move_on_after(seconds):
                found = await embedder.embed(SENTENCES[0])
                np.testing.assert_allclose(found, expected, atol=1e-5)
                finished += 1

        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                # one task has no time limit, so that one succeeds on a slow machine, too
                for i in range(20):
                    tasks.start_soon(ask, choose.expovariate(1 / 0.02) if i else math.inf)
        with anyio.move_on_after(0.001):  # all sentences, cancelled while one batch is computed
            await embed_all(embedder, SENTENCES)
        np.testing.assert_allclose(await embedder.embed(SENTENCES[0]), expected, atol=1e-5)
    assert finished >= 10


async def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    async def body() -> None:
        async with Embedder() as embedder:
            await embedder.embed("a sentence")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await body()


async def test_a_missing_or_damaged_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        async with Embedder(folder=tmp_path):
            pass
    real = model_folder() / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_bytes(real.read_bytes())
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        async with Embedder(folder=tmp_path):
            pass
    for damaged in (
        b"",
        b"short",
        b"\xff" * 100,
        bytes(8) + b"{}",
        (2).to_bytes(8, "little") + b"{}",
    ):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            async with Embedder(folder=tmp_path):
                pass


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
