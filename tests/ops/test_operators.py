"""Operators and indices of tensors: the nodes that they make, and what they refuse by name.

Not here: the builders that they stand for (test_recorded.py).
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]


def placed(be: aggml.Backend, x: Array, name: str = "x") -> aggml.Tensor:
    tensor = new_tensor(x.dtype, ne=x.shape[::-1], name=name)
    be.alloc([tensor])
    be.set(tensor, x, copy=True)
    return tensor


async def value(be: aggml.Backend, y: aggml.Tensor) -> Array:
    graph = Graph(y)
    be.alloc_graph(graph)
    return await be.run(graph, {}, y)


@pytest.mark.parametrize(
    ("python", "builder"),
    [
        (lambda a, b: a + b, ops.add),
        (lambda a, b: a - b, ops.sub),
        (lambda a, b: a * b, ops.mul),
        (lambda a, b: a / b, ops.div),
        (lambda a, b: b @ a.T, ops.mul_mat),
        (lambda a, b: b @ a.mT, ops.mul_mat),
        (lambda a, _: a.T, lambda a, _: ops.transpose(a)),
        (lambda a, _: -a, lambda a, _: ops.neg(a)),
        (lambda a, _: abs(a), lambda a, _: ops.abs(a)),
        (lambda a, _: round(a), lambda a, _: ops.round(a)),
        (lambda a, _: math.floor(a), lambda a, _: ops.floor(a)),
        (lambda a, _: math.ceil(a), lambda a, _: ops.ceil(a)),
        (lambda a, _: math.trunc(a), lambda a, _: ops.trunc(a)),
        (lambda a, _: a**2, lambda a, _: ops.sqr(a)),
        (lambda a, _: a**0.5, lambda a, _: ops.sqrt(a)),
        (lambda a, _: a * 3, lambda a, _: ops.scale(a, 3)),
        (lambda a, _: 3 * a, lambda a, _: ops.scale(a, 3)),
        (lambda a, _: a / 4, lambda a, _: ops.scale(a, 0.25)),
        (lambda a, _: a + 2, lambda a, _: ops.scale_bias(a, 1, 2)),
        (lambda a, _: 2 + a, lambda a, _: ops.scale_bias(a, 1, 2)),
        (lambda a, _: a - 2, lambda a, _: ops.scale_bias(a, 1, -2)),
        (lambda a, _: 2 - a, lambda a, _: ops.scale_bias(a, -1, 2)),
        (lambda a, _: a * np.float32(3), lambda a, _: ops.scale(a, 3)),
    ],
)
def test_an_operator_is_its_builder(
    python: Callable[..., aggml.Tensor], builder: Callable[..., aggml.Tensor]
) -> None:
    a, b = (new_tensor("f32", ne=(4, 3), name=name) for name in "ab")
    one, other = python(a, b), builder(a, b)
    assert (one.op, one.op_params, one.ne, one.nb) == (
        other.op, other.op_params, other.ne, other.nb,
    )  # fmt: skip
    assert one.src == other.src


async def test_numbers_come_out_as_in_numpy(cpu: aggml.Backend, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 3, 4), np.float32)
    x, y = placed(cpu, a), placed(cpu, b, "y")
    assert np.allclose(
        await value(cpu, -(x + y) * y / (abs(x) + 1) - 2), -(a + b) * b / (abs(a) + 1) - 2
    )


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda a: a + np.ones(4, np.float32), "ops.add.*Backend.set"),
        (lambda a: np.ones(4, np.float32) + a, "ops.add.*Backend.set"),
        (lambda a: a * "x", "ops.mul"),
        (lambda a: a @ 3, "ops.scale"),
        (lambda a: np.ones((4, 4), np.float32) @ a, "Backend.set"),
        (lambda a: 1 / a, "ops.div"),
        (lambda a: a**3, "ops.exp"),
        (lambda a: a[new_tensor("i32", ne=1)], "ops.get_rows"),
        (lambda a: a[[0, 1]], "ops.get_rows"),
        (lambda a: a[np.array([0])], "ops.get_rows"),
        (lambda a: a[None], "ops.reshape"),
        (lambda a: a[True], "ops.reshape"),
        (lambda a: a[0.5], "ops.get_rows"),
        (lambda a: a[::0], "zero"),
        (lambda a: a["x"], "ops.get_rows"),
        (lambda a: a < a, "ops.step"),
        (lambda a: a <= 1, "ops.step"),
        (lambda a: a > np.ones(4, np.float32), "ops.step.*backend.get"),
        (lambda a: a >= 0, "ops.step"),
        (lambda a: a // 2, "ops.floor"),
        (lambda a: 2 // a, "ops.floor"),
        (lambda a: a % a, "ops.floor"),
        (lambda a: 2 % a, "ops.floor"),
        (lambda a: divmod(a, a), "ops.div"),
        (lambda a: divmod(1, a), "ops.div"),
        (lambda a: 2**a, "ops.exp"),
        (lambda a: a & a, "ops.mul"),
        (lambda a: True | a, "ops.step"),
        (lambda a: a ^ a, "ops.step"),
        (lambda a: ~a, "ops.step"),
        (lambda a: a << 1, "ops.scale"),
        (lambda a: 1 >> a, "ops.scale"),
        (lambda a: +a, "ops.dup"),
        (lambda a: round(a, 2), "ops.round"),
        (lambda a: operator.setitem(a, 0, 1), "ops.set_1d.*Backend.set"),
        (lambda a: operator.delitem(a, 0), "extents"),
        (float, "backend.get"),
        (int, "backend.get"),
        (complex, "backend.get"),
    ],
)
def test_what_is_refused_names_the_op(call: Callable[[Any], object], names: str) -> None:
    with pytest.raises(aggml.InvalidHandle, match=names):
        call(new_tensor("f32", ne=(4, 4), name="a"))


def test_other_misuse() -> None:
    a = new_tensor("f32", ne=(4, 3), name="a")
    for wrong in (3, -4, (0, 4), (0, 0, 0), (..., ...)):
        with pytest.raises(aggml.OutOfBounds):
            a[wrong]
    with pytest.raises(aggml.InvalidArgument, match=r"ops\.get_rows"):
        a[::-1]
    with pytest.raises(aggml.InvalidArgument, match=r"ops\.div"):
        _ = a / 0
    with pytest.raises(aggml.LayoutMismatch, match=r"\[add\]"):
        _ = a + new_tensor("f32", ne=(5, 3))
    with pytest.raises(TypeError):
        list(a)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        3 in a  # type: ignore[misc]  # noqa: B015


def test_every_operator_of_python_is_built_or_refused_by_name() -> None:
    """All operators of int must exist; truth and hash are those of any object."""
    ignored = {"__bool__", "__index__", "__getnewargs__", "__getformat__", *dir(object)}
    wanted = {name for name in dir(int) if name.startswith("__")} - ignored
    assert wanted - set(dir(aggml.Tensor)) == set()


def test_equality_is_identity() -> None:
    a, b = (new_tensor("f32", ne=4, name="x") for _ in range(2))
    assert a == a
    assert a != b
    assert len({a, b}) == 2
    assert (a == 3) is False  # type: ignore[comparison-overlap]


INDICES: list[Any] = [0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(2, 0)]


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5), (2, 3, 4, 5)])
async def test_indices_are_numpys(cpu: aggml.Backend, shape: tuple[int, ...]) -> None:
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = placed(cpu, a)
    chosen: list[Any] = list(itertools.product(INDICES, repeat=len(shape)))
    for index in [
        *chosen[:: max(1, len(chosen) // 60)],
        (),
        ...,
        (..., 1),
        (0, ...),
        (..., slice(1, 3)),
    ]:
        view, wanted = x[index], a[index]
        assert view.view_src is x
        assert view.shape == (wanted.shape or (1,)), index
        assert np.array_equal((await cpu.get(view)).reshape(wanted.shape), wanted), index


async def test_views_are_read_and_written_by_graphs(cpu: aggml.Backend) -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = placed(cpu, a)
    assert np.array_equal(await value(cpu, ops.cont(x[:, 1])), a[:, 1])
    assert np.array_equal(await value(cpu, x[1:3] + x[0]), a[1:3] + a[0])
    assert np.array_equal(await value(cpu, ops.cont(x[1:, ::2][:, 1:])), a[1:, ::2][:, 1:])
    await cpu.set(x[:, 2], np.zeros(4, np.float32))
    a[:, 2] = 0
    assert np.array_equal(await cpu.get(x), a)


async def test_rows_of_blocks(cpu: aggml.Backend, rng: np.random.Generator) -> None:
    a = rng.standard_normal((4, 64), np.float32)
    w = new_tensor("q8_0", ne=(64, 4), name="w")
    cpu.alloc([w])
    blocks = aggml.quantize(a, "q8_0")
    await cpu.set(w, blocks)
    assert np.array_equal(await cpu.get(w[1:3, 32:]), blocks[1:3, 34:])
    for wrong in ((0, 1), (0, slice(1, None)), (0, slice(None, None, 2))):
        with pytest.raises(aggml.InvalidArgument, match=r"ops\.get_rows"):
            w[wrong]
