"""Pooling: its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import by_differences, compute, floats

from aggml import new_tensor, ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    import aggml


@pytest.mark.parametrize("op", ["max", "avg"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])  # ggml's result for f16 is wrong
def test_pool_2d_back_is_the_gradient(op: str, dtype: str, any_backend: aggml.Backend) -> None:
    window = (op, 3, 2, 2, 1, 1, 1)
    a = new_tensor(dtype, ne=(6, 5, 2))
    forwards = ops.pool_2d(a, *window)
    grad = new_tensor("f32", ne=forwards.ne)
    back = ops.pool_2d_back(grad, a, *window)
    x = np.random.default_rng(1).permutation(60).reshape(2, 5, 6).astype(a.dtype.numpy)
    g = floats(*grad.shape, seed=2)

    def loss(changed: NDArray[Any]) -> float:
        # x are whole numbers: steps of 1/4 do not change their order, so each maximum stays where
        # it is.
        y = compute(any_backend, forwards, {a: changed.astype(a.dtype.numpy)})
        return float(np.vdot(y.ravel(), g.ravel()))

    expected = by_differences(loss, x, 0.25)
    actual = compute(any_backend, back, {grad: g, a: x})[0]
    assert np.allclose(actual, expected, atol=2e-3)
