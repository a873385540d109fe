"""Every quantized type as an operand, beyond the recorded shapes, against numpy on its values.

Here: views with gaps, broadcast, all types that may be a target. Not here: the conversions
themselves (test_types.py), recorded calls (test_recorded.py).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import compute, floats

import aggml
from aggml import DType, new_tensor, ops
from aggml.ops._common import READ_ONLY

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTIZED = [kind for kind in DType if kind.is_quantized]
TARGETS = [kind for kind in QUANTIZED if kind not in READ_ONLY]
# The types of mul_mat's first operand. The two excluded ones are only for second operands.
WEIGHTS = [kind for kind in QUANTIZED if kind not in {DType.Q8_1, DType.Q8_K}]
name_of = str


@functools.cache  # cached: the searches of iq2 and iq3 take 1 us or more per element
def blocks_of(kind: DType, *shape: int, seed: int = 1) -> NDArray[np.uint8]:
    x = floats(*shape, seed=seed)
    weights = np.ones(shape[-1], np.float32)
    return aggml.quantize(x, kind, weights).reshape(*shape[:-1], -1)


def values_of(blocks: NDArray[np.uint8], kind: DType, columns: int) -> NDArray[np.float32]:
    return aggml.dequantize(blocks, kind, ne=(columns, *blocks.shape[-2::-1]))


def stored(backend: aggml.Backend, x: NDArray[Any], kind: DType) -> NDArray[np.uint8]:
    """Rows as an op writes them; for iq4_nl they differ from those of `aggml.quantize`."""
    a = new_tensor("f32", ne=x.shape[::-1])
    return compute(backend, ops.cast(a, kind), {a: x}).reshape(-1)


# -- mul_mat


@pytest.mark.parametrize("n", [1, 3, 17, 50])
@pytest.mark.parametrize("kind", WEIGHTS, ids=name_of)
def test_mul_mat(kind: DType, n: int, backend: aggml.Backend) -> None:
    k = math.lcm(kind.blck_size, 64) * 5  # more than one block of K, and not a multiple of it
    blocks = blocks_of(kind, 2, 37, k)
    a, b = new_tensor(kind, ne=(k, 37, 2)), new_tensor("f32", ne=(k, n, 4))
    x = floats(4, n, k, seed=2)
    found = compute(backend, ops.mul_mat(a, b), {a: blocks, b: x})[0]
    w = values_of(blocks, kind, k).astype(np.float64).repeat(2, axis=0)
    assert nmse(x @ w.transpose(0, 2, 1), found.astype(np.float64)) <= 5e-4


@pytest.mark.parametrize("kind", WEIGHTS, ids=name_of)
def test_mul_mat_of_rows_with_gaps(kind: DType, backend: aggml.Backend) -> None:
    """The weights are every second row, without the first block of each."""
    k = 256 * 3
    blocks = blocks_of(kind, 10, k)
    a, b = new_tensor(kind, ne=(k, 10)), new_tensor("f32", ne=(k - 256, 6))
    step = kind.row_size(k)
    part = ops.view_2d(a, k - 256, 5, 2 * step, kind.row_size(256))
    x = floats(6, k - 256, seed=2)
    found = compute(backend, ops.mul_mat(part, b), {a: blocks, b: x})[0, 0]
    w = values_of(blocks, kind, k)[::2, 256:].astype(np.float64)
    assert nmse(x @ w.T, found.astype(np.float64)) <= 5e-4


@pytest.mark.parametrize("n", [1, 5, 20])
@pytest.mark.parametrize("kind", WEIGHTS, ids=name_of)
def test_mul_mat_of_two_quantized(kind: DType, n: int, backend: aggml.Backend) -> None:
    """The second operand may have the type to which columns are converted for the first one."""
    k = 512
    pairs = {"q4_1": DType.Q8_1, "q5_1": DType.Q8_1}
    other = pairs.get(str(kind), DType.Q8_K if kind.blck_size == 256 else DType.Q8_0)
    blocks, columns = blocks_of(kind, 9, k), blocks_of(other, n, k, seed=2)
    a, b = new_tensor(kind, ne=(k, 9)), new_tensor(other, ne=(k, n))
    found = compute(backend, ops.mul_mat(a, b), {a: blocks, b: columns})[0, 0]
    w, x = values_of(blocks, kind, k), values_of(columns, other, k)
    assert nmse(x.astype(np.float64) @ w.T, found.astype(np.float64)) <= 1e-5


# -- rows, copies


@pytest.mark.parametrize("kind", QUANTIZED, ids=name_of)
def test_get_rows(kind: DType, backend: aggml.Backend) -> None:
    k = 256 * 3
    blocks = blocks_of(kind, 2, 10, k)
    a, ids = new_tensor(kind, ne=(k, 10, 2)), new_tensor("i32", ne=(3, 2))
    part = ops.view_3d(
        a, k - 256, 5, 2, 2 * kind.row_size(k), kind.row_size(k) * 10, kind.row_size(256)
    )
    picked = np.array([[4, 0, 4], [1, 2, 3]], np.int32)
    found = compute(backend, ops.get_rows(part, ids), {a: blocks, ids: picked})[0]
    rows = values_of(blocks, kind, k)[:, ::2, 256:]
    assert np.array_equal(found, np.stack([rows[i][picked[i]] for i in range(2)]))


@pytest.mark.parametrize("source", [DType.F32, DType.F16], ids=name_of)
@pytest.mark.parametrize("kind", TARGETS, ids=name_of)
def test_set_rows(kind: DType, source: DType, backend: aggml.Backend) -> None:
    k = 1280
    before = blocks_of(kind, 6, k)
    a, b = new_tensor(kind, ne=(k, 6)), new_tensor(source, ne=(k, 2))
    ids = new_tensor("i64", ne=(2,))
    x = floats(2, k, seed=3).astype(source.numpy)
    values = {a: before, b: x, ids: np.array([4, 1], np.int64)}
    found = compute(backend, ops.set_rows(a, b, ids), values)[0, 0]
    expected = before.copy()
    expected[[4, 1]] = stored(backend, x.astype(np.float32), kind).reshape(2, -1)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", QUANTIZED, ids=name_of)
def test_permuted_rows_to_f32_and_as_they_are(kind: DType, backend: aggml.Backend) -> None:
    k = 256
    blocks = blocks_of(kind, 3, 4, k)
    a = new_tensor(kind, ne=(k, 4, 3))
    turned = ops.permute(a, 0, 2, 1, 3)
    found = compute(backend, ops.cont(turned), {a: blocks})[0]
    assert np.array_equal(found, blocks.transpose(1, 0, 2))
    a = new_tensor(kind, ne=(k, 4, 3))
    found = compute(backend, ops.cast(ops.permute(a, 0, 2, 1, 3), "f32"), {a: blocks})[0]
    assert np.array_equal(found, values_of(blocks, kind, k).transpose(1, 0, 2))


@pytest.mark.parametrize("kind", TARGETS, ids=name_of)
def test_transposed_floats_to_blocks(kind: DType, backend: aggml.Backend) -> None:
    x = floats(256, 5, seed=4)
    a = new_tensor("f32", ne=(5, 256))
    found = compute(backend, ops.cast(ops.transpose(a), kind), {a: x})[0, 0]
    assert np.array_equal(found.reshape(-1), stored(backend, np.ascontiguousarray(x.T), kind))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("kind", QUANTIZED, ids=name_of)
def test_concat(kind: DType, dim: int, backend: aggml.Backend) -> None:
    first, second = [512, 3, 2], [512, 3, 2]
    second[dim] = 256 if dim == 0 else 5
    x, y = blocks_of(kind, *first[::-1]), blocks_of(kind, *second[::-1], seed=2)
    a, b = new_tensor(kind, ne=first), new_tensor(kind, ne=second)
    found = compute(backend, ops.concat(a, b, dim), {a: x, b: y})[0]
    assert np.array_equal(found, np.concatenate([x, y], axis=2 - dim))


@pytest.mark.parametrize("kind", TARGETS, ids=name_of)
def test_add(kind: DType, backend: aggml.Backend) -> None:
    k = 768
    blocks, x = blocks_of(kind, 3, k), floats(3, k, seed=5)
    a, b = new_tensor(kind, ne=(k, 3)), new_tensor("f32", ne=(k, 3))
    found = compute(backend, ops.add(a, b), {a: blocks, b: x}).reshape(-1)
    assert np.array_equal(found, stored(backend, values_of(blocks, kind, k) + x, kind))


@pytest.mark.parametrize("kind", QUANTIZED, ids=name_of)
def test_add_into_f32(kind: DType, backend: aggml.Backend) -> None:
    blocks, x = blocks_of(kind, 3, 768), floats(3, 768, seed=5)
    a, b = new_tensor(kind, ne=(768, 3)), new_tensor("f32", ne=(768, 3))
    found = compute(backend, ops.add_cast(a, b, "f32"), {a: blocks, b: x})[0, 0]
    assert np.array_equal(found, values_of(blocks, kind, 768) + x)


@pytest.mark.parametrize("kind", sorted(READ_ONLY, key=str), ids=name_of)
def test_what_is_no_target_is_refused(kind: DType) -> None:
    a, b = new_tensor(kind, ne=(256, 3)), new_tensor("f32", ne=(256, 3))
    with pytest.raises(aggml.Unsupported):
        ops.cpy(b, a)
    with pytest.raises(aggml.Unsupported):
        ops.set_rows(a, b, new_tensor("i64", ne=(3,)))
    with pytest.raises(aggml.Unsupported):
        ops.add(a, b)


# -- attention


@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("kind", WEIGHTS, ids=name_of)
def test_flash_attention(kind: DType, n: int, backend: aggml.Backend) -> None:
    """Keys of the type, with values of f16 and of the type."""
    d, n_keys, heads = 256, 40, 2
    keys = blocks_of(kind, heads, n_keys, d, seed=6)
    x, v = floats(heads, n, d, seed=7), floats(heads, n_keys, d, seed=8).astype(np.float16)
    own = blocks_of(kind, heads, n_keys, d, seed=9)
    both: list[tuple[DType, NDArray[Any]]] = [(DType.F16, v), (kind, own)]
    for value_kind, held in both:
        q, k = new_tensor("f32", ne=(d, n, heads)), new_tensor(kind, ne=(d, n_keys, heads))
        values = new_tensor(value_kind, ne=(d, n_keys, heads))
        node = ops.flash_attn_ext(q, k, values, None, scale=0.06, max_bias=0.0, logit_softcap=0)
        found = compute(backend, node, {q: x, k: keys, values: held})[0]
        logits = 0.06 * x @ values_of(keys, kind, d).astype(np.float64).transpose(0, 2, 1)
        w = held.astype(np.float64) if value_kind is DType.F16 else values_of(held, kind, d)
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        expected = (p / p.sum(axis=-1, keepdims=True)) @ w
        assert nmse(expected.transpose(1, 0, 2), found.astype(np.float64)) <= 5e-4
