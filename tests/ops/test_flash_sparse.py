"""flash_attn_ext with a promise that a query sees few keys, against numpy and against no promise.

Not here: few rows of any mask (test_flash_decode.py), rows that fill tiles (test_flash_tiles.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import compute, floats, same_for_any_threads
from ops.test_flash_tiles import stored

import aggml
from aggml import Graph, InvalidArgument, InvalidHandle, InvalidState, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

BOUND = 1e-11
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q5_0")


class Shape(NamedTuple):
    """Extents of q, k, v and the mask."""

    heads: int
    kv_heads: int
    d: int
    dv: int
    keys: int
    queries: int
    batch: int = 1
    planes: int = 1  # of the mask, for heads
    shown: int = 5  # keys of a query


SHAPES = [
    Shape(8, 2, 64, 64, 700, 1),
    Shape(8, 2, 64, 32, 700, 1, shown=200),  # several blocks
    Shape(6, 6, 32, 32, 130, 3, batch=2),
    Shape(4, 2, 96, 64, 90, 1, planes=4),  # each head has a mask of its own
    Shape(4, 1, 64, 64, 320, 40, shown=19),
    Shape(80, 2, 32, 32, 200, 1, batch=2),
    Shape(2, 1, 64, 64, 3, 1, shown=1),
]


def masked(shape: Shape, batch: int) -> NDArray[np.float16]:
    """For each row some keys at random places, with numbers; the second row shows no key."""
    rng = np.random.default_rng(shape.keys)
    mask = np.full((batch, shape.planes, shape.queries, shape.keys), -np.inf, np.float16)
    for row in mask.reshape(-1, shape.keys):
        row[rng.permutation(shape.keys)[: shape.shown]] = rng.normal(size=shape.shown)
    mask.reshape(-1, shape.keys)[1:2] = -np.inf
    return mask


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    mask: NDArray[Any],
    sinks: NDArray[Any],
    softcap: float,
    max_bias: float,
) -> NDArray[np.float64]:
    """[batch, queries, heads, dv] in double; zeros where the mask shows nothing."""
    heads, group, planes = q.shape[1], q.shape[1] // k.shape[1], heads_of(mask, q.shape[1])
    slopes = 2.0 ** (-max_bias * (1 + np.arange(heads)) / heads)
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    s = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / np.sqrt(q.shape[-1])
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s += slopes[:, None, None] * planes
    s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (*s.shape[:3], 1))], 3)
    p = np.exp(s - s.max(3, keepdims=True))
    p = p[..., :-1] / p.sum(3, keepdims=True)
    found: NDArray[np.float64] = np.einsum("bhqk,bhke->bqhe", p, v)
    return found


def heads_of(mask: NDArray[Any], heads: int) -> NDArray[np.float64]:
    """The mask of each head: head h has plane ``h % planes``."""
    return mask.astype(np.float64)[:, np.arange(heads) % mask.shape[1]]


def sparse(
    dtype: str, s: Shape, promise: int, *, softcap: float = 0.0, max_bias: float = 0.0
) -> tuple[Tensor, Mapping[Tensor, NDArray[Any]], NDArray[Any]]:
    """The node, its inputs, numpy's result."""
    q = floats(s.batch, s.heads, s.queries, s.d, seed=1)
    k, read_k = stored(floats(s.batch, s.kv_heads, s.keys, s.d, seed=2), dtype)
    v, read_v = stored(floats(s.batch, s.kv_heads, s.keys, s.dv, seed=3), dtype)
    mask, sinks = masked(s, s.batch), floats(s.heads, seed=4)
    tensors = [
        new_tensor("f32", ne=(s.d, s.queries, s.heads, s.batch)),
        new_tensor(dtype, ne=(s.d, s.keys, s.kv_heads, s.batch)),
        new_tensor(dtype, ne=(s.dv, s.keys, s.kv_heads, s.batch)),
        new_tensor("f16", ne=(s.keys, s.queries, s.planes, s.batch)),
        new_tensor("f32", ne=(s.heads,)),
    ]
    scale = float(1 / np.sqrt(s.d))
    first, second, third, fourth, _ = tensors
    node = ops.flash_attn_ext(first, second, third, fourth, scale, max_bias, softcap)
    ops.flash_attn_ext_add_sinks(node, tensors[4])
    assert ops.flash_attn_ext_set_n_kv_max(node, promise) is node
    expected = attention(q, read_k, read_v, mask, sinks, softcap, max_bias)
    return node, dict(zip(tensors, (q, k, v, mask, sinks), strict=True)), expected


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_few_keys_against_numpy(dtype: str, shape: Shape, backend: aggml.Backend) -> None:
    node, tensors, expected = sparse(dtype, shape, shape.shown)
    assert nmse(expected, compute(backend, node, tensors).astype(np.float64)) < BOUND


@pytest.mark.parametrize("shape", [SHAPES[i] for i in (0, 1, 3, 4)], ids=str)
def test_slopes_and_soft_caps(shape: Shape, backend: aggml.Backend) -> None:
    node, tensors, expected = sparse("f16", shape, shape.shown, softcap=5.0, max_bias=8.0)
    assert nmse(expected, compute(backend, node, tensors).astype(np.float64)) < BOUND


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=str)
def test_the_mask_decides_even_if_the_promise_is_broken(
    shape: Shape, by_threads: list[aggml.Backend]
) -> None:
    """As on the CPU of ggml, which does not read the promise."""
    for promise in (0, 1, 3, 1 << 30):
        node, tensors, expected = sparse("f32", shape, promise)
        del node

        def build(promise: int = promise) -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
            return sparse("f32", shape, promise)[:2]

        found = same_for_any_threads(by_threads, build).reshape(expected.shape)
        assert nmse(expected, found.astype(np.float64)) < BOUND
        assert tensors


def test_a_hidden_key_is_not_read_and_a_shown_one_is(any_backend: aggml.Backend) -> None:
    node, tensors, _ = sparse("f32", SHAPES[0], SHAPES[0].shown)
    _, _, v, mask, _ = tensors
    shows = np.isfinite(tensors[mask].reshape(-1))
    values = np.array(tensors[v])
    values[0, 0, np.flatnonzero(shows)[0], 7] = np.nan
    values[0, 1, np.flatnonzero(~shows)[0], 9] = np.nan
    found = compute(any_backend, node, {**tensors, v: values}).reshape(8, 64)
    assert {tuple(at) for at in np.argwhere(np.isnan(found))} == {(head, 7) for head in range(4)}


def test_a_promise_is_a_number_of_keys() -> None:
    q = new_tensor("f32", ne=(8, 4, 2))
    node = ops.flash_attn_ext(q, q, q)
    for wrong in (-1, 1 << 31):
        with pytest.raises(InvalidArgument, match=r"^\[flash_attn_ext_set_n_kv_max\] "):
            ops.flash_attn_ext_set_n_kv_max(node, wrong)
    with pytest.raises(InvalidHandle, match="integers"):
        ops.flash_attn_ext_set_n_kv_max(node, 1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="comes from"):
        ops.flash_attn_ext_set_n_kv_max(q, 1)
    ops.flash_attn_ext_set_n_kv_max(node, 2)  # without a mask it means nothing
    Graph(node)
    with pytest.raises(InvalidState, match="part of a Graph"):
        ops.flash_attn_ext_set_n_kv_max(node, 0)
