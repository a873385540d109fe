"""rope with one position or several: its inverse, modes that agree, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import Graph, InvalidArgument, InvalidState, LayoutMismatch, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import aggml


@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision", "neox"])
def test_turning_back_undoes_turning(mode: str, any_backend: aggml.Backend) -> None:
    """The gradient of a rotation is its transpose, which is its inverse."""
    positions = new_tensor("i32", ne=(3 if mode == "neox" else 12,))
    a = new_tensor("f32", ne=(32, 2, 3))
    n_dims = 16 if mode == "vision" else 32
    x, at = floats(3, 2, 32, seed=1), np.random.default_rng(2).integers(0, 50, positions.ne[0])
    turned = ops.rope_multi(a, positions, None, n_dims, [6, 5, 5, 0], mode)
    node = ops.rope_multi_back(turned, positions, None, n_dims, [6, 5, 5, 0], mode)
    values = {a: x, positions: at.astype(np.int32)}
    assert np.allclose(compute(any_backend, node, values)[0], x, atol=1e-5)
    assert not np.allclose(compute(any_backend, turned, values)[0], x, atol=1e-1)


def test_one_position_for_all_is_neox(any_backend: aggml.Backend) -> None:
    a, four, one = new_tensor("f32", ne=(32, 2, 3)), new_tensor("i32", ne=(12,)), (3,)
    plain = new_tensor("i32", ne=one)
    x, at = floats(3, 2, 32, seed=3), np.array([4, 17, 2], np.int32)
    expected = compute(any_backend, ops.rope(a, plain, 32, "neox"), {a: x, plain: at})
    for mode in ("mrope", "imrope"):
        node = ops.rope_multi(a, four, None, 32, [6, 5, 5, 0], mode)
        assert np.array_equal(compute(any_backend, node, {a: x, four: np.tile(at, 4)}), expected)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a, b: ops.rope_multi(a, b, None, 8, [2, 2], "mrope"), InvalidArgument),
        (lambda a, b: ops.rope_multi(a, b, None, 8, [0, 0, 0, 4], "mrope"), InvalidArgument),
        (lambda a, b: ops.rope_multi(a, b, None, 8, [4, -1, 1, 0], "mrope"), InvalidArgument),
        (lambda a, b: ops.rope_multi(a, b, None, 8, [4, 4, 0, 0], "vision"), InvalidArgument),
        (lambda a, b: ops.rope_multi(a, b, None, 8, [4, 0, 0, 0], "neox"), LayoutMismatch),
        (lambda a, b: ops.rope_ext(a, b, None, 8, "mrope"), InvalidArgument),
        (
            lambda a, b: ops.rope_set_offset(ops.rope_multi(a, b, None, 6, [1, 1, 1, 0]), 3),
            InvalidArgument,
        ),
        (lambda a, _: ops.rope_set_offset(ops.scale(a, 2.0), 0), InvalidArgument),
    ],
)
def test_refused(call: Callable[[Tensor, Tensor], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+\] "):
        call(new_tensor("f32", ne=(8, 2, 2)), new_tensor("i32", ne=(8,)))


def test_a_graph_fixes_the_offset() -> None:
    node = ops.rope(new_tensor("f32", ne=(8, 2, 2)), new_tensor("i32", ne=(2,)), 4)
    assert ops.rope_set_offset(node, 4) is node
    Graph(node)
    with pytest.raises(InvalidState):
        ops.rope_set_offset(node, 2)


def test_factors_without_any_element_are_refused() -> None:
    """The first extent is large enough, but another one is 0."""
    x, positions = new_tensor("f32", ne=(8, 2, 3)), new_tensor("i32", ne=(3,))
    with pytest.raises(LayoutMismatch):
        ops.rope_ext(x, positions, new_tensor("f32", ne=(4, 0)), 8)
