"""A program that does not use many machines does not import Ray or the modules for it."""

from __future__ import annotations

import subprocess
import sys


def test_aggml_imports_nothing_of_ray() -> None:
    program = "import sys, aggml, aggml.models, aggml.cli; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
