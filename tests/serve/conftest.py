"""Models that the tests of this room share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from models import minilm_file, random_models

from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of random weights."""
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2."""
    found = minilm_file.folder()
    if found is None:
        pytest.skip(f"the package {minilm_file.PACKAGE} is not installed (make .venv/has-model)")
    return minilm_file.write(tmp_path_factory.mktemp("models") / "minilm.gguf", found)


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a rank head, random weights, and the words a, b, c, w0, w1, ..."""
    vocabulary = {"general.name": "ranker", **random_models.words("▁a", "▁b", "▁c")}
    folder = tmp_path_factory.mktemp("models")
    return random_models.write(folder / "ranker.gguf", "bert-rank", vocabulary)
