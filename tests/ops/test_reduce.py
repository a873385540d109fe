"""Sums, means, counts, the index of the largest, a loss: with gaps, NaN, empty tensors."""

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


@pytest.mark.parametrize("axes", [(1, 0, 2, 3), (3, 2, 1, 0), (0, 1, 3, 2)])
@pytest.mark.parametrize("name", ["sum", "sum_rows", "mean", "cumsum"])
def test_rows_with_gaps(name: str, axes: tuple[int, ...], any_backend: aggml.Backend) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 700)).astype(np.float32)
    a = new_tensor("f32", ne=(700, 5, 3, 2))
    node = getattr(ops, name)(ops.permute(a, *axes))
    # Dimension i of ne is axis 3 - i of the numpy array.
    order = [3 - axes.index(3 - i) for i in range(4)]
    seen = x.transpose(order).astype(np.float64)
    expected = {
        "sum": np.sum(seen),
        "sum_rows": np.sum(seen, axis=-1),
        "mean": np.mean(seen, axis=-1),
        "cumsum": np.cumsum(seen, axis=-1),
    }[name]
    result = run(any_backend, node, {a: x})
    np.testing.assert_allclose(result.ravel(), np.ravel(expected), rtol=1e-6, atol=1e-5)


def test_the_loss_of_a_part_of_the_rows(any_backend: aggml.Backend) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 6, 33)).astype(np.float32), rng.random((4, 6, 30), np.float32)
    a, b = new_tensor("f32", ne=(33, 6, 4)), new_tensor("f32", ne=(30, 6, 4))
    part = ops.view_3d(a, 30, 5, 4, a.nb[1], a.nb[2], a.nb[1] + 8)
    node = ops.cross_entropy_loss(part, ops.view_3d(b, 30, 5, 4, b.nb[1], b.nb[2], 0))
    z = x[:, 1:, 2:32].astype(np.float64)
    logs = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    result = run(any_backend, node, {a: x, b: y})
    assert result.item() == pytest.approx(-(y[:, :5] * logs).sum() / 20, rel=1e-6)


@pytest.mark.parametrize("name", ["sum", "sum_rows", "mean", "argmax", "cumsum", "count_equal"])
@pytest.mark.parametrize("ne", [(100_003,), (513, 400), (3, 5000)])
def test_threads_do_not_matter(
    name: str, ne: tuple[int, ...], by_threads: list[aggml.Backend]
) -> None:
    x = np.random.default_rng(2).normal(size=ne[::-1]).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        if name == "count_equal":
            i, j = new_tensor("i32", ne=ne), new_tensor("i32", ne=ne)
            return ops.count_equal(i, j), {i: (3 * x).astype(np.int32), j: np.zeros_like(x, "i4")}
        a = new_tensor("f32", ne=ne)
        return getattr(ops, name)(a), {a: x}

    result = same_for_any_threads(by_threads, build)
    if name == "sum":
        np.testing.assert_allclose(result, x.sum(dtype=np.float64), rtol=1e-6)
    elif name == "argmax":
        assert np.array_equal(result.reshape(-1), x.reshape(-1, ne[0]).argmax(axis=-1))
    elif name == "count_equal":
        assert result.item() == ((3 * x).astype(np.int32) == 0).sum()


def test_count_equal_counts_all_dimensions(any_backend: aggml.Backend) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 4, (2, 3, 4, 5, 6), dtype=np.int32)
    a, b = new_tensor("i32", ne=(6, 5, 4, 3)), new_tensor("i32", ne=(5, 6, 4, 3))
    node = ops.count_equal(a, ops.transpose(b))
    data = {a: x, b: np.ascontiguousarray(y.swapaxes(-1, -2))}
    assert run(any_backend, node, data).item() == (x == y).sum()


def test_argmax_passes_over_nan(any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(4, 2))
    x = np.array([[1, np.nan, 0, 1], [np.nan, np.nan, -np.inf, np.nan]], np.float32)
    assert run(any_backend, ops.argmax(a), {a: x}).tolist() == [[3, 2]]


@pytest.mark.parametrize("ne", [(0, 3), (4, 0)])
def test_sums_of_nothing(ne: tuple[int, int], any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=ne)
    x = np.zeros(ne[::-1], np.float32)
    assert run(any_backend, ops.sum(a), {a: x}).tolist() == [[0.0]]
    assert run(any_backend, ops.sum_rows(a), {a: x}).tolist() == [[0.0]] * ne[1]
