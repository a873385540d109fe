"""set and acc: parts of any strides, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


_A, _B = (7, 6, 5, 2), (4, 3, 2, 2)


def _part(x: NDArray[Any]) -> NDArray[Any]:
    """The part of x [2, 5, 6, 7] that starts at [0, 1, 2, 3], with steps 1, 2, 1, 1."""
    return x[:, 1:5:2, 2:5, 3:7]


@pytest.mark.parametrize("inplace", ["", "_inplace"])
@pytest.mark.parametrize("name", ["set", "acc"])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_part_anywhere(
    name: str, inplace: str, permuted: bool, any_backend: aggml.Backend
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=_A[::-1]).astype(np.float32)
    y = rng.normal(size=_B[::-1]).astype(np.float32)
    a = new_tensor("f32", ne=_A)
    if permuted:
        b = new_tensor("f32", ne=(3, 4, 2, 2))
        data = {a: x, b: np.ascontiguousarray(y.swapaxes(-1, -2))}
        seen = ops.transpose(b)
    else:
        seen = b = new_tensor("f32", ne=_B)
        data = {a: x, b: y}
    offset = a.nb[2] + 2 * a.nb[1] + 3 * a.nb[0]
    node = getattr(ops, name + inplace)(a, seen, a.nb[1], 2 * a.nb[2], a.nb[3], offset)
    expected = x.copy()
    _part(expected)[...] = y if name == "set" else y + _part(x)
    assert np.array_equal(run(any_backend, node, data), expected)


def test_threads_do_not_matter(by_threads: list[aggml.Backend]) -> None:
    x = np.random.default_rng(2).normal(size=(900, 1000)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(1000, 900)), new_tensor("f32", ne=(500, 900))
        node = ops.acc(a, b, a.nb[1], a.nb[2], a.nb[3], 400)
        return node, {a: x, b: np.ascontiguousarray(x[:, ::2])}

    expected = x.copy()
    expected[:, 100:600] += x[:, ::2]
    assert np.array_equal(same_for_any_threads(by_threads, build), expected)


def test_nothing_may_be_put_anywhere(any_backend: aggml.Backend) -> None:
    a, b = new_tensor("i32", ne=(4,)), new_tensor("i32", ne=(0,))
    x = np.arange(4, dtype=np.int32)
    node = ops.set_1d(a, b, 16)
    assert run(any_backend, node, {a: x, b: np.zeros(0, np.int32)}).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("layout", "error"),
    [
        ((28, 168, 840, 844), aggml.OutOfBounds),
        ((28, 168, 1 << 50, 0), aggml.OutOfBounds),
        ((28, -168, 840, 0), aggml.InvalidArgument),
        ((28, 168, 840, -4), aggml.InvalidArgument),
        ((30, 168, 840, 0), aggml.Misaligned),
        ((28, 168, 840, 1 << 70), aggml.OutOfBounds),
        ((28.0, 168, 840, 0), aggml.InvalidHandle),
    ],
)
def test_a_part_beyond_the_tensor_is_refused(
    layout: tuple[Any, ...], error: type[Exception]
) -> None:
    a, b = new_tensor("f32", ne=_A), new_tensor("f32", ne=_B)
    for builder in (ops.set, ops.acc_inplace):
        with pytest.raises(error, match=r"^\[\w+\] "):
            builder(a, b, *layout)


def test_other_types_and_gaps_are_refused() -> None:
    a, b = new_tensor("f16", ne=(8,)), new_tensor("f16", ne=(4,))
    with pytest.raises(aggml.Unsupported):
        ops.set_1d(a, b, 0)
    i, j = new_tensor("i32", ne=(8,)), new_tensor("i32", ne=(4,))
    with pytest.raises(aggml.Unsupported):
        ops.acc(i, j, 0, 0, 0, 0)
    m = new_tensor("f32", ne=(4, 8))
    with pytest.raises(aggml.LayoutMismatch):
        ops.set_1d(ops.transpose(m), new_tensor("f32", ne=(2,)), 0)
    with pytest.raises(aggml.LayoutMismatch):
        ops.set_1d(new_tensor("f32", ne=(2,)), m, 0)
