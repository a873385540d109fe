"""Norms: groups whose rows are not adjacent, odd lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    import aggml


@pytest.mark.parametrize(("channels", "n_groups"), [(6, 3), (7, 3), (5, 1), (4, 9), (9, 4)])
def test_group_norm_of_rows_apart(
    channels: int, n_groups: int, by_threads: list[aggml.Backend]
) -> None:
    x = np.random.default_rng(channels).normal(2.0, 3.0, size=(2, channels, 40, 90))
    x = x.astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a = new_tensor("f32", ne=(90, 40, channels, 2))
        part = ops.view_4d(a, 70, 40, channels, 2, *a.nb[1:], 8)
        return ops.group_norm(part, n_groups, 0.01), {a: x}

    seen = x[..., 2:72].astype(np.float64)
    size = -(-channels // n_groups)
    expected = np.empty_like(seen)
    for first in range(0, channels, size):
        group = seen[:, first : first + size]
        mean = group.mean(axis=(1, 2, 3), keepdims=True)
        variance = group.var(axis=(1, 2, 3), keepdims=True)
        expected[:, first : first + size] = (group - mean) / np.sqrt(variance + 0.01)
    result = same_for_any_threads(by_threads, build)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 5000])
def test_l2_norm_has_length_one(n: int, backend: aggml.Backend) -> None:
    x = np.random.default_rng(n).normal(size=(3, n)).astype(np.float32)
    a = new_tensor("f32", ne=(n, 3))
    expected = x / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)
    result = run(backend, ops.l2_norm(a, 1e-6), {a: x})
    np.testing.assert_allclose(result, expected, rtol=2e-6)
    result = run(backend, ops.l2_norm(a, 1e6), {a: x})
    np.testing.assert_allclose(result, x / 1e6, rtol=2e-6)
