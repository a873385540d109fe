"""A step of a decoder in fewer launches: ropes with rows of the cache, attention with its combine.

Here: results with the bits of single launches, nodes that must not be joined, counts of launches.
Not here: other chains (test_fusion_chain.py), attention of all shapes
(tests/devices/cuda/test_large.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels

import aggml
from aggml import Graph, Tensor, new_tensor, ops
from aggml.devices.cuda import plan as plans
from aggml.devices.cuda.plan import CUDAPlan
from aggml.errors import OutOfBounds

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake

    from aggml.devices.cuda import CUDADevice

Values = dict[Tensor, Any]
HEAD, HEADS, TOKENS, ROWS = 48, 3, 5, 9


kernels = pytest.fixture(all_kernels)


def leaf(values: Values, kind: str, *ne: int, name: str = "") -> Tensor:
    tensor = new_tensor(kind, ne=ne, name=name)
    x = np.random.default_rng(len(values)).normal(size=tensor.ne[::-1]).astype(np.float32)
    assert tensor.dtype.numpy is not None
    values[tensor] = x.astype(tensor.dtype.numpy).reshape(tensor.shape)
    return tensor


def step(how: str, cache: str, kind: str, tokens: int) -> tuple[list[Tensor], Values]:
    """Queries, keys and values of some tokens, and the nodes computed from them."""
    values: Values = {}
    x = leaf(values, "f32", 64, tokens)
    positions, ids = new_tensor("i32", ne=(tokens,)), new_tensor("i64", ne=(tokens,))
    values[positions] = np.arange(7, 7 + tokens, dtype=np.int32)
    values[ids] = np.array([2, 8, 4, 0, 5][:tokens], np.int64)
    width = HEAD * HEADS

    def product(other: Tensor) -> Tensor:
        return ops.mul_mat(leaf(values, kind, other.ne[0], width), other)

    def turned(rows: Tensor) -> Tensor:
        heads = ops.reshape_3d(rows, HEAD, HEADS, tokens)
        return ops.rope_ext(heads, positions, None, HEAD, mode="neox")

    def flat(heads: Tensor) -> Tensor:
        return ops.reshape_2d(heads, width, tokens)

    keys = leaf(values, cache, width, ROWS, name="keys")
    cached = leaf(values, cache, width, ROWS, name="values")
    q = turned(product(x))
    v_rows = {
        "values are queries": lambda: flat(q),
        "values of queries": lambda: product(flat(q)),
        "values and queries": lambda: ops.add(product(x), flat(q)),
    }.get(how, lambda: product(x))()
    k = ops.set_rows(keys, flat(turned(product(x))), ids)
    if how == "one cache":
        del values[cached]
        return [q, ops.set_rows(k, v_rows, ids)], values
    if how == "values first":
        return [q, v_rows, k, ops.set_rows(cached, v_rows, ids)], values
    return [q, k, ops.set_rows(cached, v_rows, ids)], values


async def told(
    device: CUDADevice, how: str, cache: str, kind: str, tokens: int
) -> tuple[list[np.ndarray], int]:
    """The results of a step after three runs, and how many launches it takes."""
    ends, values = step(how, cache, kind, tokens)
    graph = Graph(*ends)
    async with device.backend() as backend:
        await backend.prepare(graph)
        plan = backend.graph_plan(graph).plan
        for _ in range(2):
            await backend.run(graph, values, ends)
        found = await backend.run(graph, values, ends)
    assert isinstance(plan, CUDAPlan)
    return [np.asarray(one) for one in found], plan.launches


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("cache", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("how", ["as in a llama", "values first"])
async def test_three_launches_are_one(
    device: CUDADevice,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    cache: str,
    kind: str,
    tokens: int,
) -> None:
    together, fewer = await told(device, how, cache, kind, tokens)
    monkeypatch.setattr(plans, "fuse_rope_with_rows", lambda _: 0)
    alone, more = await told(device, how, cache, kind, tokens)
    assert fewer == more - 2
    for one, other in zip(together, alone, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "how", ["values are queries", "values of queries", "values and queries", "one cache"]
)
async def test_what_depends_on_each_other_stays_apart(
    device: CUDADevice, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    together, launches = await told(device, how, "f16", "f32", 5)
    monkeypatch.setattr(plans, "fuse_rope_with_rows", lambda _: 0)
    alone, same = await told(device, how, "f16", "f32", 5)
    assert launches == same
    for one, other in zip(together, alone, strict=True):
        assert one.tobytes() == other.tobytes()


async def test_a_row_that_is_not_there_stops_both_caches(device: CUDADevice) -> None:
    ends, values = step("as in a llama", "f16", "f32", 5)
    graph = Graph(*ends)
    (ids,) = [t for t in values if t.dtype.type_name == "i64"]
    values[ids] = np.array([2, 8, ROWS, 0, 5], np.int64)
    async with device.backend() as backend:
        await backend.prepare(graph)
        with pytest.raises(OutOfBounds, match=rf"\(set_rows\): index {ROWS} at position 2"):
            await backend.run(graph, values, ends)


# -- attention


def attention(values: Values, d: int, dv: int, heads: int, queries: int) -> Tensor:
    """Attention over so many keys that they are split over several blocks."""
    q = leaf(values, "f32", d, queries, heads)
    k, v = leaf(values, "f16", d, 700, 2), leaf(values, "f16", dv, 700, 2)
    mask = new_tensor("f16", ne=(700, queries))
    seen = np.random.default_rng(5).random((queries, 700)) < 0.7
    values[mask] = np.where(seen, 0, -np.inf).astype(np.float16)
    return ops.flash_attn_ext(q, k, v, mask, d**-0.5)


@pytest.mark.parametrize(
    ("d", "dv", "heads", "queries"), [(64, 64, 4, 1), (128, 128, 8, 3), (192, 160, 2, 20)]
)
async def test_attention_combines_its_parts_in_one_launch(
    device: CUDADevice, counts: Fake | None, d: int, dv: int, heads: int, queries: int
) -> None:
    """Also as a graph, and after another plan has used the counters by which blocks are counted."""
    values: Values = {}
    y = attention(values, d, dv, heads, queries)
    theirs: Values = {}
    added = ops.add(leaf(theirs, "f32", 5000, 8), leaf(theirs, "f32", 5000, 8))
    graph, other = Graph(y), ops.argsort(added)
    between = Graph(other)
    same: Values = {}
    again = attention(same, d, dv, heads, queries)
    on_cpu = Graph(again)
    async with aggml.get_device("CPU").backend(n_threads=1) as cpu:
        await cpu.prepare(on_cpu)
        (expected,) = await cpu.run(on_cpu, same, [again])
    async with device.backend() as backend:
        await backend.prepare(graph)
        await backend.prepare(between)
        assert backend.graph_plan(graph).plan.launches == 1  # type: ignore[attr-defined]
        for _ in range(4):
            if counts is not None:
                counts.reset_counts()
            (found,) = await backend.run(graph, values, [y])
            if counts is not None:
                assert counts.counter("kernels") == 1
            np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-3)
            await backend.run(between, theirs, [other])
