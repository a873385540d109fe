"""For the tests of this folder: running the command `aggml`, in this process or in another.

Starting an interpreter with the imports takes 0.6 s of a core. So most commands run in this
process, in a thread without a loop. Commands that depend on signals run in a process of their own,
with warnings as errors.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from click.testing import CliRunner, Result

from aggml.cli import main

PROGRAM = [sys.executable, "-W", "error", "-m", "aggml"]
_APART = {"chat", "serve"}


def run(*arguments: object, status: int = 0, given: str | bytes = "") -> tuple[str, str]:
    """Run the command in this process. Returns what it printed on stdout and on stderr."""
    if arguments[0] in _APART:
        return run_apart(*arguments, status=status, given=str(given))
    found: list[Result] = []

    def command() -> None:
        words = [*map(str, arguments)]
        found.append(CliRunner().invoke(main, words, input=given, prog_name="python -m aggml"))

    # a thread, because the caller's may have a running loop
    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    (done,) = found
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def run_apart(*arguments: object, status: int = 0, given: str = "") -> tuple[str, str]:
    """As `run`, in a process of its own."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, input=given, timeout=60
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def told(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json")[0])
