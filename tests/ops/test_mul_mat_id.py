"""Products with the matrix of an expert: groups of all sizes, wrong indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import run, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def _floats(dtype: str, x: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """``x`` as elements of a type, and the numbers that these represent."""
    kind = aggml.DType.parse(dtype)
    if kind.is_quantized:
        blocks = aggml.quantize(x.reshape(-1, x.shape[-1]), kind)
        back = aggml.dequantize(blocks, kind, ne=x.shape[::-1])
        return blocks.reshape(*x.shape[:-1], -1), back.reshape(x.shape).astype(np.float64)
    elements = x.astype(kind.numpy)
    return elements, elements.astype(np.float64)


def _expected(
    w: NDArray[np.float64], x: NDArray[Any], ids: NDArray[np.int32]
) -> NDArray[np.float64]:
    """x [tokens, n, k], w [experts, m, k], ids [tokens, used]."""
    result = np.zeros((*ids.shape, w.shape[1]))
    for token, i in np.ndindex(ids.shape):
        if ids[token, i] >= 0:
            result[token, i] = w[ids[token, i]] @ x[token, i % x.shape[1]].astype(np.float64)
    return result


@pytest.mark.long(cases=9)
@pytest.mark.parametrize(
    "dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_K", "q6_K", "iq4_nl", "iq2_s"]
)
@pytest.mark.parametrize(
    ("k", "m", "experts", "used", "n", "tokens"),
    [
        (256, 33, 5, 4, 1, 1),  # some experts get a column, others none
        (512, 70, 3, 2, 2, 20),  # one node uses both kernels of dots and of tiles
        (1280, 48, 2, 2, 1, 300),  # several blocks of k, and more columns than fit into scratch
        (256, 700, 16, 3, 3, 9),
    ],
)
def test_any_number_of_columns_for_an_expert(
    dtype: str,
    k: int,
    m: int,
    experts: int,
    used: int,
    n: int,
    tokens: int,
    backend: aggml.Backend,
) -> None:
    rng = np.random.default_rng(k + tokens)
    w, exact = _floats(dtype, rng.normal(size=(experts, m, k)).astype(np.float32))
    x = rng.normal(size=(tokens, n, k)).astype(np.float32)
    index = np.minimum(rng.geometric(0.4, (tokens, used)) - 1, experts - 1).astype(np.int32)
    index[rng.random(index.shape) < 0.1] = -1
    index[0] = np.arange(used) % experts
    as_, b = new_tensor(dtype, ne=(k, m, experts)), new_tensor("f32", ne=(k, n, tokens))
    ids = new_tensor("i32", ne=(used, tokens))
    result = run(backend, ops.mul_mat_id(as_, b, ids), {as_: w, b: x, ids: index})
    expected = _expected(exact, x, index)
    assert not result.reshape(tokens, used, m)[index < 0].any()
    # For quantized types the kernels of dots may quantize the columns, as ggml does. All other
    # products are exact.
    bound = 1e-4 if aggml.DType.parse(dtype).is_quantized else 1e-10
    assert nmse(expected, result.astype(np.float64)) < bound


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("tokens", [3, 40])
def test_columns_of_the_type_that_rows_are_converted_to(
    dtype: str, tokens: int, any_backend: aggml.Backend
) -> None:
    rng = np.random.default_rng(tokens)
    w, exact_w = _floats(dtype, rng.normal(size=(2, 9, 64)).astype(np.float32))
    x, exact_x = _floats(dtype, rng.normal(size=(tokens, 1, 64)).astype(np.float32))
    index = rng.integers(0, 2, (tokens, 1), dtype=np.int32)
    as_, b = new_tensor(dtype, ne=(64, 9, 2)), new_tensor(dtype, ne=(64, 1, tokens))
    ids = new_tensor("i32", ne=(1, tokens))
    result = run(any_backend, ops.mul_mat_id(as_, b, ids), {as_: w, b: x, ids: index})
    expected = _expected(exact_w, exact_x, index)
    assert nmse(expected, result.reshape(expected.shape).astype(np.float64)) < 1e-6


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "q4_1"])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_threads_do_not_matter(dtype: str, tokens: int, by_threads: list[aggml.Backend]) -> None:
    rng = np.random.default_rng(tokens)
    w, _ = _floats(dtype, rng.normal(size=(4, 300, 512)).astype(np.float32))
    x = rng.normal(size=(tokens, 1, 512)).astype(np.float32)
    index = rng.integers(-1, 4, (tokens, 3), dtype=np.int32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        as_, b = new_tensor(dtype, ne=(512, 300, 4)), new_tensor("f32", ne=(512, 1, tokens))
        ids = new_tensor("i32", ne=(3, tokens))
        return ops.mul_mat_id(as_, b, ids), {as_: w, b: x, ids: index}

    same_for_any_threads(by_threads, build)


@pytest.mark.parametrize("tokens", [1, 300])
def test_a_wrong_index_fails_and_the_next_run_is_healthy(
    tokens: int, any_backend: aggml.Backend
) -> None:
    as_, b = new_tensor("f32", ne=(64, 8, 3)), new_tensor("f32", ne=(64, 1, tokens))
    ids = new_tensor("i32", ne=(1, tokens))
    y = ops.mul_mat_id(as_, b, ids)
    graph = aggml.Graph(y)
    memory = any_backend.alloc_graph(graph)
    index = np.zeros((tokens, 1), np.int32)
    index[-1] = 3
    data = {as_: np.ones((3, 8, 64), np.float32), b: np.ones((tokens, 1, 64), np.float32)}
    failed = any_backend.run(graph, data | {ids: index}, y)
    failed.wait(60)
    assert isinstance(failed.exception(), aggml.OutOfBounds)
    assert f"id 3 at [0, {tokens - 1}] is beyond the 3 experts" in str(failed.exception())
    index[-1] = 2
    good = any_backend.run(graph, data | {ids: index}, y)
    good.wait(60)
    assert (good.result() == 64).all()
    assert memory.size


@pytest.mark.parametrize(
    ("k", "m", "experts", "tokens"), [(4, 4, 0, 3), (4, 0, 2, 3), (4, 4, 2, 0)]
)
def test_empty_operands(
    k: int, m: int, experts: int, tokens: int, any_backend: aggml.Backend
) -> None:
    as_, b = new_tensor("f32", ne=(k, m, experts)), new_tensor("f32", ne=(k, 1, tokens))
    ids = new_tensor("i32", ne=(2, tokens))
    data = {
        as_: np.zeros((experts, m, k), np.float32),
        b: np.zeros((tokens, 1, k), np.float32),
        ids: np.full((tokens, 2), -1, np.int32),
    }
    result = run(any_backend, ops.mul_mat_id(as_, b, ids), data)
    assert result.size == m * 2 * tokens
    assert not result.any()


def test_as_is_a_name_for_as_() -> None:
    as_, b = new_tensor("f32", ne=(8, 4, 2)), new_tensor("f32", ne=(8, 1, 3))
    ids = new_tensor("i32", ne=(2, 3))
    operands = {"as": as_, "b": b, "ids": ids}
    for node in (ops.mul_mat_id(**operands), ops.mul_mat_id(as_, b=b, ids=ids)):
        assert node.src == (as_, b, ids)
        assert node.ne == (4, 2, 3, 1)
    with pytest.raises(TypeError, match="both 'as' and 'as_'"):
        ops.mul_mat_id(as_=as_, **operands)
