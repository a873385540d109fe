"""The gradient of attention: permuted operands, threads, what is refused.

Not here: that it is the gradient (test_gradients.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops.computing import compute, floats

import aggml
from aggml import Tensor, new_tensor, ops


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne)


def test_operands_may_be_permuted_and_threads_do_not_matter(
    by_threads: list[aggml.Backend],
) -> None:
    ne = (16, 33, 8, 3)
    plain = (leaf(*ne), leaf(*ne), leaf(33, 16, 8, 3), leaf(*ne))
    values = {t: floats(*t.ne[::-1], seed=i) for i, t in enumerate(plain)}
    expected = compute(by_threads[0], ops.flash_attn_back(*plain, True), values)
    q, k, v, d = odd = [leaf(16, 33, 8, 3) if i == 2 else leaf(16, 8, 33, 3) for i in range(4)]
    turned = {
        o: x.swapaxes(-1, -2) if o is v else x.swapaxes(1, 2)
        for o, x in zip(odd, values.values(), strict=True)
    }
    q, k, d = (ops.permute(t, 0, 2, 1, 3) for t in (q, k, d))
    for backend in by_threads:
        node = ops.flash_attn_back(q, k, ops.transpose(v), d, True)
        found = compute(backend, node, {o: np.ascontiguousarray(x) for o, x in turned.items()})
        assert np.array_equal(found, expected)


def test_attention_that_does_not_fit_is_refused() -> None:
    q, k, v = leaf(4, 3, 2), leaf(4, 5, 2), leaf(5, 4, 2)
    ops.flash_attn_back(q, k, v, q, True)
    wrong: Any
    for wrong in ((q, k, k, q), (q, v, v, q), (q, k, v, k), (leaf(4, 3, 3), k, v, leaf(4, 3, 3))):
        with pytest.raises(aggml.LayoutMismatch):
            ops.flash_attn_back(wrong[0], wrong[1], wrong[2], wrong[3], masked=False)
    with pytest.raises(aggml.LayoutMismatch, match="fewer keys"):
        ops.flash_attn_back(leaf(4, 6, 2), k, v, leaf(4, 6, 2), True)
    half = leaf(4, 3, 2, dtype="f16")
    with pytest.raises(aggml.Unsupported):
        ops.flash_attn_back(half, k, v, half, False)
