"""Hyper-connections with gates and without a matrix, compared with numpy.

Not here: recorded calls of ggml (test_recorded.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import NDArray

SIZES = [(1, 1, 1), (31, 4, 7), (512, 2, 3), (1029, 3, 5)]


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne, name="x")


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("d", "n", "tokens"), SIZES)
@pytest.mark.parametrize("scale", [1.0, -0.25])
def test_each_element_of_a_stream_is_behind_its_gate(
    d: int, n: int, tokens: int, scale: float, by_threads: list[aggml.Backend]
) -> None:
    rng = np.random.default_rng(d)
    x, gate = normal(rng, tokens, n, d), 4 * normal(rng, tokens, n, d)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = leaf(d, n, tokens), leaf(d, n, tokens)
        return ops.dsv4_hc_pre_gated(a, b, scale), {a: x, b: gate}

    found = same_for_any_threads(by_threads, build).reshape(tokens, d)
    expected = scale * (x / (1 + np.exp(-gate.astype(np.float64)))).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("d", "n", "tokens"), SIZES)
def test_without_a_matrix_each_stream_keeps_its_residual(
    d: int, n: int, tokens: int, by_threads: list[aggml.Backend]
) -> None:
    rng = np.random.default_rng(n)
    x, residual = normal(rng, tokens, d), normal(rng, tokens, n, d)
    post = normal(rng, tokens, n)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b, c = leaf(d, tokens), leaf(d, n, tokens), leaf(n, tokens)
        return ops.dsv4_hc_post(a, b, c), {a: x, b: residual, c: post}

    found = same_for_any_threads(by_threads, build).reshape(tokens, n, d)
    expected = x[:, None] * post[..., None].astype(np.float64) + residual
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.dsv4_hc_pre_gated(leaf(4, 2, 3), leaf(2, 3)),
        lambda: ops.dsv4_hc_pre_gated(leaf(4, 2, 3), leaf(4, 2, 2)),
        lambda: ops.dsv4_hc_pre_gated(leaf(4, 2, 3, 2), leaf(4, 2, 3, 2)),
        lambda: ops.dsv4_hc_pre_gated(leaf(4, 0, 3), leaf(4, 0, 3)),
        lambda: ops.dsv4_hc_pre(leaf(4, 0, 3), leaf(0, 3)),
        lambda: ops.dsv4_hc_post(leaf(4, 3), leaf(4, 2, 3), leaf(3, 2)),
        lambda: ops.dsv4_hc_post(leaf(4, 3), leaf(4, 2, 3), leaf(2, 3), leaf(2, 2, 2)),
        lambda: ops.dsv4_hc_post(leaf(4, 3), leaf(4, 0, 3), leaf(0, 3)),
        lambda: ops.dsv4_hc_pre_gated(ops.transpose(leaf(4, 4)), leaf(4, 4)),
    ],
)
def test_streams_that_do_not_fit_are_refused(call: Callable[[], Tensor]) -> None:
    with pytest.raises(aggml.LayoutMismatch, match=r"^\[dsv4_hc_\w+\] "):
        call()


def test_streams_are_f32_and_a_scale_is_a_number_of_f32() -> None:
    with pytest.raises(aggml.Unsupported, match=r"^\[dsv4_hc_pre_gated\] "):
        ops.dsv4_hc_pre_gated(leaf(4, 2, 3), leaf(4, 2, 3, dtype="f16"))
    with pytest.raises(aggml.InvalidArgument, match=r"^\[dsv4_hc_pre_gated\] "):
        ops.dsv4_hc_pre_gated(leaf(4, 2, 3), leaf(4, 2, 3), 1e39)
    with pytest.raises(aggml.InvalidHandle, match="comb is no tensor"):
        ops.dsv4_hc_post(leaf(4, 3), leaf(4, 2, 3), leaf(2, 3), 1)  # type: ignore[arg-type]
