"""One step of training: what adamw writes, what may be trained."""

from __future__ import annotations

import numpy as np
import pytest
from ops.computing import floats

import aggml
from aggml import Graph, InvalidArgument, new_tensor, ops


def test_adamw_updates_its_means_step_by_step(any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(5, 3), name="a").set_param()
    grad, m, v = (new_tensor("f32", ne=(5, 3), name=name) for name in ("grad", "m", "v"))
    params = new_tensor("f32", ne=(7,), name="params")
    graph = Graph(ops.opt_step_adamw(a, grad, m, v, params))
    w, mean, square = floats(3, 5, seed=1).astype(np.float64), np.zeros((3, 5)), np.zeros((3, 5))
    memory = any_backend.alloc([a, grad, m, v, params])
    placed = any_backend.alloc_graph(graph)
    for leaf, value in ((a, w), (m, mean), (v, square)):
        any_backend.set(leaf, value.astype(np.float32))
    for t in range(1, 4):
        g = floats(3, 5, seed=10 + t)
        factors = (1e-2, 0.9, 0.99, 1e-8, 0.1, 1 / (1 - 0.9**t), 1 / (1 - 0.99**t))
        any_backend.set(grad, g)
        any_backend.set(params, np.array(factors, np.float32))
        any_backend.graph_compute(graph)
        mean = 0.9 * mean + 0.1 * g
        square = 0.99 * square + 0.01 * g * g
        w = w * (1 - 1e-3) - 1e-2 * mean * factors[5] / (np.sqrt(square * factors[6]) + 1e-8)
    for leaf, value in ((a, w), (m, mean), (v, square)):
        result = any_backend.get(leaf)
        result.wait(60)
        assert np.allclose(result.result(), value, rtol=1e-4, atol=1e-6)
    placed.close()
    memory.close()


def test_a_plan_says_that_the_means_are_written(any_backend: aggml.Backend) -> None:
    a, m, v = (new_tensor("f32", ne=(4,), name=name) for name in "amv")
    a.set_param()
    grad, params = new_tensor("f32", ne=(4,), name="grad"), new_tensor("f32", ne=(7,))
    graph = Graph(ops.opt_step_adamw(a, grad, m, v, params))
    memory = any_backend.alloc([a, grad, m, v, params])
    placed = any_backend.alloc_graph(graph)
    assert set(aggml.compile_plan(graph).writes) == {a, m, v}
    placed.close()
    memory.close()


def test_only_parameters_are_trained() -> None:
    a, grad, params = (new_tensor("f32", ne=(n,)) for n in (4, 4, 2))
    with pytest.raises(InvalidArgument, match=r"^\[opt_step_sgd\] .* is no parameter"):
        ops.opt_step_sgd(a, grad, params)
