"""Every recorded op can be built, and docs/ops.md lists all ops.

Not here: names and order of parameters (test_builders.py), the calls themselves (test_recorded.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from corpus_loader import op_cases, refused_cases
from ops.recorded import recorded_calls

from aggml import ops

ROOT = Path(__file__).resolve().parents[2]


def test_every_recorded_function_is_a_builder() -> None:
    calls = [*op_cases(), *refused_cases()]
    names = {call.op for call in calls} | {name for call in calls for name in call.modify}
    names |= {name for call in calls for step in call.steps for name in (step.op, *step.modify)}
    assert {name for name in names if not hasattr(ops, name)} == {"graph"}


def test_every_recorded_call_is_run() -> None:
    run = {(param.values[0].group, param.values[0].id) for param in recorded_calls()}
    assert {(case.group, case.id) for case in op_cases() if not case.steps} == run


@pytest.mark.long
def test_the_table_of_ops_is_up_to_date() -> None:
    """If it is not: run python tools/ops_table.py."""
    tool = ROOT / "tools" / "ops_table.py"
    subprocess.run([sys.executable, str(tool), "--check"], check=True, timeout=60, cwd=ROOT)
