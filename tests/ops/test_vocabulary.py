"""Nothing recorded is left out, and docs/ops.md says what there is.

Not here: names and order of parameters (test_builders.py), the calls themselves (test_<family>.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from corpus_loader import op_cases, refused_cases
from ops.recorded import family_cases

from aggml import ops

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = [path.stem for path in sorted((ROOT / "aggml" / "ops").glob("[!_]*.py"))]


def test_every_recorded_function_is_a_builder() -> None:
    calls = [*op_cases(), *refused_cases()]
    names = {call.op for call in calls} | {name for call in calls for name in call.modify}
    names |= {name for call in calls for step in call.steps for name in (step.op, *step.modify)}
    assert {name for name in names if not hasattr(ops, name)} == {"graph"}


def test_every_recorded_call_is_run_by_a_family() -> None:
    run = {
        (param.values[0].family, param.values[0].id)
        for family in FAMILIES
        for param in family_cases(family, computed=True)
    }
    missing = {(case.family, case.id) for case in op_cases() if not case.steps} - run
    assert missing == set()


def test_every_family_has_its_tests() -> None:
    texts = [path.read_text() for path in (ROOT / "tests" / "ops").glob("test_*.py")]
    without = [
        family
        for family in FAMILIES
        if family_cases(family, computed=True)
        and not any(f'family_cases("{family}", computed=True)' in text for text in texts)
    ]
    assert without == []


def test_the_table_of_ops_is_up_to_date() -> None:
    """If not: python tools/ops_table.py."""
    tool = ROOT / "tools" / "ops_table.py"
    subprocess.run([sys.executable, str(tool), "--check"], check=True, timeout=60, cwd=ROOT)
