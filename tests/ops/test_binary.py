"""Sums, products, scaling: add_id, views with gaps, broadcast operands, blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray


def test_add_id_adds_the_rows_that_are_named(by_threads: list[aggml.Backend]) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 50, 4, 300)).astype(np.float32)
    y = rng.normal(size=(9, 300)).astype(np.float32)
    index = rng.integers(0, 9, (50, 6), dtype=np.int32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(300, 4, 50, 2)), new_tensor("f32", ne=(300, 9))
        ids = new_tensor("i32", ne=(6, 50))
        some = ops.view_2d(ids, 4, 50, ids.nb[1], 4)
        return ops.add_id(a, b, some), {a: x, b: y, ids: index}

    assert np.array_equal(same_for_any_threads(by_threads, build), x + y[index[:, 1:5]])


@pytest.mark.parametrize("n", [4, 40_000])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_add_id_finds_a_wrong_index_before_it_writes(
    n: int, wrong: int, any_backend: aggml.Backend
) -> None:
    a, b = new_tensor("f32", ne=(n, 2, 2), name="rows"), new_tensor("f32", ne=(n, 3))
    ids = new_tensor("i32", ne=(2, 2))
    graph = aggml.Graph(ops.add_id(a, b, ids))
    memory = any_backend.alloc_graph(graph)
    data = {a: np.ones((2, 2, n), "f4"), b: np.ones((3, n), "f4")}
    future = any_backend.run(graph, data | {ids: np.array([[0, 1], [2, wrong]], "i4")}, [])
    future.wait(60)
    assert isinstance(future.exception(), aggml.OutOfBounds)
    assert f"index {wrong} at [1, 1] is outside 0..2" in str(future.exception())
    assert memory.size


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_0", "q8_0"])
def test_add1_of_rows_apart(dtype: str, any_backend: aggml.Backend) -> None:
    x = np.random.default_rng(2).normal(size=(5, 128)).astype(np.float32)
    a, b, c = (
        new_tensor("f32", ne=(128, 5)),
        new_tensor("f32", ne=(1,)),
        new_tensor(dtype, (128, 5)),
    )
    kept = ops.cpy(a, c)
    part = ops.view_2d(kept, 64, 5, kept.nb[1], 0)
    node = ops.add1(part, b) if dtype == "f32" else ops.cast(ops.add1(part, b), "f32")
    result = run(any_backend, node, {a: x, b: np.array([0.75], "f4")})
    bound = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2, "q4_0": 0.5, "q8_0": 0.05}[dtype]
    np.testing.assert_allclose(result, x[:, :64] + 0.75, rtol=0, atol=bound)


@pytest.mark.parametrize("types", [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_b_may_repeat_and_be_permuted(
    name: str, types: tuple[str, str], by_threads: list[aggml.Backend]
) -> None:
    rng = np.random.default_rng(4)
    first, second = (aggml.DType.parse(kind).numpy for kind in types)
    x = rng.normal(size=(2, 6, 10, 24)).astype(first)
    y = (2 + rng.random(size=(12, 5, 3, 1))).astype(second)  # the storage has ne [1, 3, 5, 12]

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a = new_tensor(types[0], ne=(24, 10, 6, 2))
        b = new_tensor(types[1], ne=(1, 3, 5, 12))
        return getattr(ops, name)(a, ops.permute(b, 3, 2, 1, 0)), {a: x, b: y}

    repeated = np.tile(y.transpose(3, 2, 1, 0).astype(np.float32), (2, 2, 2, 2))
    wide = x.astype(np.float32)
    expected = {
        "add": wide + repeated,
        "sub": wide - repeated,
        "mul": wide * repeated,
        "div": wide / repeated,
    }[name].astype(first)
    assert np.array_equal(same_for_any_threads(by_threads, build), expected)


@pytest.mark.parametrize("ne", [(1, 2, 1), (65, 3, 2), (70, 131, 3), (300, 64, 1)])
def test_b_may_be_transposed(ne: tuple[int, int, int], by_threads: list[aggml.Backend]) -> None:
    rng = np.random.default_rng(5)
    n0, n1, n2 = ne
    x = rng.normal(size=(n2, n1, n0)).astype(np.float32)
    y = rng.normal(size=(n2, n0, n1)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(n0, n1, n2)), new_tensor("f32", ne=(n1, n0, n2))
        return ops.sub(a, ops.transpose(b)), {a: x, b: y}

    assert np.array_equal(same_for_any_threads(by_threads, build), x - y.transpose(0, 2, 1))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_K", "iq4_xs"])
def test_add_cast_of_blocks_to_other_types(kind: str, any_backend: aggml.Backend) -> None:
    x, y = np.random.default_rng(5).normal(size=(2, 3, 512)).astype(np.float32)
    blocks = aggml.quantize(x, "q5_0")
    a, b = new_tensor("q5_0", ne=(512, 3)), new_tensor("f32", ne=(512, 3))
    found = run(any_backend, ops.add_cast(a, b, kind), {a: blocks, b: y})
    total = aggml.dequantize(blocks, "q5_0", ne=(512, 3)) + y
    dtype = aggml.DType.parse(kind)
    if dtype.is_quantized:
        c = new_tensor("f32", ne=(512, 3))
        assert np.array_equal(found, run(any_backend, ops.cast(c, kind), {c: total}))
    else:
        assert np.array_equal(found, total.astype(dtype.numpy))


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_a_result_that_takes_half_an_l3(op: str, any_backend: aggml.Backend) -> None:
    n = (4 << 20) + 5
    x, y = np.random.default_rng(7).normal(size=(2, n)).astype(np.float32)
    a, b = new_tensor("f32", ne=(n,)), new_tensor("f32", ne=(n,))
    numpy = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
    found = run(any_backend, getattr(ops, op)(a, b), {a: x, b: y})
    assert np.array_equal(found.ravel(), numpy(x, y))
