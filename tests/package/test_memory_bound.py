"""Tests and fuzzers cannot take all memory of the machine: who takes too much gets an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from memory_bound import MOST, bound_memory

TESTS = Path(__file__).parent.parent
TAKING = f"""
import numpy
from memory_bound import bound_memory
assert bound_memory()
try:
    numpy.empty({MOST}, numpy.uint8)
except MemoryError as error:
    print("refused:", error)
"""


def test_memory_beyond_the_bound_is_an_error_and_does_not_end_the_process() -> None:
    if not bound_memory():
        pytest.skip("this process has no bound: a sanitizer, or another system than Linux")
    resource = pytest.importorskip("resource")
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] <= MOST
    told = subprocess.run(
        [sys.executable, "-c", TAKING], cwd=TESTS, capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith("refused: Unable to allocate 16.0 GiB")
