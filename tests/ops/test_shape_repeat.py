"""Repeats: permuted tensors, blocks, the gradient, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import Graph, LayoutMismatch, new_tensor, ops

if TYPE_CHECKING:
    import aggml


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "i16", "i8"])
def test_a_permuted_tensor_of_any_type_is_repeated(dtype: str, any_backend: aggml.Backend) -> None:
    a = new_tensor(dtype, ne=(3, 4, 2))
    x = np.arange(24).reshape(2, 4, 3).astype(a.dtype.numpy)
    node = ops.repeat_4d(ops.permute(a, 1, 0, 2, 3), 8, 3, 4, 2)
    expected = np.tile(x.transpose(0, 2, 1)[None], (2, 2, 1, 2))
    assert np.array_equal(compute(any_backend, node, {a: x}), expected)


def test_blocks_are_repeated_whole(any_backend: aggml.Backend) -> None:
    a = new_tensor("q8_0", ne=(64, 2))
    x = np.random.default_rng(1).integers(0, 255, (2, 68), np.uint8)
    node = ops.repeat_4d(a, 128, 4, 1, 1)
    graph = Graph(node)
    memory = any_backend.alloc([a])
    placed = any_backend.alloc_graph(graph)
    result = any_backend.run(graph, {a: x}, node)
    result.wait(60)
    assert np.array_equal(result.result().reshape(4, 136), np.tile(x, (2, 2)))
    placed.close()
    memory.close()


def test_repeat_back_is_the_transpose_of_repeat(any_backend: aggml.Backend) -> None:
    small, large = new_tensor("f32", ne=(3, 2, 2, 1)), new_tensor("f32", ne=(6, 6, 2, 4))
    x, g = floats(1, 2, 2, 3, seed=1), floats(4, 2, 6, 6, seed=2)
    forwards = compute(any_backend, ops.repeat_4d(small, 6, 6, 2, 4), {small: x})
    other = new_tensor("f32", ne=small.ne)
    backwards = compute(any_backend, ops.repeat_back(large, other), {large: g})
    assert np.vdot(forwards, g) == pytest.approx(np.vdot(x, backwards), rel=1e-5)


def test_refused() -> None:
    a, b = new_tensor("f32", ne=(4, 3)), new_tensor("f32", ne=(8, 4))
    with pytest.raises(LayoutMismatch):
        ops.repeat(a, b)
    with pytest.raises(LayoutMismatch):
        ops.repeat_back(b, a)
