"""``a @ b`` and ``a.T`` mean what they mean in numpy.

Not here: the other operators (test_operators.py), `mul_mat` itself (test_recorded.py).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import aggml
from aggml import Graph, new_tensor, ops

Array = np.ndarray[Any, Any]


def leaf(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> aggml.Tensor:
    return new_tensor(dtype, ne=shape[::-1], name=name)


def computed(y: aggml.Tensor, values: dict[aggml.Tensor, Array]) -> Array:
    """Also of a result that is a view of what was computed."""
    graph = Graph(y)
    with aggml.get_device("CPU").backend(n_threads=1) as be:
        be.alloc_graph(graph)
        return be.run(graph, dict(values), y).get(60)


def draw(rng: random.Random, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(rng.randrange(2**30)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_K"])
@pytest.mark.parametrize("planes", [(), (3,), (2, 3)])
def test_x_at_w_transposed_is_one_mul_mat(dtype: str, planes: tuple[int, ...]) -> None:
    x, w = leaf((*planes, 4, 256)), leaf((5, 256), dtype, "w")
    for turned in (w.T, w.mT):
        y = x @ turned
        assert y.op == "mul_mat"
        assert y.src[0] is w
        assert y.src[1] is x
        assert y.shape == (*planes, 4, 5)
        assert [node.op for node in Graph(y).nodes] == ["mul_mat"]


def shapes_of(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that numpy can multiply."""
    m, k, n = (rng.choice([1, 2, 3, 5, 8]) for _ in range(3))
    planes = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
    left = [p if rng.random() < 0.7 else 1 for p in planes][rng.randint(0, len(planes)) :]
    right = [p if rng.random() < 0.7 else 1 for p in planes][rng.randint(0, len(planes)) :]
    a = (k,) if rng.random() < 0.15 else (*left, m, k)
    b = (k,) if rng.random() < 0.15 else (*right, k, n)
    return a, b


def stored(rng: random.Random, shape: tuple[int, ...], name: str) -> tuple[Any, Any, Array]:
    """A tensor of this shape: a leaf, or one that is a transposed or sliced view; and its value."""
    kind = rng.choice(["leaf", "transposed", "part"]) if len(shape) > 1 else "leaf"
    if kind == "transposed":
        axes = list(shape)
        of = leaf((*axes[:-2], axes[-1], axes[-2]), name=name)
        array = draw(rng, of.shape)
        return of.mT, of, array
    if kind == "part":
        axes = list(shape)
        of = leaf((*axes[:-1], axes[-1] + 3), name=name)
        array = draw(rng, of.shape)
        return of[..., 1:-2], of, array
    of = leaf(shape, name=name)
    return of, of, draw(rng, shape)


def value_of(tensor: aggml.Tensor, of: aggml.Tensor, array: Array) -> Array:
    if tensor is of:
        return array
    return array.swapaxes(-1, -2) if tensor.op == "transpose" else array[..., 1:-2]


@pytest.mark.parametrize("seed", range(40))
def test_products_of_random_shapes_are_numpys(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        shape_a, shape_b = shapes_of(rng)
        a, of_a, array_a = stored(rng, shape_a, "a")
        b, of_b, array_b = stored(rng, shape_b, "b")
        wanted = value_of(a, of_a, array_a) @ value_of(b, of_b, array_b)
        y = a @ b
        assert y.shape == (wanted.shape or (1,)), (shape_a, shape_b)
        found = computed(y, {of_a: array_a, of_b: array_b})
        assert found.shape == y.shape
        assert np.allclose(found.reshape(wanted.shape), wanted, atol=1e-4), (shape_a, shape_b)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 5, 3, 4)])
def test_transposes_are_numpys(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = leaf(shape)
    assert x.T.shape == array.T.shape
    assert np.array_equal(computed(ops.cont(x.T), {x: array}), array.T)
    if len(shape) > 1:
        assert np.array_equal(computed(ops.cont(x.mT), {x: array}), array.swapaxes(-1, -2))
        assert x.mT.view_src is x
    else:
        assert x.T is x
        with pytest.raises(aggml.LayoutMismatch, match=r"a\.mT"):
            _ = x.mT


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
def test_weights_of_other_types_on_either_side(dtype: str) -> None:
    rng = np.random.default_rng(5)
    m, n = 32, 64
    values = rng.standard_normal((m, n), np.float32)
    if dtype == "f16":
        blocks: Array = values.astype(np.float16)
        weights = blocks.astype(np.float32)
    else:
        blocks = aggml.quantize(values, dtype)
        weights = aggml.dequantize(blocks, dtype, ne=(n, m))
    w = leaf((m, n), dtype, "w")
    long, short = (rng.standard_normal((3, k), np.float32) for k in (n, m))
    one, row = leaf((3, n)), leaf((n,))
    cases = [
        (one @ w.T, one, long, long @ weights.T),
        (row @ w.T, row, long[0], long[0] @ weights.T),
        (w @ one.T, one, long, weights @ long.T),
        (w @ row, row, long[0], weights @ long[0]),
    ]
    other, column = leaf((3, m)), leaf((m, 3))
    cases += [
        (other @ w, other, short, short @ weights),
        (w.T @ column, column, short.T.copy(), weights.T @ short.T),
    ]
    for y, x, array, wanted in cases:
        found = computed(y, {w: blocks, x: array})
        assert found.shape == wanted.shape
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < 0.01, wanted.shape


def test_a_matrix_of_b_serves_several_of_a_as_in_ggml() -> None:
    rng = np.random.default_rng(6)
    a, b = leaf((6, 2, 4), name="a"), leaf((3, 5, 4), name="b")
    x, w = rng.standard_normal(a.shape, np.float32), rng.standard_normal(b.shape, np.float32)
    wanted = np.stack([x[i] @ w[i // 2].T for i in range(6)])
    assert np.allclose(computed(a @ b.mT, {a: x, b: w}), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (3, 4)),
        ((4,), (3, 4)),
        ((3, 4), (3,)),
        ((2, 3, 4), (3, 4, 5)),
        ((3, 3, 4), (2, 4, 5)),
    ],
)
def test_shapes_that_do_not_fit_are_named(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(aggml.LayoutMismatch) as caught:
        _ = leaf(a) @ leaf(b)
    text = str(caught.value)
    assert text.startswith("[a @ b]")
    assert str(a) in text
    assert str(b) in text


def test_blocks_cannot_be_turned_but_for_a_product() -> None:
    w = leaf((2, 4, 32), "q8_0", "w")
    with pytest.raises(aggml.LayoutMismatch, match="mT"):
        _ = w.T
    turned: Any = w.mT
    assert turned.shape == (2, 32, 4)
    assert turned.T is w
    with pytest.raises(aggml.InvalidHandle):
        ops.relu(turned)
    with pytest.raises(aggml.LayoutMismatch, match="quantized"):
        _ = w @ leaf((2, 32, 3))
    with pytest.raises(aggml.LayoutMismatch, match="both quantized"):
        _ = leaf((4, 32), "q8_0") @ leaf((5, 32), "q8_0").T
