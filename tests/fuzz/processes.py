"""What the fuzzers of processes share: running a program of Python in an interpreter of its own.

Not here: the programs (fork.py, exit.py).
"""

from __future__ import annotations

import subprocess
import sys

__all__ = ["HEADER", "ends"]

PATIENCE = 240  # seconds; a program that takes longer hangs, even on a busy machine

HEADER = """
import gc, os, random, signal, sys, threading, time, warnings
import numpy as np, anyio, aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice
warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
"""


def ends(code: str) -> str | None:
    """Run ``code`` after `HEADER` in a new interpreter.

    Returns:
        None if it printed "end", nothing else, and exited with 0; else what it did.
    """
    command = [sys.executable, "-P", "-W", "error", "-c", HEADER + code]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as hung:
        return f"did not end: {hung.stdout!r} {hung.stderr!r}\n{code}"
    if (done.returncode, done.stdout, done.stderr) == (0, "end\n", ""):
        return None
    return f"exit {done.returncode}, {done.stdout!r}\n{done.stderr}\n{code}"
