"""sample and penalize on CUDA's shim: the CPU's tokens and bits for the same numbers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.host import compute as on_shim
from ops.computing import run as on_cpu
from ops.test_sample import best_of

import aggml
from aggml import Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def _same(result: Tensor, values: dict[Tensor, NDArray[Any]]) -> None:
    with aggml.get_device("CPU").backend() as cpu:
        expected = on_cpu(cpu, result, values).reshape(-1)
    (found,), fault = on_shim(Graph(result), values, [result], order=3)
    assert fault[0] == 0
    assert np.array_equal(found.reshape(-1).view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(
    ("n", "k", "rows"), [(1, 1, 1), (50, 7, 40), (5000, 300, 30), (3000, 3000, 4)]
)
def test_the_same_numbers_give_the_same_token(n: int, k: int, rows: int) -> None:
    rng = np.random.default_rng(n)
    x = (rng.normal(size=(rows, n)) * rng.choice([0.1, 1, 9], (rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = -np.inf
    ids = best_of(x, k)
    how = np.stack(
        [
            rng.choice([0.0, 0.3, 1.0, 2.0], rows),
            rng.choice([0, 1, 5, 40], rows),
            rng.choice([0.1, 0.5, 0.95, 1.0], rows),
            rng.choice([0.0, 0.01, 0.5], rows),
            rng.random(rows),
        ],
        axis=1,
    )
    a = new_tensor("f32", ne=(n, rows))
    b, c = new_tensor("i32", ne=(k, rows)), new_tensor("f64", ne=(5, rows))
    _same(ops.sample(a, b, c), {a: x, b: ids, c: how})


def test_a_draw_that_falls_upon_a_sum_gives_the_same_token() -> None:
    """With equal weights the sums are 1/8, 2/8, ...; a draw equal to a sum takes the next token."""
    x, ids = np.zeros((16, 8), np.float32), np.tile(np.arange(8, dtype=np.int32), (16, 1))
    how = np.tile([1.0, 0, 1.0, 0.0, 0.0], (16, 1))
    how[:, 4] = np.arange(16) / 16
    a = new_tensor("f32", ne=(8, 16))
    b, c = new_tensor("i32", ne=(8, 16)), new_tensor("f64", ne=(5, 16))
    result = ops.sample(a, b, c)
    _same(result, {a: x, b: ids, c: how})
    with aggml.get_device("CPU").backend() as cpu:
        found = on_cpu(cpu, result, {a: x, b: ids, c: how})
    assert found.reshape(-1).tolist() == [i // 2 for i in range(16)]


def test_penalties_are_the_same_bits() -> None:
    n, m, rows = 700, 40, 3
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permutation(n + 20)[:m] - 10 for _ in range(rows)]).astype(np.int32)
    a = new_tensor("f32", ne=(n, rows))
    b, c = new_tensor("i32", ne=(m, rows)), new_tensor("f32", ne=(m, 5, rows))
    values: dict[Tensor, NDArray[Any]] = {
        a: rng.normal(size=(rows, n)).astype(np.float32),
        b: ids,
        c: rng.normal(size=(rows, 5, m)).astype(np.float32),
    }
    _same(ops.penalize(a, b, c), values)
