"""How long a test of Ray may take: its processes take a minute to start beside other tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SECONDS = 600
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here, and only they, have a mark ``timeout``, unless they have their own."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
