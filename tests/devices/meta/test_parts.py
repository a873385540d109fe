"""Where tensors are placed: bytes of divided tensors, views of them, ops on them.

Here: ranges of bytes compared with a plain array, many graphs compared with the CPU, refusals.
Not here: models (test_models.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.meta import MetaDevice, SplitAxis, SplitState
from aggml.devices.meta.memory import shard_of
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aggml import Tensor

UP, DOWN, QUERY = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.0.attn_q.weight"


#: The shares of the devices; 0 for all: equal ones.
DEVICES = [[0, 0], [0, 0, 0, 0], [3, 1], [1, 2, 5]]


@pytest.fixture(params=DEVICES, ids=str)
def be(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    shares: list[int] = request.param
    sims = [SimDevice(f"S{i}") for i in range(len(shares))]
    given = shares if any(shares) else None
    with MetaDevice(sims, shares=given, split=of_fused(len(sims))).backend() as backend:
        yield backend


def of_fused(n: int) -> Callable[[Tensor], SplitState | None]:
    """Q, K and V lie one behind the other, so that each of n devices has a part of each of them."""

    def state(tensor: Tensor) -> SplitState | None:
        if tensor.name != "fused.weight":  # 64 rows of Q, 32 of K, 32 of V; heads of 8
            return None
        heads = [1] * (n - 1) + [4 - (n - 1)]
        return SplitState.of(1, [[16 * h for h in heads], [8 * h for h in heads]], [1, 2])

    return state


#: (name, type, ne, the axis along which it is divided between 2 devices)
LEAFS = [
    (UP, "f32", (64, 24), 1),
    (DOWN, "f32", (64, 24), 0),
    (DOWN, "q8_0", (256, 24), 0),
    (DOWN, "q4_K", (256, 24), 1),  # a block of 256 cannot be divided, so the rows are
    (DOWN, "bf16", (64, 24), 0),
    ("blk.0.ffn_up_exps.weight", "f16", (32, 8, 3), 1),
    ("blk.0.ffn_down_exps.weight", "q8_0", (128, 8, 3), 0),
    ("token_embd.weight", "f16", (64, 10), 0),
    ("cache_k.7", "f16", (64, 10), 0),
    ("blk.0.attn_q.bias", "f32", (64,), 0),
    ("anything.weight", "f32", (64, 24), SplitAxis.MIRRORED),
    (UP, "f32", (64, 25), 0),
    (UP, "f32", (63, 25), SplitAxis.MIRRORED),
]


@pytest.mark.long(cases=13)
@pytest.mark.parametrize(("name", "kind", "ne", "axis"), LEAFS)
async def test_bytes_come_back(
    be: aggml.Backend, name: str, kind: str, ne: tuple[int, ...], axis: int
) -> None:
    t = new_tensor(kind, ne=ne, name=name)
    be.alloc([t])
    shard = shard_of(t)
    n = len(shard.each)
    equal = len({part.ne for part in shard.each}) == 1
    assert n != 2 or not equal or shard.state.axis == axis
    if shard.state.is_divided:
        assert sum(part.nbytes for part in shard.each) == t.nbytes
    random = np.random.default_rng(1)
    mirror = random.integers(0, 256, t.nbytes, np.uint8)
    await be.set(t, mirror, offset=0)
    for _ in range(30):
        start = int(random.integers(0, t.nbytes))
        size = int(random.integers(0, t.nbytes - start + 1))
        piece = random.integers(0, 256, size, np.uint8)
        await be.set(t, piece, offset=start)
        mirror[start : start + size] = piece
        start = int(random.integers(0, t.nbytes))
        size = int(random.integers(1, t.nbytes - start + 1))
        got = await be.get(t, offset=start, size=size)
        assert (got == mirror[start : start + size]).all()
    await be.memset(t, 7, offset=t.nbytes // 3, size=t.nbytes // 2)
    mirror[t.nbytes // 3 : t.nbytes // 3 + t.nbytes // 2] = 7
    assert ((await be.get(t, offset=0)) == mirror).all()
    whole = await be.get(t)
    assert whole.tobytes() == mirror.tobytes()
    await be.set(t, whole)
    assert (await be.get(t, offset=0)).tobytes() == mirror.tobytes()


def leaf(values: dict[Tensor, Any], name: str, *ne: int, kind: str = "f32") -> Tensor:
    tensor = new_tensor(kind, ne=ne, name=name)
    random = np.random.default_rng(len(values))
    x = random.normal(size=tensor.ne[::-1]).astype(np.float32)
    if tensor.dtype.is_quantized:
        values[tensor] = aggml.quantize(x.reshape(tensor.shape), tensor.dtype)
    else:
        assert tensor.dtype.numpy is not None
        values[tensor] = x.astype(tensor.dtype.numpy).reshape(tensor.shape)
    return tensor


def _net(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    x, gate, up = leaf(v, "x", 64, 5), leaf(v, "blk.0.ffn_gate.weight", 64, 96), leaf(v, UP, 64, 96)
    y = ops.swiglu_split(ops.mul_mat(gate, x), ops.mul_mat(up, x))
    return (ops.add(ops.mul_mat(leaf(v, DOWN, 96, 64), y), x),)


def _quantized(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    x = leaf(v, "x", 256, 5)
    y = ops.silu(ops.mul_mat(leaf(v, UP, 256, 512, kind="q4_K"), x))
    return (ops.mul_mat(leaf(v, DOWN, 512, 64, kind="q8_0"), y),)


def _biased(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    y = ops.mul_mat(leaf(v, QUERY, 64, 32), leaf(v, "x", 64, 5))
    y = ops.add(y, leaf(v, "blk.0.attn_q.bias", 32))
    y = ops.mul(y, leaf(v, "whole", 32))
    return ops.rms_norm(y, 1e-5), ops.scale(y, 2.0)


def _heads(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    y = ops.mul_mat(leaf(v, QUERY, 64, 64), leaf(v, "x", 64, 5))
    heads = ops.permute(ops.reshape_3d(y, 8, 8, 5), 0, 2, 1, 3)
    parts = ops.soft_max_ext(ops.mul_mat(heads, heads), leaf(v, "mask", 5, 5), 0.3)
    slopes = ops.soft_max_ext(ops.mul_mat(heads, heads), leaf(v, "mask2", 5, 5), 0.3, 4.0)
    back = ops.cont_2d(ops.permute(heads, 0, 2, 1, 3), 64, 5)
    return parts, slopes, back, ops.mul_mat(leaf(v, "blk.0.attn_output.weight", 64, 64), back)


def _pieces(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    y = ops.mul_mat(leaf(v, "blk.0.attn_qkv.weight", 64, 96), leaf(v, "x", 64, 5))
    thirds = [ops.cont(ops.view_2d(y, 32, 5, y.nb[1], 128 * i)) for i in range(3)]
    return (ops.mul(ops.add(thirds[0], thirds[1]), thirds[2]), ops.sum_rows(y))


def _taken(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    table = leaf(v, "token_embd.weight", 64, 12)
    ids = new_tensor("i32", ne=(4,), name="ids")
    v[ids] = np.array([3, 0, 11, 3], np.int32)
    rows = ops.get_rows(table, ids)
    return rows, ops.mul_mat(table, rows), ops.swiglu(rows)


def _in_place(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    y = ops.mul_mat(leaf(v, UP, 64, 32), leaf(v, "x", 64, 5))
    y = ops.scale_inplace(y, 3.0)
    y = ops.rms_norm_inplace(ops.add_inplace(y, leaf(v, "z", 32, 5)), 1e-5)
    return (ops.mul_mat(leaf(v, DOWN, 32, 16), y),)


def _experts(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    ids = new_tensor("i32", ne=(2, 5), name="ids")
    v[ids] = np.random.default_rng(0).integers(0, 3, (5, 2)).astype(np.int32)
    x = leaf(v, "x", 64, 1, 5)
    up = ops.mul_mat_id(leaf(v, "blk.0.ffn_up_exps.weight", 64, 32, 3), x, ids)
    down = leaf(v, "blk.0.ffn_down_exps.weight", 32, 64, 3)
    return (ops.mul_mat_id(down, ops.relu(up), ids),)


def _cached(v: dict[Tensor, Any]) -> tuple[Tensor, ...]:
    cache = leaf(v, "cache_k.0", 64, 12)
    rows = new_tensor("i64", ne=(5,), name="rows")
    v[rows] = np.array([7, 1, 0, 11, 4], np.int64)
    new = ops.mul_mat(leaf(v, "blk.0.attn_k.weight", 64, 64), leaf(v, "x", 64, 5))
    written = ops.set_rows(cache, new, rows)
    keys = ops.permute(ops.view_4d(written, 8, 8, 9, 1, 32, 256, 256 * 9, 0), 0, 2, 1, 3)
    queries = ops.permute(ops.reshape_3d(new, 8, 8, 5), 0, 2, 1, 3)
    found = ops.flash_attn_ext(queries, keys, keys, None, 0.3)
    last = ops.cpy(ops.view_2d(cache, 64, 2, 256, 0), ops.view_2d(cache, 64, 2, 256, 2560))
    one_head = ops.cont(ops.view_2d(last, 8, 2, 256, 8 * 4))
    return found, one_head


def _fused(v: dict[Tensor, Any], n: int = 4) -> tuple[Tensor, ...]:
    """Attention over a fused QKV, with twice as many heads of queries as of keys."""
    y = ops.mul_mat(leaf(v, "fused.weight", 64, 32 * n), leaf(v, "x", 64, 5))
    row = y.nb[1]
    q = ops.view_3d(y, 8, 2 * n, 5, 32, row, 0)
    k = ops.view_3d(y, 8, n, 5, 32, row, 4 * 16 * n)
    v_ = ops.view_3d(y, 8, n, 5, 32, row, 4 * 24 * n)
    q, k, v_ = (ops.permute(one, 0, 2, 1, 3) for one in (q, k, v_))
    attended = ops.flash_attn_ext(q, k, v_, None, 0.3)
    scores = ops.soft_max(ops.mul_mat(ops.cont(k), q))
    return ops.cont(attended), scores, ops.scale(y, 2.0), ops.cont(k)


GRAPHS: list[Callable[[dict[Any, Any]], tuple[Any, ...]]] = [
    _net, _quantized, _biased, _heads, _pieces, _taken, _in_place, _experts, _cached, _fused,
]  # fmt: skip


@pytest.mark.parametrize("build", GRAPHS, ids=lambda f: f.__name__.strip("_"))
async def test_graphs_agree_with_the_cpu(
    be: aggml.Backend, cpu: aggml.Backend, build: Callable[..., tuple[Tensor, ...]]
) -> None:
    results = []
    for backend in (cpu, be):
        values: dict[Tensor, Any] = {}
        ends = build(values)
        graph = Graph(*ends)
        backend.alloc_graph(graph)
        last: list[Any] = []
        for _ in range(2):
            last = await backend.run(graph, values, list(ends))
        cache = [t for t in values if t.name.startswith("cache")]
        results.append([*last, *[await backend.get(t) for t in cache]])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


def test_heads_of_a_fused_matrix_are_attended_where_they_are() -> None:
    """Each device has whole heads of Q, K and V, so nothing is sent."""
    with MetaDevice([SimDevice("A"), SimDevice("B")], split=of_fused(2)).backend() as be:
        graph = Graph(*_fused({}))
        be.alloc_graph(graph)
        plan: Any = be.graph_plan(graph).plan
        assert [(one.copies, one.sums) for one in plan.rounds] == [([], [])]


async def test_writes_that_no_device_can_make_alone_are_refused(be: aggml.Backend) -> None:
    values: dict[Tensor, Any] = {}
    cache = leaf(values, "cache_k.0", 64, 12)
    be.alloc([cache])
    strip = ops.cpy(leaf(values, "x", 8, 2), ops.view_2d(cache, 8, 2, 256, 32))
    graph = Graph(strip)
    be.alloc_graph(graph)
    with pytest.raises(aggml.Unsupported, match="divided among"):
        be.graph_plan(graph)
    with pytest.raises(aggml.Unsupported, match="takes unequal parts"):
        be.get(ops.view_2d(cache, 8, 2, 256, 32))


async def test_copies_go_to_other_devices_and_back(be: aggml.Backend, cpu: aggml.Backend) -> None:
    here, there = new_tensor("f32", ne=(64, 8), name=DOWN), new_tensor("f32", ne=(64, 8))
    rows, whole = new_tensor("f32", ne=(64, 8), name=UP), new_tensor("f32", ne=(64, 8))
    be.alloc([here, rows, whole])
    cpu.alloc([there])
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    cpu.set(there, x)
    cpu.copy(there, here, to=be)
    be.copy(here, rows)
    be.copy(rows, whole)
    be.memset(here, 0)
    be.copy(whole, here)
    cpu.memset(there, 0)
    await be.copy(here, there, to=cpu)
    assert (await cpu.get(there) == x).all()


async def test_tensors_without_elements_lie_beside_others(be: aggml.Backend) -> None:
    """They take no memory, so they have the address where the next tensor begins."""
    empty, weights = new_tensor("f32", ne=(4, 0)), new_tensor("f32", ne=(4, 3))
    none, zero = ops.mul_mat(weights, empty), ops.sum(empty)
    graph = Graph(none, zero)
    be.alloc_graph(graph)
    values = {weights: np.ones((3, 4), np.float32), empty: np.ones((0, 4), np.float32)}
    for _ in range(2):
        found = await be.run(graph, values, [none, zero])
        assert [one.shape for one in found] == [none.shape, zero.shape]
        assert float(np.asarray(found[1]).sum()) == 0.0


def test_shares_give_parts_in_their_ratio() -> None:
    device = MetaDevice([SimDevice(f"R{i}") for i in range(3)], shares=[0.5, 1.0, 2.5])
    up = new_tensor("f32", ne=(64, 24), name=UP)  # 3, 6 and 15 rows
    down = new_tensor("q8_0", ne=(64 * 32, 8), name=DOWN)  # 8, 16 and 40 blocks
    uneven = new_tensor("f32", ne=(64, 10), name="output.weight")  # not 1.25 and 2.5 rows: by depth
    norm = new_tensor("f32", ne=(64,), name="blk.0.attn_norm.weight")
    few = new_tensor("f32", ne=(2, 2), name=UP)  # not for three
    with device.backend() as be:
        be.alloc([up, down, uneven, norm, few])
        assert device.split_state(up) == SplitState.of(1, [[3, 6, 15]])
        assert device.split_state(down) == SplitState.of(0, [[256, 512, 1280]])
        assert device.split_state(uneven) == SplitState.of(0, [[8, 16, 40]])
        assert device.split_state(norm).axis is SplitAxis.MIRRORED
        assert device.split_state(few).axis is SplitAxis.MIRRORED
        assert device.split_state(ops.view_2d(up, 64, 24, 256, 0)).segments == ((3, 6, 15),)
        with pytest.raises(aggml.NotAllocated):
            device.split_state(new_tensor("f32", ne=(4,)))


def test_names_of_axes_are_those_of_ggml() -> None:
    labels = {axis.value: axis.label for axis in SplitAxis}
    assert labels == {0: "0", 1: "1", 2: "2", 3: "3", 10: "MIRRORED", 11: "PARTIAL"}


@pytest.mark.parametrize(
    "shares", [[1], [1, 2, 3], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")], ["a", "b"]]
)
def test_shares_that_are_none_are_refused(shares: list[Any]) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"shares=.*: expected 2 positive numbers"):
        MetaDevice([SimDevice("A"), SimDevice("B")], shares=shares)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("rows", "expected a SplitState"),
        (SplitState(SplitAxis.PARTIAL), "only nodes have summands"),
        (SplitState.of(1, [[8, 8, 8]]), "one extent for each of 2 devices"),
        (SplitState.of(1, [[8, 8]]), "together 24"),
        (SplitState.of(1, [[24, 0]]), "above 0"),
        (SplitState.of(0, [[48, 16]]), r"multiples of 32 \(the block\)"),
        (SplitState(SplitAxis.AXIS_1), "together 24"),
    ],
)
def test_states_that_a_leaf_cannot_have_are_refused(state: Any, said: str) -> None:
    device = MetaDevice([SimDevice("A"), SimDevice("B")], split=lambda _: state)
    with device.backend() as be, pytest.raises(aggml.InvalidArgument, match=said):
        be.alloc([new_tensor("q8_0", ne=(64, 24), name="w")])


@pytest.mark.parametrize("segments", [[[4, 4], [8]], [[4, 4]]])
def test_repeats_need_a_number_for_each_segment(segments: list[list[int]]) -> None:
    with pytest.raises(aggml.InvalidArgument, match="repeats for"):
        SplitState.of(1, segments, [1] * (len(segments) + 1))
    with pytest.raises(aggml.InvalidArgument, match="axis=4"):
        SplitState.of(4, segments)


@pytest.mark.parametrize("seed", range(30))
async def test_random_segments_come_back_and_compute(cpu: aggml.Backend, seed: int) -> None:
    """Any split of any axis holds the same bytes, and a graph gives the same numbers."""
    random = np.random.default_rng(seed)
    n, axis, count = int(random.integers(2, 5)), int(random.integers(0, 3)), 3
    rows = random.integers(1, 5, (count, n)) * (32 if axis == 0 else 1)
    repeats = random.integers(1, 3, count)
    state = SplitState.of(axis, rows.tolist(), repeats.tolist())
    ne = [64, 6, 2]
    ne[axis] = int((rows.sum(1) * repeats).sum())
    kind = str(random.choice(["f32", "f16", "q8_0"]))
    device = MetaDevice(
        [SimDevice(f"S{i}") for i in range(n)], split=lambda t: state if t.name == "w" else None
    )
    values: dict[Tensor, Any] = {}
    w = leaf(values, "w", *ne, kind=kind)
    x = leaf(values, "x", ne[0], 3, ne[2])
    product = ops.mul_mat(w, x)
    rows_of = ops.cont(ops.view_3d(product, product.ne[0] - 1, 3, ne[2], *product.nb[1:3], 4))
    ends = [product, rows_of, ops.rms_norm(product, 1e-5)]
    graph = Graph(*ends)
    with device.backend() as be:
        be.alloc_graph(graph)
        found = await be.run(graph, values, ends)
        assert (await be.get(w)).tobytes() == np.ascontiguousarray(values[w]).tobytes()
        held = await be.get(w, offset=0)
        assert held.tobytes() == np.ascontiguousarray(values[w]).tobytes()
        mirror = held.copy()
        for _ in range(10):
            start = int(random.integers(0, w.nbytes))
            piece = random.integers(0, 60, int(random.integers(0, w.nbytes - start + 1)), np.uint8)
            await be.set(w, piece, offset=start)
            mirror[start : start + piece.size] = piece
        assert (await be.get(w, offset=0)).tobytes() == mirror.tobytes()
    again: dict[Tensor, Any] = {}
    same = ops.mul_mat(leaf(again, "w", *ne, kind=kind), leaf(again, "x", ne[0], 3, ne[2]))
    alone = Graph(same)
    cpu.alloc_graph(alone)
    expected = await cpu.run(alone, again, same)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found[1], expected[..., 1:], rtol=1e-4, atol=1e-3)
    norm = expected / np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found[2], norm, rtol=1e-3, atol=1e-3)
