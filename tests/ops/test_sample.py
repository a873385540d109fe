"""sample and penalize: they draw the token that `aggml.models` draws on the host; edge cases.

CUDA's kernels are compared bit by bit in tests/devices/cuda/test_sampling.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import run

import aggml
from aggml import Tensor, new_tensor, ops
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.sampling import Sampler, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


def best_of(x: NDArray[np.float32], k: int) -> NDArray[np.int32]:
    """Indices of the k largest of each row; of equal numbers the first comes first, NaN last."""
    at = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    return np.lexsort((at, -x, np.isnan(x)))[:, :k].astype(np.int32)


def drawn(
    backend: aggml.Backend, x: NDArray[Any], ids: NDArray[Any], how: NDArray[Any]
) -> NDArray[Any]:
    a = new_tensor("f32", ne=x.shape[::-1])
    b = new_tensor("i32", ne=ids.shape[::-1])
    c = new_tensor("f64", ne=how.shape[::-1])
    return run(backend, ops.sample(a, b, c), {a: x, b: ids, c: how}).reshape(-1)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (40, 40), (2000, 64), (2000, 1), (9000, 9000)])
def test_the_token_is_the_one_that_samplers_draw(
    n: int, k: int, any_backend: aggml.Backend
) -> None:
    rng = np.random.default_rng(n + k)
    x = (rng.normal(size=(200, n)) * rng.choice([0.1, 1, 4], (200, 1))).astype(np.float32)
    ids = best_of(x, k)
    settings = [
        (
            float(rng.choice([0.0, 0.5, 0.8, 1.0, 3.0])),
            int(rng.choice([0, 1, 5, 40])),
            float(rng.choice([0.1, 0.9, 0.95, 1.0])),
            seed,
            float(rng.choice([0.0, 0.05, 0.5])),
        )
        for seed in range(len(x))
    ]
    expected = choose([Sampler(*each) for each in settings], ids, np.take_along_axis(x, ids, 1))
    how = np.array(
        [
            (heat, k_, p, least, Sampler(heat, k_, p, seed, least).random.random())
            for heat, k_, p, seed, least in settings
        ]
    )
    assert drawn(any_backend, x, ids, how).tolist() == expected


def test_tokens_come_as_often_as_their_probabilities_say(any_backend: aggml.Backend) -> None:
    n, times = 12, 20_000
    row = np.random.default_rng(3).normal(size=n).astype(np.float32)
    x = np.repeat(row[None], times, 0)
    heat = 0.7
    how = np.zeros((times, 5))
    how[:, 0], how[:, 2] = heat, 1.0
    how[:, 4] = np.random.default_rng(4).random(times)
    found = np.bincount(drawn(any_backend, x, best_of(x, n), how), minlength=n)
    share = np.exp((row.astype(np.float64) - row.max()) / heat)
    expected = times * share / share.sum()
    # chi squared: above 31.3 in 1 of 1000 cases
    assert np.sum((found - expected) ** 2 / expected) < 40.0


@pytest.mark.parametrize("draw", [0.0, 0.3, 1 - 2**-53])
def test_every_draw_is_one_of_those_that_are_kept(draw: float, any_backend: aggml.Backend) -> None:
    n = 300
    x = np.linspace(3, 0, n, dtype=np.float32)[None]
    how = np.array([[1.0, 7, 1.0, 0.0, draw]])
    (token,) = drawn(any_backend, x, best_of(x, n), how)
    assert token == {0.0: 0, 0.3: 2, 1 - 2**-53: 6}[draw]


def test_infinite_logits_missing_ids_and_nan(any_backend: aggml.Backend) -> None:
    x = np.zeros((5, 6), np.float32)
    x[0, 3] = np.inf
    x[1] = -np.inf
    x[1, 2] = 1.0
    x[2] = np.nan
    ids = best_of(x, 6)
    ids[3] = [4, -1, 6, 2**31 - 1, -1, -1]  # only 4 is a valid index
    ids[4] = -1
    how = np.tile([1.0, 0, 1.0, 0.0, 0.99], (5, 1))
    assert drawn(any_backend, x, ids, how).tolist() == [3, 2, 0, 4, -1]


def test_numbers_out_of_their_ranges_draw_the_best(any_backend: aggml.Backend) -> None:
    x = np.arange(6, dtype=np.float32)[None].repeat(5, 0)
    how = np.tile([1.0, 0, 1.0, 0.0, 0.9999], (5, 1))
    how[0, 2], how[1, 2] = -1.0, 0.0
    how[2, 3] = 2.0
    how[3, 0], how[4, 0] = -1.0, np.nan
    assert drawn(any_backend, x, best_of(x, 6), how).tolist() == [5] * 5


@pytest.mark.parametrize("rules", [Rules(), Rules(0.5, 0.25, 1.3, {5: 2.5, 90: -9.0}, 3)])
def test_penalties_are_those_of_an_adjuster(rules: Rules, any_backend: aggml.Backend) -> None:
    rng = np.random.default_rng(8)
    row = rng.normal(size=100).astype(np.float32)
    adjuster = Adjuster(rules, [1, 2, 3, 3], ends=[7])
    for token in (4, 4, 5):
        adjuster.take(token)
    changed, logits = adjuster.adjust(row)
    expected = row.copy()
    expected[changed] = logits
    ids, how = adjuster.numbers(32)
    a, b, c = (
        new_tensor("f32", ne=(100, 1)),
        new_tensor("i32", ne=(32, 1)),
        new_tensor("f32", ne=(32, 5, 1)),
    )
    values: Mapping[Tensor, NDArray[Any]] = {a: row[None], b: ids[None], c: how[None]}
    assert np.array_equal(run(any_backend, ops.penalize(a, b, c), values).reshape(-1), expected)


def test_operands_that_do_not_fit_are_refused() -> None:
    a, ids = new_tensor("f32", ne=(9, 2)), new_tensor("i32", ne=(4, 2))
    how, changes = new_tensor("f64", ne=(5, 2)), new_tensor("f32", ne=(4, 5, 2))
    refused: list[Callable[[], Tensor]] = [
        lambda: ops.sample(a, new_tensor("i32", ne=(4, 3)), how),
        lambda: ops.sample(a, new_tensor("i32", ne=(0, 2)), how),
        lambda: ops.sample(a, ids, new_tensor("f64", ne=(5, 3))),
        lambda: ops.sample(a, ids, new_tensor("f64", ne=(6, 2))),
        lambda: ops.sample(new_tensor("f32", ne=(9, 2, 2)), ids, how),
        lambda: ops.penalize(a, ids, new_tensor("f32", ne=(3, 5, 2))),
        lambda: ops.penalize(a, ids, new_tensor("f32", ne=(4, 4, 2))),
    ]
    for wrong in refused:
        with pytest.raises(aggml.LayoutMismatch):
            wrong()
    unsupported: list[Callable[[], Tensor]] = [
        lambda: ops.sample(a, ids, new_tensor("f32", ne=(5, 2))),
        lambda: ops.sample(a, new_tensor("i64", ne=(4, 2)), how),
        lambda: ops.penalize(new_tensor("f16", ne=(9, 2)), ids, changes),
        lambda: ops.penalize(a, ids, new_tensor("f64", ne=(4, 5, 2))),
    ]
    for unknown in unsupported:
        with pytest.raises(aggml.Unsupported):
            unknown()
    with pytest.raises(aggml.InvalidHandle):
        ops.sample(a, ids, None)  # type: ignore[arg-type]
