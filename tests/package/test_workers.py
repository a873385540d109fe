"""How the tests themselves are run: `alone` tests, slow tests left out, hanging tests ended.

Most tests here write test files and run a pytest of their own. Not here: the plugin (workers.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from workers import EITHER_LOOP, is_on_other_loop, pick, rewrite_asserts

TESTS = Path(__file__).resolve().parents[1]
CONFTEST = """
from workers import Workers

def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")
    parser.addoption("--long", action="store_true")
    parser.addoption("--slow-of", action="append", default=[])
    parser.addini("test_seconds", "")

def pytest_configure(config):
    config.pluginmanager.register(Workers(config))
"""
#: Loading all installed plugins would take 2 s for each run.
PLUGINS = ["-p", "xdist.plugin"]
SETTINGS = """[pytest]
test_seconds = {seconds}
markers = alone
    either_loop
    long
    slow
"""


def run(folder: Path, text: str, *options: str, seconds: float = 60) -> tuple[int, str]:
    """Run pytest. Returns the exit status and the output."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS.format(seconds=seconds))
    (folder / "test_these.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGINS, "-q", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


ALONE = """
import os, pathlib, time, pytest
here = pathlib.Path(__file__).parent / "running"
here.mkdir(exist_ok=True)

def running(k):
    mine = here / str(k)
    mine.touch()
    time.sleep(0.02)  # a test that takes time: others begin meanwhile, if nothing keeps them
    found = len(os.listdir(here))
    mine.unlink()
    return found

@pytest.mark.parametrize("k", range(20))
def test_beside_others(k):
    assert running(k) <= 3

@pytest.mark.alone
@pytest.mark.parametrize("k", range(20, 30))
def test_alone(k):
    assert running(k) == 1
"""


@pytest.mark.long
def test_a_test_marked_alone_runs_alone(tmp_path: Path) -> None:
    status, told = run(tmp_path, ALONE, "-n", "3", "--dist", "worksteal")
    assert status == 0, told
    assert "30 passed" in told


SLOW = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("k", range(7))
def test_slow(k): pass

@pytest.fixture(params=[("asyncio", {}), ("trio", {})], ids=["asyncio", "trio"])
def anyio_backend(request): return request.param

@pytest.mark.either_loop
@pytest.mark.parametrize("k", range(5))
def test_number(anyio_backend, k): pass

def test_quick(): pass
"""


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], "6 passed, 12 deselected"),
        (["-n", "2"], "6 passed"),
        (["--all", "-n", "2"], "18 passed"),
        (["-m", "slow"], "7 passed, 11 deselected"),
        (["test_these.py::test_slow"], "7 passed"),
        (["-k", "quick"], "1 passed"),
        (["--slow-of", "test_these.py", "."], "13 passed"),
    ],
)
def test_slow_tests_are_left_out_and_named(tmp_path: Path, options: list[str], wanted: str) -> None:
    status, told = run(tmp_path, SLOW, *options)
    assert status == 0, told
    assert wanted in told
    left_out = "12 tests left out, slow ones, most cases of long ones, and ones on a second loop;"
    assert (left_out in told) == (options in ([], ["-n", "2"]))


LONG = """
import pytest

@pytest.mark.long(cases=2)
@pytest.mark.parametrize("k", range(7))
def test_cases(k): pass

@pytest.mark.long
@pytest.mark.parametrize("k", range(3))
def test_no_case(k): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.slow
def test_slow(): pass

def test_quick(): pass
"""


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], "3 passed, 10 deselected"),
        (["-n", "2"], "3 passed"),
        (["--long"], "12 passed, 1 deselected"),
        (["--all", "-n", "2"], "13 passed"),
        (["-m", "long"], "11 passed, 2 deselected"),
        (["test_these.py::test_cases", "test_these.py::test_long"], "8 passed"),
    ],
)
def test_most_cases_of_long_tests_are_left_out(
    tmp_path: Path, options: list[str], wanted: str
) -> None:
    status, told = run(tmp_path, LONG, *options)
    assert status == 0, told
    assert wanted in told


def test_the_cases_of_a_long_test_are_the_same_in_each_process_and_spread() -> None:
    names = [f"test[{i}-{loop}]" for i in range(50) for loop in ("asyncio", "trio")]
    picked = pick(names, 10)
    assert len(picked) == 10
    assert picked == pick(names[::-1], 10) <= pick(names, 11)
    assert {"asyncio", "trio"} == {name.rpartition("-")[2].rstrip("]") for name in picked}
    assert pick(names, 0) == set()


def test_a_test_of_numbers_runs_on_one_loop_and_the_cases_of_a_function_on_both() -> None:
    assert all((TESTS / name).is_file() for name in EITHER_LOOP)

    def left(
        loop: str, case: int, name: str = "models/test_states.py", param: Any = None, **of: bool
    ) -> bool:
        params: dict[str, Any] = {"anyio_backend": param or (loop, {})}
        node = f"tests/{name}::test_that[{loop}-{case}]"
        return is_on_other_loop(TESTS / name, node, params, **of)

    found = [left("asyncio", case) for case in range(40)]
    assert found == [not left("trio", case) for case in range(40)]
    assert 10 < sum(found) < 30
    # a test that asks for one loop has no twin
    assert not any(left("asyncio", case, param="asyncio") for case in range(40))
    both = "stream/test_future.py"
    assert not any(left(loop, k, both) for loop in ("asyncio", "trio") for k in range(9))
    # but for a test with the mark
    marked = [left("asyncio", k, both, marked=True) for k in range(40)]
    assert marked == [not left("trio", k, both, marked=True) for k in range(40)]


HANGS = """
import threading

def test_that_hangs(): threading.Event().wait()

def test_after_it(): pass
"""


@pytest.mark.long
def test_a_test_that_hangs_ends_its_process_and_shows_where(tmp_path: Path) -> None:
    status, told = run(tmp_path, HANGS, seconds=5)
    assert status == 1, told
    assert "Timeout (0:00:05)!" in told
    assert "in test_that_hangs" in told
    status, told = run(tmp_path, HANGS, "-n", "1", seconds=5)
    assert status == 1, told
    assert "crashed while running 'test_these.py::test_that_hangs'" in told
    assert "in test_that_hangs" in told
    assert "1 failed, 1 passed" in told


def test_files_whose_assertions_are_rewritten_beforehand_are_not_rewritten_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    files = [tmp_path / "test_one.py", tmp_path / "test_two.py"]
    for file in files:
        file.write_text("def test():\n    x = 1\n    assert x == 2\n")
    rewrite_asserts(request.config, files)
    folder = tmp_path / "__pycache__"
    kept = {x.name: x.stat().st_ino for x in folder.iterdir()}
    assert sorted(kept) == sorted(f"{x.stem}{rewrite.PYC_TAIL}" for x in files)
    code, out = run(tmp_path, "", "test_one.py", "test_two.py")
    assert code == 1
    assert out.count("assert 1 == 2") >= 2  # the value of x is shown: assertions are rewritten
    assert kept.items() <= {x.name: x.stat().st_ino for x in folder.iterdir()}.items()
