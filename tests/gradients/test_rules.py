"""The gradient of every op that has one, against differences of the same function in float64.

The gradients are those of a random weighting of the results. Not here: which tensors have a
gradient, and what is refused (test_backward.py).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gradients.cases import Case, cases

import aggml
from aggml import Graph, new_tensor, ops
from aggml.gradients import DIFFERENTIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CASES = cases()
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def backend() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=2) as be:
        yield be


def test_every_op_that_can_be_differentiated_has_cases() -> None:
    assert {case.op for case in CASES} == DIFFERENTIABLE
    assert min(sum(case.op == op for case in CASES) for op in DIFFERENTIABLE) >= 2


def by_differences(case: Case, values: list[NDArray[np.float64]], weight: Array) -> list[Array]:
    """The gradient of the weighted sum in each parameter, by central differences."""
    found = []
    for k, x in enumerate(values):
        gradient = np.zeros_like(x)
        for i in np.ndindex(*x.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = x.copy()
                moved[i] += step
                given = [*values[:k], moved, *values[k + 1 :]]
                sides.append(float((case.function(*given) * weight).sum()))
            gradient[i] = (sides[0] - sides[1]) / 2e-5
        found.append(gradient)
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{i}-{case.op}") for i, case in enumerate(CASES)]
)
def test_gradient_is_that_of_differences_in_float64(case: Case, backend: aggml.Backend) -> None:
    rng = np.random.default_rng(zlib.crc32(case.op.encode()))
    leafs = [new_tensor("f32", ne).set_param() for ne in case.params]
    result = case.build(*leafs)
    if not result.is_contiguous or result.op in {"view", "permute", "transpose", "reshape"}:
        result = ops.cont(result)
    weights = new_tensor("f32", result.ne, "weights")
    loss = ops.sum(ops.mul(result, weights)).set_loss()
    back = aggml.build_backward_expand(Graph(result, loss))
    assert case.op in {node.op for node in back.nodes}

    values = [
        np.asarray(case.start(rng.normal(size=leaf.ne[::-1])), np.float64).astype(np.float32)
        for leaf in leafs
    ]
    weight = rng.normal(size=result.ne[::-1])
    exact = [value.astype(np.float64) for value in values]
    given: dict[aggml.Tensor, Any] = dict(zip(leafs, values, strict=True))
    given[weights] = weight.astype(np.float32)
    for leaf, value in case.fixed.items():
        given[leaf] = value if value.dtype == np.int32 else value.astype(np.float32)
    used = {*back.leafs, *back.nodes}
    given = {leaf: value.reshape(leaf.shape) for leaf, value in given.items() if leaf in used}

    memory = backend.alloc([leaf for leaf in given if leaf.placement is None])
    backend.alloc_graph(back)
    backend.graph_reset(back)
    wanted = [gradient for leaf in leafs if (gradient := back.grad(leaf)) is not None]
    assert len(wanted) == len(leafs)
    found = backend.run(back, given, [result, *wanted]).get(60)
    memory.close()

    forward = case.function(*exact)
    np.testing.assert_allclose(
        found[0].reshape(forward.shape), forward, atol=1e-4 * max(np.abs(forward).max(), 1)
    )
    for got, expected in zip(found[1:], by_differences(case, exact, weight), strict=True):
        scale = max(np.abs(expected).max(), 1e-3)
        np.testing.assert_allclose(got.reshape(expected.shape), expected, atol=1e-3 * scale)
