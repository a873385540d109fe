"""Values that depend on positions: triangles, parts, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, LayoutMismatch, Tensor, Unsupported, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import aggml


@pytest.mark.parametrize("kind", ["lower", "lower_diag", "upper", "upper_diag"])
def test_triangles_of_matrices(kind: str, any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(5, 5, 2))
    x = floats(2, 5, 5, seed=1)
    cut = {"lower": (np.tril, -1), "lower_diag": (np.tril, 0)} | {
        "upper": (np.triu, 1),
        "upper_diag": (np.triu, 0),
    }
    function, k = cut[kind]
    node = ops.tri(a, kind)
    assert np.array_equal(compute(any_backend, node, {a: x})[0], function(x, k))


def test_fill_of_a_part(any_backend: aggml.Backend) -> None:
    a = new_tensor("f16", ne=(6, 4))
    x = floats(4, 6, seed=2).astype(np.float16)
    part = ops.view_2d(a, 6, 2, a.nb[1], a.nb[1])
    node = ops.cont(ops.reshape_1d(ops.fill_inplace(part, 7.0), 12))
    assert (compute(any_backend, node, {a: x}) == 7).all()


def test_a_graph_may_begin_with_arange(any_backend: aggml.Backend) -> None:
    node = ops.scale(ops.arange(2.0, 5.0, 0.5), 2.0)
    assert compute(any_backend, node, {}).ravel().tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda _: ops.arange(1.0, 1.0, 1.0), InvalidArgument),
        (lambda _: ops.arange(0.0, 1.0, -1.0), InvalidArgument),
        (lambda _: ops.arange(0.0, float("inf"), 1.0), InvalidArgument),
        (lambda _: ops.arange(0.0, float("nan"), 1.0), InvalidArgument),
        (lambda _: ops.arange(0.0, 1e38, 1e-38), InvalidArgument),
        (lambda a: ops.fill(ops.cast(a, "bf16"), 1.0), Unsupported),
        (lambda a: ops.tri(a, "lower"), LayoutMismatch),
        (lambda a: ops.tri(a, "both"), InvalidArgument),
        (lambda a: ops.diag(a), LayoutMismatch),
        (lambda a: ops.timestep_embedding(a, 4), LayoutMismatch),
        (lambda a: ops.timestep_embedding(a, 0), InvalidArgument),
    ],
)
def test_refused(call: Callable[[Tensor], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+\] "):
        call(new_tensor("f32", ne=(4, 3)))
