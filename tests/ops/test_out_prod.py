"""Sums of outer products: types, strides, many blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_1", "q6_K"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(256, 1, 1), (512, 50, 130), (768, 5, 300), (256, 200, 20)]
)
def test_blocks_of_any_size(dtype: str, m: int, n: int, k: int, backend: aggml.Backend) -> None:
    rng = np.random.default_rng(m + n + k)
    x = rng.normal(size=(2, k, m)).astype(np.float32)
    y = rng.normal(size=(2, k, n)).astype(np.float32)
    kind = aggml.DType.parse(dtype)
    given: NDArray[Any] = x if dtype == "f32" else x.astype(np.float16)
    seen = given.astype(np.float64)
    if kind.is_quantized:
        blocks = aggml.quantize(x.reshape(-1, m), kind)
        seen = aggml.dequantize(blocks, kind, ne=(m, k, 2)).reshape(2, k, m).astype(np.float64)
        given = blocks.reshape(2, k, -1)
    a, b = new_tensor(dtype, ne=(m, k, 2)), new_tensor("f32", ne=(n, k, 2))
    result = run(backend, ops.out_prod(a, b), {a: given, b: y})
    expected = np.einsum("pki,pkj->pji", seen, y.astype(np.float64))
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-5, atol=2e-4)


def test_the_sum_of_nothing_is_zero(any_backend: aggml.Backend) -> None:
    a, b = new_tensor("f32", ne=(5, 0)), new_tensor("f32", ne=(3, 0))
    nothing = {a: np.zeros((0, 5), np.float32), b: np.zeros((0, 3), np.float32)}
    assert run(any_backend, ops.out_prod(a, b), nothing).tolist() == [[0.0] * 5] * 3


@pytest.mark.parametrize(("m", "n", "k"), [(5, 3, 2), (300, 260, 140)])
def test_b_may_be_permuted_and_a_may_repeat(
    m: int, n: int, k: int, by_threads: list[aggml.Backend]
) -> None:
    rng = np.random.default_rng(m)
    x = rng.normal(size=(2, 1, k, m)).astype(np.float32)
    y = rng.normal(size=(k, n, 6, 2)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(m, k, 1, 2)), new_tensor("f32", ne=(2, 6, n, k))
        return ops.out_prod(a, ops.permute(b, 2, 3, 0, 1)), {a: x, b: y}

    # The op sees b as [n, k, 2, 6]; its plane (i, j) meets plane (0, j // 3) of a.
    result = same_for_any_threads(by_threads, build)
    seen = y.transpose(2, 3, 0, 1).astype(np.float64)
    expected = np.einsum("qki,qpkj->qpji", x.repeat(3, axis=0)[:, 0].astype(np.float64), seen)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("bf16", 8, 2), ("f32", 3, 2)),
        (("f32", 8, 2), ("f16", 3, 2)),
        (("f16", 8, 2), ("f32", 3, 2, 4)),
        (("q8_K", 256, 2), ("f32", 3, 2)),
        (("i32", 8, 2), ("f32", 3, 2)),
    ],
)
def test_other_types_are_refused(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    with pytest.raises(aggml.Unsupported, match=r"^\[out_prod\] "):
        ops.out_prod(new_tensor(a[0], ne=a[1:]), new_tensor(b[0], ne=b[1:]))
