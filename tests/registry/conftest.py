"""A registry with only the built-in families, restored after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aggml
from aggml.registry.table import ENTRY_POINT, table

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AGGML_BACKEND_PATH", "AGGML_BACKEND_DIRS", "AGGML_DISABLE_BACKENDS"):
        monkeypatch.delenv(name, raising=False)
    aggml.list_devices()
    entries, sources, results = table.entries[:], dict(table.sources), dict(table.results)
    table.entries[:] = [entry for entry in entries if entry.rank < ENTRY_POINT]
    kept_families = table.families
    for key in [key for key, family in sources.items() if family not in kept_families]:
        table.sources.pop(key)
        table.results.pop(key, None)
    yield
    table.entries[:] = entries
    for kept, before in ((table.sources, sources), (table.results, results)):
        kept.clear()
        kept.update(before)  # type: ignore[arg-type]
