"""Models that the tests of this room share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from models import minilm_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2."""
    found = minilm_file.folder()
    if found is None:
        pytest.skip(f"the package {minilm_file.PACKAGE} is not installed (make .venv/has-model)")
    return minilm_file.write(tmp_path_factory.mktemp("models") / "minilm.gguf", found)
