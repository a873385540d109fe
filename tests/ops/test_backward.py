"""Gradients compared with central differences of their functions; rows with gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import by_differences, run, same_for_any_threads

from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    import aggml

    Values = NDArray[np.float64]


def _silu(x: Values) -> Values:
    y: Values = x / (1 + np.exp(-x))
    return y


def _rms_norm(x: Values) -> Values:
    y: Values = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 0.3)
    return y


def _soft_max(x: Values) -> Values:
    e = np.exp(0.7 * x - np.max(0.7 * x, axis=-1, keepdims=True))
    y: Values = e / e.sum(axis=-1, keepdims=True)
    return y


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("name", ["silu", "rms_norm", "soft_max"])
def test_gradient_is_that_of_the_function(name: str, n: int, backend: aggml.Backend) -> None:
    rng = np.random.default_rng(n)
    x, weight = rng.normal(size=(2, 3, n))
    f = {"silu": _silu, "rms_norm": _rms_norm, "soft_max": _soft_max}[name]
    expected = by_differences(lambda x: float((f(x) * weight).sum()), x, 1e-5)
    grad, value = new_tensor("f32", ne=(n, 3)), new_tensor("f32", ne=(n, 3))
    if name == "silu":
        node = ops.silu_back(grad, value)
    elif name == "rms_norm":
        node = ops.rms_norm_back(grad, value, 0.3)
    else:
        node = ops.soft_max_ext_back(grad, value, 0.7)
    given = f(x) if name == "soft_max" else x
    data = {grad: weight.astype(np.float32), value: given.astype(np.float32)}
    np.testing.assert_allclose(run(backend, node, data), expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_the_loss(any_backend: aggml.Backend) -> None:
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(2, 4, 9))
    labels = np.exp(labels) / np.exp(labels).sum(axis=-1, keepdims=True)

    def loss(x: Values) -> float:
        log = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        return float(-(labels * log).sum() / 4)

    grad, a, b = new_tensor("f32", ne=(1,)), *(new_tensor("f32", ne=(9, 4)) for _ in range(2))
    data = {a: x.astype(np.float32), b: labels.astype(np.float32)}
    result = run(any_backend, ops.cross_entropy_loss(a, b), data)
    np.testing.assert_allclose(result, [[loss(x)]], rtol=1e-6)
    node = ops.cross_entropy_loss_back(grad, a, b)
    result = run(any_backend, node, data | {grad: np.array([2.5], np.float32)})
    np.testing.assert_allclose(result, 2.5 * by_differences(loss, x, 1e-5), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_silu_back_of_rows_apart(dtype: str, any_backend: aggml.Backend) -> None:
    x, weight = np.random.default_rng(4).normal(size=(2, 5, 60))
    grad, value = new_tensor(dtype, ne=(60, 5)), new_tensor(dtype, ne=(60, 5))
    parts = [ops.view_2d(t, 33, 5, t.nb[1], t.nb[0]) for t in (grad, value)]
    kind = np.float32 if dtype == "f32" else np.float16
    data = {grad: weight.astype(kind), value: x.astype(kind)}
    result = run(any_backend, ops.silu_back(parts[0], parts[1]), data)
    s = 1 / (1 + np.exp(-x))
    expected = (weight * s * (1 + x * (1 - s)))[:, 1:34]
    bound = 1e-6 if dtype == "f32" else 4e-3
    np.testing.assert_allclose(result, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["silu_back", "rms_norm_back", "soft_max_ext_back"])
def test_threads_do_not_matter(name: str, by_threads: list[aggml.Backend]) -> None:
    x, y = np.random.default_rng(5).normal(size=(2, 700, 301)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(301, 700)), new_tensor("f32", ne=(301, 700))
        more = (0.1,) if name == "rms_norm_back" else ()
        return getattr(ops, name)(a, b, *more), {a: x, b: y}

    same_for_any_threads(by_threads, build)
