"""argsort, top_k: ties, NaN, long rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import NDArray


@pytest.mark.parametrize("n", [1, 47, 48, 49, 1000, 70_000])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_equal_elements_stay_in_order(n: int, order: str, by_threads: list[aggml.Backend]) -> None:
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, (3, n)).astype(np.float32) * rng.choice([1, 1e-30, 1e30], (3, 1))
    x = np.where(x == 0, rng.choice([0.0, -0.0], x.shape), x).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a = new_tensor("f32", ne=(n, 3))
        return ops.argsort(a, order), {a: x}

    expected = np.argsort(x if order == "asc" else -x, axis=-1, kind="stable")
    assert np.array_equal(same_for_any_threads(by_threads, build), expected)


@pytest.mark.parametrize(
    ("n", "k"), [(9, 1), (64, 8), (1000, 40), (1000, 900), (50_000, 7), (5, 0)]
)
def test_top_k_has_the_largest_first(n: int, k: int, any_backend: aggml.Backend) -> None:
    x = np.random.default_rng(n).normal(size=(4, n)).astype(np.float32)
    a = new_tensor("f32", ne=(n, 4))
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    assert np.array_equal(run(any_backend, ops.top_k(a, k), {a: x}), expected)
    assert np.array_equal(run(any_backend, ops.argsort_top_k(a, k), {a: x}), expected)


@pytest.mark.parametrize("n", [1, 15, 33, 129, 512, 1000, 5000])
@pytest.mark.parametrize("k", [1, 3, 8, 11, 16, 40])
def test_top_k_of_equal_elements_takes_the_first_and_nan_last(
    n: int, k: int, any_backend: aggml.Backend
) -> None:
    rng = np.random.default_rng(n)
    x = rng.integers(-3, 4, (8, n)).astype(np.float32)
    x[1] = rng.choice(np.array([0.0, -0.0], np.float32), n)
    x[2] = -np.inf
    x[2, n // 2 :] = np.nan
    x[3] = np.nan
    x[4] = np.sort(x[4])
    x[5, rng.random(n) < 0.9] = np.nan
    x[6] = rng.integers(-30, 30, n)  # few of the largest are equal
    x[7] = np.where(np.arange(n) < 9, x[6], np.nan)
    k = min(k, n)
    a = new_tensor("f32", ne=(n, 8))
    expected = np.lexsort((np.broadcast_to(np.arange(n), x.shape), -x, np.isnan(x)))[:, :k]
    assert np.array_equal(run(any_backend, ops.top_k(a, k), {a: x}), expected)


@pytest.mark.parametrize("n", [8, 100])
def test_nan_comes_last_in_either_order(n: int, any_backend: aggml.Backend) -> None:
    x = np.arange(n, dtype=np.float32)
    x[[1, 4]] = np.nan
    x[5] = np.inf
    a = new_tensor("f32", ne=(n,))
    rest = [i for i in range(n) if i not in {1, 4, 5}]
    up = run(any_backend, ops.argsort(a, "asc"), {a: x})
    down = run(any_backend, ops.argsort(a, ops.SortOrder.DESC), {a: x})
    assert up.tolist() == [*rest, 5, 1, 4]
    assert down.tolist() == [5, *reversed(rest), 1, 4]
    assert run(any_backend, ops.top_k(a, 1), {a: x}).tolist() == [5]


def test_rows_with_gaps(any_backend: aggml.Backend) -> None:
    x = np.random.default_rng(5).normal(size=(9, 6)).astype(np.float32)
    a = new_tensor("f32", ne=(6, 9))
    result = run(any_backend, ops.argsort(ops.transpose(a)), {a: x})
    assert np.array_equal(result, np.argsort(x.T, axis=-1))


@pytest.mark.parametrize("builder", [ops.top_k, ops.argsort_top_k])
def test_k_beyond_a_row_is_refused(builder: Callable[[Tensor, int], Tensor]) -> None:
    a = new_tensor("f32", ne=(4,))
    with pytest.raises(aggml.LayoutMismatch):
        builder(a, 5)
    with pytest.raises(aggml.InvalidArgument):
        builder(a, -1)
