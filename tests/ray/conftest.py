"""What tests of Ray are allowed, and others are not.

Time, since its processes take a minute to start beside other tests, and sockets that Ray's driver
leaves to Python's collector.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SECONDS = 600
#: While nodes and replicas start, Ray opens sockets of this address and leaves them to the
#: collector, which may run in any test.
LEFT_OPEN = r"ignore:unclosed <socket.*laddr=.'0\.0\.0\.0', 0.>:ResourceWarning"
HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here, and only they, have these marks; one that has its own ``timeout`` keeps it."""
    for item in items:  # all 42,000: parents of a path would take 1 s
        if not os.fspath(item.path).startswith(HERE):
            continue
        item.add_marker(pytest.mark.filterwarnings(LEFT_OPEN))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
