"""What tests of Ray are allowed, and others are not.

Time, since its processes take a minute to start beside other tests, and sockets that Ray's driver
leaves to Python's collector.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SECONDS = 600
HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here, and only they, have a mark ``timeout``, unless they have their own."""
    for item in items:  # all 42,000: parents of a path would take 1 s
        if os.fspath(item.path).startswith(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
