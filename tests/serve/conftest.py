"""Models that the tests of this room share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from models import minilm_file, random_models
from models.layout import VOCABULARY

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
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "▁b", "▁c"]
    words += [f"▁w{i}" for i in range(VOCABULARY - len(words))]
    vocabulary = {
        "general.name": "ranker",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
    }
    folder = tmp_path_factory.mktemp("models")
    return random_models.write(folder / "ranker.gguf", "bert-rank", vocabulary)
