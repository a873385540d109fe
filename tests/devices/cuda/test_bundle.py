"""The bundle for a machine with a GPU: packed, carried to a bare Python, run on the fake driver.

Here: tools/gpu from end to end with this Python, without the cubins; how its runner handles steps
that hang or fail. Not here: what the steps test (device/).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gpu.run import GROUPS, Step, perform, steps

if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def _results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _step(name: str, text: str) -> Step:
    return Step(name, 60, [sys.executable, "-X", "faulthandler", "-c", text])


@pytest.mark.parametrize("fake", [True, False])
def test_the_tests_of_each_step_are_there(tmp_path: Path, fake: bool) -> None:
    given = [x for step in steps(tmp_path, fake=fake).values() for x in step.command]
    files = [x.partition("::")[0] for x in given if x.startswith(("tests/", "tools/"))]
    assert files
    assert [x for x in files if not (ROOT / x).is_file()] == []


@pytest.mark.long
def test_a_step_that_hangs_is_stopped_with_its_stacks_and_the_next_one_runs(tmp_path: Path) -> None:
    text = "import time\ndef stands_still(): time.sleep(60)\nprint('begun', flush=True)\n"
    told = perform(_step("hangs", f"{text}stands_still()"), tmp_path, 3)
    assert told["status"] == "stopped after 3 s"
    log = (tmp_path / "log.txt").read_text()
    assert "begun" in log
    assert "stands_still" in log[log.index("begun") :]
    assert perform(_step("works", "print('there')"), tmp_path, 30)["status"] == 0
    assert perform(_step("fails", "raise SystemExit(3)"), tmp_path, 30)["status"] == 3
    assert perform(Step("lacks", 9, ["/nowhere/tool"]), tmp_path, 9)["status"] == "not here"
    assert [line["step"] for line in _results(tmp_path)] == ["hangs", "works", "fails", "lacks"]


def test_every_step_is_in_a_group_and_verifying_takes_no_longer_than_a_call_may(
    tmp_path: Path,
) -> None:
    known = steps(tmp_path, fake=False)
    assert list(GROUPS["all"]) == sorted(known, key=GROUPS["all"].index)
    assert all(step.seconds <= 540 for step in known.values())


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the fake driver")
@pytest.mark.skipif(
    importlib.util.find_spec("cuda.bindings") is None,
    reason="cuda-bindings is not installed: pip install aggml[cuda]",
)
def test_a_bare_python_runs_all_of_it_on_the_fake_driver(tmp_path: Path) -> None:
    bundle, bare, out = tmp_path / "bundle", tmp_path / "bare", tmp_path / "out"
    pack = [sys.executable, str(ROOT / "tools/gpu/pack.py"), str(bundle), "--preset", "0"]
    subprocess.run([*pack, "--most", "80"], check=True)
    venv.create(bare, symlinks=True)
    python = bare / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    packages = Path(np.__file__).parents[1]
    # the machine has these packages; they are not in the bundle
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            Path(site.stdout.strip(), name).symlink_to(packages / name)
    done = subprocess.run(
        ["bash", str(bundle / "run.sh"), "verify", "soak"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "FAKE": "1",
            "PY": str(python),
            "OUT": str(out),
            "SCRATCH": str(tmp_path / "scratch"),
            "CORPUS": str(ROOT / "tests" / "corpus"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-6000:], done.stderr[-2000:])  # noqa: T201 pytest shows it with a failure
    assert done.returncode == 0
    expected = ["environment", "load", "quick", "corpus", "device", "soak"]
    assert [(line["step"], line["status"]) for line in _results(out)] == [(x, 0) for x in expected]
    # the package was imported from the bundle, not from this checkout
    assert str(tmp_path / "scratch" / "site") in (out / "log.txt").read_text()
