"""Runs the test files of device/ on the fake driver, each in a process of its own.

The fake driver takes the name libcuda.so.1 in its process. Not here: the tests.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
#: Each operation of the device waits for so long, at random, that a missing order shows.
_JITTER: dict[str, str] = dict.fromkeys(
    ("test_streams", "test_faults", "test_scheduling", "test_blas"), "40"
)
#: Those of 5 s of a core and more that find little beside the others.
_SLOW = {"test_bench_gpu", "test_conformance", "test_soak"}
FILES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in _SLOW else [])
    for path in sorted((HERE / "device").glob("test_*.py"))
]

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the fake driver"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda.bindings") is None,
        reason="cuda-bindings is not installed: pip install aggml[cuda]",
    ),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", FILES)
def test_on_the_fake_driver(path: Path) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-o", "test_seconds=300"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)],
        env=os.environ
        | {"AGGML_TEST_CUDA": "fake", "FAKE_CUDA_JITTER_US": _JITTER.get(path.stem, "0")},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    print(done.stdout[-4000:], done.stderr[-2000:])  # noqa: T201 pytest shows it with a failure
    assert done.returncode == 0
