"""A model that the tests of this room share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of random weights."""
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")
