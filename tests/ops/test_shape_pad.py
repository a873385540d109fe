"""Padding and rotation of elements: against numpy, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, Tensor, Unsupported, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import aggml


def test_negative_amounts_cut_off(any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(6, 5, 4, 3))
    x = floats(3, 4, 5, 6, seed=1)
    node = ops.pad_ext(a, -2, 1, 1, -3, 0, -1, -1, -1)
    expected = np.pad(x[1:2, :3, :2, 2:], ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert np.array_equal(compute(any_backend, node, {a: x}), expected)


@pytest.mark.parametrize("permuted", [False, True])
def test_against_numpy(permuted: bool, any_backend: aggml.Backend) -> None:
    leaf = new_tensor("f32", ne=(6, 5, 4, 3))
    x = floats(3, 4, 5, 6, seed=2)
    a, y = (ops.permute(leaf, 1, 2, 0, 3), x.transpose(0, 2, 3, 1)) if permuted else (leaf, x)
    # ne order is the reverse of numpy's.
    around = ((1, 0), (0, 1), (2, 1), (7, 2))
    amounts = [n for pair in reversed(around) for n in pair]
    cases = [(ops.pad_ext_circular(a, *amounts), np.pad(y, around, "wrap"))]
    if not permuted:
        reflected = np.pad(x, ((0, 0), (0, 0), (0, 0), (3, 2)), "reflect")
        cases.append((ops.pad_reflect_1d(leaf, 3, 2), reflected))
    # roll needs the elements of a row to be adjacent; the order of the rows may be any.
    b, z = (ops.permute(leaf, 0, 2, 1, 3), x.transpose(0, 2, 1, 3)) if permuted else (leaf, x)
    cases.append((ops.roll(b, 2, -1, 2, -2), np.roll(z, (2, -1, 2, -2), (3, 2, 1, 0))))
    for node, expected in cases:
        assert np.array_equal(compute(any_backend, node, {leaf: x}), expected)


def test_roll_of_a_large_tensor(any_backend: aggml.Backend) -> None:
    leaf, x = new_tensor("f32", ne=(517, 300, 2)), floats(2, 300, 517, seed=3)
    found = compute(any_backend, ops.roll(leaf, 100, -20, 1, 0), {leaf: x})
    assert np.array_equal(found.reshape(x.shape), np.roll(x, (100, -20, 1), (2, 1, 0)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: ops.pad_ext(a, -3, -2, 0, 0, 0, 0, 0, 0), InvalidArgument),
        (lambda a: ops.pad(ops.cast(a, "f16"), 1, 0, 0, 0), Unsupported),
        (lambda a: ops.pad_reflect_1d(a, 4, 0), InvalidArgument),
        (lambda a: ops.pad_reflect_1d(a, 0, -1), InvalidArgument),
        (lambda a: ops.roll(a, 4, 0, 0, 0), InvalidArgument),
        (lambda a: ops.pad(a, 1 << 40, 0, 0, 0), InvalidArgument),
    ],
)
def test_refused(call: Callable[[Tensor], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+\] "):
        call(new_tensor("f32", ne=(4, 3)))
