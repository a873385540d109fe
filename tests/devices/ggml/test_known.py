"""Nodes that a backend of ggml accepts, but would compute wrong or crash on, are refused.

Not here: functions that libraries of older versions lack (test_recorded.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from devices.ggml import builds
from ops.computing import compute

import aggml
from aggml import new_tensor, ops
from aggml.devices.ggml.known import find_known_fault


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
def test_products_of_two_packed_operands_on_vulkan(dtype: str) -> None:
    node = ops.mul_mat(new_tensor(dtype, ne=(64, 8)), new_tensor(dtype, ne=(64, 4)))
    assert f"second operand of {dtype}" in (find_known_fault("Vulkan", node) or "")
    assert find_known_fault("CPU", node) is None


@pytest.mark.parametrize(("weights", "dtype"), [("q8_0", "f32"), ("f16", "f16")])
def test_products_with_floats_are_let_through(weights: str, dtype: str) -> None:
    node = ops.mul_mat(new_tensor(weights, ne=(64, 8)), new_tensor(dtype, ne=(64, 4)))
    assert find_known_fault("Vulkan", node) is None


@pytest.mark.parametrize(("channels", "refused"), [(10, True), (8, False)])
def test_groups_of_one_size_alone(channels: int, refused: bool) -> None:
    node = ops.group_norm(new_tensor("f32", ne=(8, 4, channels)), 4, 1e-6)
    assert (find_known_fault("Vulkan", node) is not None) is refused


def test_a_sum_of_a_view_with_gaps() -> None:
    whole = new_tensor("f32", ne=(8, 6))
    assert find_known_fault("Vulkan", ops.sum(whole)) is None
    part = ops.view_2d(whole, 4, 6, whole.nb[1], 0)
    assert "gaps" in (find_known_fault("Vulkan", ops.sum(part)) or "")


@pytest.mark.parametrize("prec", ["undefined", "f32", "bf16", "f16"])
def test_attention_may_be_summed_more_precisely_than_asked(prec: str) -> None:
    """The CPU of ggml 0.25 aborts for sums of f16 and bf16, which its sums of f32 satisfy."""
    rng = np.random.default_rng(3)
    q, k, v = (new_tensor("f32", ne=(32, n, 2)) for n in (3, 7, 7))
    node = ops.prec_set_acc(ops.flash_attn_ext(q, k, v), prec)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (q, k, v)}
    with builds.device("CPU").backend() as be, aggml.get_device("CPU").backend() as own:
        found = compute(be, node, values)
        again = ops.flash_attn_ext(q, k, v)
        np.testing.assert_allclose(found, compute(own, again, values), rtol=1e-3, atol=1e-3)
