"""diag_mask: rows with gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import same_for_any_threads

from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    import aggml


@pytest.mark.parametrize("n_past", [0, 3, 100])
@pytest.mark.parametrize("name", ["diag_mask_inf", "diag_mask_zero"])
def test_rows_with_gaps(name: str, n_past: int, by_threads: list[aggml.Backend]) -> None:
    x = np.random.default_rng(1).normal(size=(3, 60, 90)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a = new_tensor("f32", ne=(90, 60, 3))
        return getattr(ops, name)(ops.transpose(a), n_past), {a: x}

    seen = x.swapaxes(-1, -2)
    beyond = np.arange(60) > np.arange(90)[:, None] + n_past
    expected = np.where(beyond, -np.inf if name == "diag_mask_inf" else 0.0, seen)
    assert np.array_equal(same_for_any_threads(by_threads, build), expected)
