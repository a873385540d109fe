"""What the tests of this room share: running the program as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROGRAM = [sys.executable, "-W", "error", "-m", "aggml"]


def run(*arguments: object, status: int = 0, given: str = "") -> tuple[str, str]:
    """What the program prints: on standard output and on standard error."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, input=given, timeout=60
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def told(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json")[0])
