"""Exceptions that only the tests of Ray get.

They may take longer, since Ray's processes take a minute to start beside other tests. And they may
leave sockets open, which Ray's driver leaves to Python's garbage collector.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SECONDS = 600
#: While nodes and replicas start, Ray opens sockets with this address and leaves them to the
#: garbage collector, which may close them during any test.
LEFT_OPEN = r"ignore:unclosed <socket.*laddr=.'0\.0\.0\.0', 0.>:ResourceWarning"
HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and no others; a test with a ``timeout`` keeps its own."""
    for item in items:  # for all 42,000 tests: comparing parents of their paths would take 1 s
        if not os.fspath(item.path).startswith(HERE):
            continue
        item.add_marker(pytest.mark.filterwarnings(LEFT_OPEN))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
