"""Files that the tests of this room share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import pytest
from gguf_by_hand import Q8, TENSORS, VALUES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (value, kind, element) in VALUES.items():
        writer.add_key_value(key, value, kind, element)
    for name, array in TENSORS.items():
        writer.add_tensor(name, array)
    q8 = gguf.quantize(Q8, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def raw(model: Path) -> bytes:
    return model.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made.gguf"
