"""Copies whose rows change places with those of other planes, with and without conversion.

Not here: elements that are not contiguous (test_alignment.py), blocks (test_type_operands.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute

import aggml
from aggml import new_tensor, ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = [(128, 32, 65, 1), (64, 3, 5, 2), (65, 40, 7, 3), (512, 2, 33, 1), (8, 9, 300, 1)]
ORDERS = [(0, 2, 1, 3), (0, 3, 2, 1), (0, 2, 3, 1), (0, 1, 3, 2)]


def numbers(ne: tuple[int, ...]) -> NDArray[Any]:
    made = np.random.default_rng(sum(ne)).normal(size=ne[::-1]) * 100
    return made.astype(np.float32)


@pytest.mark.parametrize("ne", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("to", ["f32", "f16", "bf16", "i32"])
def test_rows_are_read_in_another_order(
    ne: tuple[int, ...], order: tuple[int, ...], to: str, by_threads: list[aggml.Backend]
) -> None:
    a, x = new_tensor("f32", ne=ne), numbers(ne)
    axes = [3 - order.index(3 - i) for i in range(4)]  # numpy counts dimensions from the other end
    expected = x.transpose(axes).astype(aggml.DType.parse(to).numpy)
    for be in by_threads:
        found = compute(be, ops.cast(ops.permute(a, *order), to), {a: x})
        assert np.array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("ne", [(130, 33, 530, 1), (96, 10, 999, 3)])
def test_results_that_take_a_large_part_of_an_l3(
    ne: tuple[int, ...], by_threads: list[aggml.Backend]
) -> None:
    a, x = new_tensor("f32", ne=ne), numbers(ne)
    for be in by_threads:
        found = compute(be, ops.cont(ops.permute(a, 0, 2, 1, 3)), {a: x})
        assert np.array_equal(found.reshape(-1), x.transpose(0, 2, 1, 3).reshape(-1))


@pytest.mark.parametrize("ne", SHAPES)
@pytest.mark.parametrize(("source", "target"), [("f32", "f16"), ("f16", "f32"), ("f32", "f32")])
def test_rows_are_written_in_another_order(
    ne: tuple[int, ...], source: str, target: str, by_threads: list[aggml.Backend]
) -> None:
    x = numbers(ne).astype(aggml.DType.parse(source).numpy)
    a, b = new_tensor(source, ne=ne), new_tensor(target, ne=(ne[0], ne[2], ne[1], ne[3]))
    zeros = np.zeros((ne[3], ne[1], ne[2], ne[0]), aggml.DType.parse(target).numpy)
    expected = x.astype(zeros.dtype)
    for be in by_threads:
        turned = ops.cpy(a, ops.permute(b, 0, 2, 1, 3))
        found = compute(be, ops.cont(turned), {a: x, b: zeros})
        assert np.array_equal(found.reshape(expected.shape), expected)
