"""Recurrences over tokens: head sizes, snapshots, slots, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, LayoutMismatch, OutOfBounds, new_tensor, ops

if TYPE_CHECKING:
    import aggml


@pytest.mark.parametrize("heads", [1, 3])
def test_wkv7_of_any_head_size(heads: int, any_backend: aggml.Backend) -> None:
    """ggml is wrong if the head size is not a multiple of 64."""
    d, tokens, sequences = 20, 6, 2
    names = "rwkvab"
    leafs = [new_tensor("f32", ne=(d, heads, tokens), name=name) for name in names]
    state = new_tensor("f32", ne=(d * d * heads, sequences))
    arrays = [0.5 * floats(tokens, heads, d, seed=i) for i in range(6)]
    initial = floats(sequences, heads, d, d, seed=7)
    r, w, k, v, a, b = arrays
    outputs, states = np.zeros((tokens, heads, d)), initial.astype(np.float64)
    for t in range(tokens):
        s = states[t // 3]
        for h in range(heads):
            s[h] = s[h] * w[t, h] + np.outer(v[t, h], k[t, h]) + np.outer(s[h] @ a[t, h], b[t, h])
            outputs[t, h] = s[h] @ r[t, h]
    node = ops.rwkv_wkv7(leafs[0], leafs[1], leafs[2], leafs[3], leafs[4], leafs[5], state)
    values = dict(zip(leafs, arrays, strict=True)) | {state: initial.reshape(sequences, -1)}
    expected = np.concatenate([outputs.ravel(), states.ravel()])
    assert np.allclose(compute(any_backend, node, values).ravel(), expected, rtol=1e-4, atol=1e-4)


def test_snapshots_from_before_the_first_token_are_the_initial_state(
    any_backend: aggml.Backend,
) -> None:
    d, tokens = 4, 2
    q, k, v = (new_tensor("f32", ne=(d, 1, tokens), name=name) for name in "qkv")
    g, beta = (new_tensor("f32", ne=(1, 1, tokens), name=name) for name in ("g", "beta"))
    state = new_tensor("f32", ne=(d, d))
    initial = floats(d, d, seed=1)
    values = {leaf: floats(*leaf.ne[::-1], seed=i) for i, leaf in enumerate((q, k, v, g, beta))}
    node = ops.gated_delta_net(q, k, v, g, beta, state, 4)
    result = compute(any_backend, node, values | {state: initial}).ravel()[d * tokens :]
    snapshots = result.reshape(4, d, d)
    assert np.array_equal(snapshots[2], initial)
    assert np.array_equal(snapshots[3], initial)
    assert not np.allclose(snapshots[1], initial)


def _scan(**changes: tuple[int, ...]) -> aggml.Tensor:
    shapes = {
        "s": (4, 2, 6, 2),
        "x": (2, 6, 3, 2),
        "dt": (6, 3, 2),
        "A": (1, 6),
        "B": (4, 2, 3, 2),
        "C": (4, 2, 3, 2),
    } | changes
    operands: dict[str, Any] = {
        name: new_tensor("f32", ne=ne, name=name) for name, ne in shapes.items()
    }
    return ops.ssm_scan(**operands, ids=new_tensor("i32", ne=(2,), name="ids"))


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_out_of_range_fails(slot: int, any_backend: aggml.Backend) -> None:
    node = _scan()
    values = {leaf: np.zeros(leaf.shape, leaf.dtype.numpy) for leaf in node.src if leaf is not None}
    *_, ids = values
    with pytest.raises(OutOfBounds, match=rf"state {slot} of sequence 1 is outside 0\.\.1"):
        compute(any_backend, node, values | {ids: np.array([0, slot], np.int32)})


@pytest.mark.parametrize(
    "changes",
    [{"x": (2, 5, 3, 2)}, {"dt": (6, 2, 2)}, {"A": (3, 6)}, {"B": (4, 4, 3, 2), "C": (4, 4, 3, 2)}],
)
def test_extents_that_do_not_fit_are_refused(changes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(LayoutMismatch, match=r"^\[ssm_scan\] "):
        _scan(**changes)


def test_no_snapshot_is_refused() -> None:
    v, one = new_tensor("f32", ne=(4, 1, 2)), new_tensor("f32", ne=(1, 1, 2))
    with pytest.raises(InvalidArgument, match=r"^\[gated_delta_net\] K = 0"):
        ops.gated_delta_net(v, v, v, one, one, new_tensor("f32", ne=(4, 4)), 0)
