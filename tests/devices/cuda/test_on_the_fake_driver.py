"""Runs the test files of device/ on the fake driver, in processes of their own.

The fake driver takes the name libcuda.so.1 in its process. Files that need the same settings of the
driver share a process, since each process takes 2 s of a core to begin. Not here: the tests.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
#: In these each operation takes up to 40 us longer, at random, which reveals a missing order.
_JITTER = {
    "test_streams",
    "test_off_the_loop",
    "test_host_memory",
    "test_processes",
    "test_faults",
    "test_scheduling",
    "test_blas",
}
#: These have two GPUs.
_TWO = {"test_fusion_pair", "test_nccl"}
#: These run once more with eight GPUs.
_EIGHT = {"test_nccl"}
#: These take 5 s of a core or more, and find little that the others do not find.
_SLOW = {"test_bench_gpu", "test_conformance", "test_several", "test_soak"}


def _processes() -> Iterator[Any]:
    """Files that run in one process, the jitter in us, how many GPUs. Slow files run alone."""
    names = {path.stem for path in (HERE / "device").glob("test_*.py")}
    yield pytest.param(sorted(names - _JITTER - _SLOW - _TWO), "0", 1, id="no jitter")
    yield pytest.param(sorted(_JITTER), "40", 1, id="jitter", marks=pytest.mark.slow)
    yield pytest.param(sorted(_TWO), "0", 2, id="two GPUs", marks=pytest.mark.slow)
    eight = [*sorted(_EIGHT)]
    yield pytest.param(eight, "40", 8, id="eight GPUs", marks=pytest.mark.slow)
    for name in sorted(_SLOW):
        yield pytest.param([name], "0", 1, id=name, marks=pytest.mark.slow)


pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the fake driver"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda.bindings") is None,
        reason="cuda-bindings is not installed: pip install aggml[cuda]",
    ),
]


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("names", "jitter", "gpus"), [*_processes()])
def test_on_the_fake_driver(
    names: list[str], jitter: str, gpus: int, pytestconfig: pytest.Config
) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-o", "test_seconds=300"]
    if not pytestconfig.option.all:
        options.append("--one-loop")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(HERE / "device" / f"{n}.py" for n in names)],
        env=os.environ
        | {
            "AGGML_TEST_CUDA": "fake",
            "FAKE_CUDA_JITTER_US": jitter,
            "FAKE_CUDA_DEVICES": str(gpus),
        },
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=690,
        check=False,
    )
    print(done.stdout[-4000:], done.stderr[-2000:])  # noqa: T201 pytest shows it with a failure
    assert done.returncode == 0
