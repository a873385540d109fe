"""Blocks that CUDA kernels quantize under the shim have the bytes that the CPU writes.

Here: numbers for which stored scales become 0, which no recorded case has. Not here: usual numbers
(test_kernels.py).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.host import compute as on_shim

import aggml
from aggml import Graph, new_tensor, ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aggml import Tensor

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def _blocks() -> NDArray[np.float32]:
    """Blocks of 256: groups of 16 that differ by up to 1e6, tiny numbers, groups of zeros."""
    x = np.random.default_rng(3).normal(size=(24, 16, 16))
    x[:8] *= 10.0 ** np.random.default_rng(4).uniform(-6, 0, (8, 16, 1))
    x[8:16] *= 10.0 ** np.arange(-12, -4).reshape(8, 1, 1)
    x[16:, ::3] = 0
    x[20:, 1::3] = 1e-7
    return x.reshape(24, 256).astype(np.float32)


@pytest.mark.parametrize("kind", ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K"])
def test_codes_of_scales_that_are_stored_as_0_are_those_of_the_cpu(kind: str) -> None:
    x = _blocks()
    source, target = new_tensor("f32", ne=(256, 24)), new_tensor(kind, ne=(256, 24))
    node = ops.cpy(source, target)
    values: dict[Tensor, NDArray[Any]] = {source: x, target: np.zeros(target.nbytes, np.uint8)}
    (result,), fault = on_shim(Graph(node), values, [node], 0)
    assert fault[0] == 0
    expected = aggml.quantize(x, kind)
    wrong = (expected != result.reshape(expected.shape)).any(axis=1)
    assert not wrong.any(), f"blocks {np.flatnonzero(wrong)}"
