"""Files of importance matrices: weights that no measuring gives are refused by the tensor's name.

Not here: quantizing with them (tests/conversion/, tests/cli/).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml.models import ModelError
from aggml.models.imatrix import read_imatrix

if TYPE_CHECKING:
    from pathlib import Path

NAME = "blk.0.ffn_down.weight"


def older(path: Path, values: np.ndarray) -> Path:
    name = NAME.encode()
    head = struct.pack(f"<ii{len(name)}sii", 1, len(name), name, 1, values.size)
    path.write_bytes(head + values.astype("<f4").tobytes())
    return path


def newer(path: Path, values: np.ndarray) -> Path:
    with aggml.GGUFWriter(path) as writer:
        writer.add_tensor(f"{NAME}.in_sum2", values.astype(np.float32))
        writer.add_tensor(f"{NAME}.counts", np.full((len(values), 1), 2, np.float32))
    return path


@pytest.mark.parametrize("wrong", [-4.0, np.nan, np.inf, -np.inf])
def test_a_weight_that_is_negative_or_not_finite_is_refused_by_name(
    tmp_path: Path, wrong: float
) -> None:
    values = np.ones(32, np.float32)
    values[5] = wrong
    for path in (older(tmp_path / "old.dat", values), newer(tmp_path / "new.gguf", values[None])):
        with pytest.raises(ModelError, match=rf"{NAME}' in column 5 is (nan|-?inf|-[24]\.0)"):
            read_imatrix(path)
    experts = np.ones((3, 32), np.float32)
    experts[2, 7] = wrong
    with pytest.raises(ModelError, match=rf"{NAME}' in column 7 of expert 2 is"):
        read_imatrix(newer(tmp_path / "experts.gguf", experts))


def test_weights_of_zero_are_read(tmp_path: Path) -> None:
    for path in (
        older(tmp_path / "old.dat", np.zeros(32)),
        newer(tmp_path / "new.gguf", np.zeros((1, 32))),
    ):
        assert not read_imatrix(path)[NAME].any()
