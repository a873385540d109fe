"""flash_attn_ext against numpy: many queries; few queries, many keys; widths; masks; hidden keys.

Not here: the recorded calls (test_recorded.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import compute, floats
from support import end

import aggml
from aggml import DType, new_tensor, ops
from aggml.native import _native, isas

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    from aggml.devices.cpu import CPUDevice

    Array: TypeAlias = NDArray[Any]

AVX512_BF16, FAST_BF16 = 1 << 5, 1 << 12
BOUND = {"f32": 1e-11, "f16": 1e-8, "bf16": 5e-5, "q8_0": 1e-4}


def stored(x: Array, dtype: str) -> tuple[Array, Array]:
    """The elements that the backend gets, and the numbers that they represent."""
    if dtype == "f32":
        return x, x
    if dtype == "f16":
        return x.astype(np.float16), x.astype(np.float16).astype(np.float32)
    kind = DType.parse(dtype)
    blocks = aggml.quantize(x.reshape(-1, x.shape[-1]), kind)
    read = aggml.dequantize(blocks, kind, ne=(x.shape[-1], x.size // x.shape[-1])).reshape(x.shape)
    return (blocks.view(np.uint16) if dtype == "bf16" else blocks).reshape(*x.shape[:-1], -1), read


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    *,
    softcap: float,
    max_bias: float,
    sinks: Array,
) -> Array:
    """[queries, heads, dv] from q [heads, queries, d], k and v [kv heads, keys, ...]."""
    heads, group = len(q), len(q) // len(k)
    k, v = k.astype(np.float64), v.astype(np.float64)
    slopes = 2.0 ** (-max_bias * (1 + np.arange(heads)) / heads) if max_bias else np.ones(heads)
    out = []
    for h in range(heads):
        s = q[h].astype(np.float64) @ k[h // group].T / np.sqrt(q.shape[-1])
        if softcap:
            s = softcap * np.tanh(s / softcap)
        if mask is not None:
            s = s + slopes[h] * mask.astype(np.float64)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        total = p.sum(axis=1) + np.exp(sinks[h] - s.max(axis=1))
        out.append(p @ v[h // group] / total[:, None])
    return np.stack(out, axis=1)


@pytest.mark.parametrize("dtype", list(BOUND))
@pytest.mark.parametrize(
    ("d", "dv", "queries", "keys", "heads", "kv_heads", "causal", "softcap", "max_bias"),
    [
        (64, 64, 70, 70, 4, 2, True, 0.0, 0.0),
        (128, 96, 33, 300, 2, 1, False, 0.0, 0.0),
        (96, 64, 40, 555, 2, 2, True, 5.0, 0.0),
        (64, 32, 28, 90, 4, 4, True, 0.0, 8.0),
        (64, 64, 1, 600, 6, 2, True, 0.0, 0.0),  # from here on the keys are cut into parts
        (96, 64, 1, 129, 4, 4, True, 5.0, 8.0),
        (128, 96, 5, 300, 2, 1, True, 5.0, 0.0),
    ],
)
def test_against_numpy(
    dtype: str,
    d: int,
    dv: int,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    causal: bool,
    softcap: float,
    max_bias: float,
    backend: aggml.Backend,
) -> None:
    q = floats(heads, queries, d, seed=d)
    k_held, k_read = stored(floats(kv_heads, keys, d, seed=keys), dtype)
    v_held, v_read = stored(floats(kv_heads, keys, dv, seed=keys + 1), dtype)
    tensors: dict[aggml.Tensor, Array] = {
        new_tensor("f32", ne=(d, queries, heads)): q,
        new_tensor(dtype, ne=(d, keys, kv_heads)): k_held,
        new_tensor(dtype, ne=(dv, keys, kv_heads)): v_held,
    }
    mask = None
    left, right, values = tensors
    seen = None
    if causal:
        ahead = np.arange(keys) - np.arange(queries)[:, None]
        mask = np.where(ahead <= keys - queries, 0, -np.inf).astype(np.float16)
        if max_bias:
            mask = (mask - np.abs(ahead)).astype(np.float16)
        seen = new_tensor("f16", ne=(keys, queries))
        tensors[seen] = mask
    node = ops.flash_attn_ext(left, right, values, seen, float(1 / np.sqrt(d)), max_bias, softcap)
    sinks = np.full(heads, -np.inf, np.float32)
    if softcap:
        sinks = floats(heads, seed=9)
        sink = new_tensor("f32", ne=(heads,))
        ops.flash_attn_ext_add_sinks(node, sink)
        tensors[sink] = sinks

    found = compute(backend, node, tensors)

    expected = attention(
        q, k_read, v_read, mask, softcap=softcap, max_bias=max_bias, sinks=sinks.astype(np.float64)
    )
    assert nmse(expected, found[0].astype(np.float64)) <= BOUND[dtype]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_query_does_not_depend_on_its_neighbours(
    dtype: str, causal: bool, backend: aggml.Backend
) -> None:
    # Its neighbours find much larger logits, each at another key.
    d, n, keys = 64, 64, 300
    q = floats(1, n, d, seed=1) * np.linspace(0.1, 60, n, dtype=np.float32)[None, :, None]
    same = [3, 17, 40, 63]
    q[0, same] = floats(d, seed=2)
    tensors: dict[aggml.Tensor, Array] = {
        new_tensor("f32", ne=(d, n, 1)): q,
        new_tensor(dtype, ne=(d, keys, 1)): stored(floats(1, keys, d, seed=3), dtype)[0],
        new_tensor(dtype, ne=(d, keys, 1)): stored(floats(1, keys, d, seed=4), dtype)[0],
    }
    left, right, values = tensors
    seen = None
    if causal:  # the same keys for all four
        seen = new_tensor("f16", ne=(keys, n))
        mask = np.where(np.arange(keys) <= keys - n + np.arange(n)[:, None], 0, -np.inf)
        mask[same] = mask[same[0]]
        tensors[seen] = mask.astype(np.float16)
    found = compute(backend, ops.flash_attn_ext(left, right, values, seen, 0.5, 0.0, 0.0), tensors)
    rows = found[0][same, 0]
    assert np.isfinite(rows).all()
    assert (rows == rows[0]).all()


def test_many_keys(backend: aggml.Backend) -> None:
    # From 8192 keys on the parts are longer. Not tested with f32, whose exact kernel adds all
    # values in f32.
    test_against_numpy("f16", 64, 32, 2, 8500, 1, 1, True, 0.0, 8.0, backend)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sequences_whose_heads_lie_side_by_side(dtype: str, backend: aggml.Backend) -> None:
    # One query for each sequence. A row of the cache holds 6 heads, which are read together if the
    # keys are cut into parts.
    sequences, keys, heads, kv_heads, d = 5, 300, 12, 6, 64
    q = floats(sequences, heads, 1, d, seed=1)
    k, v = (stored(floats(sequences, keys, kv_heads, d, seed=i), dtype) for i in (2, 3))
    mask = np.zeros((sequences, 1, 1, keys), np.float16)
    for i in range(sequences):
        mask[i, ..., 40 * i + 90 :] = -np.inf
    left, seen = (
        new_tensor("f32", ne=(d, 1, heads, sequences)),
        new_tensor("f16", ne=(keys, 1, 1, sequences)),
    )
    tensors: dict[aggml.Tensor, Array] = {left: q, seen: mask}
    rows = []
    for held, _ in (k, v):
        cache = new_tensor(dtype, ne=(d, kv_heads, keys, sequences))
        tensors[cache] = held
        rows.append(ops.permute(cache, 0, 2, 1, 3))
    found = compute(backend, ops.flash_attn_ext(left, rows[0], rows[1], seen, 0.125), tensors)
    for i in range(sequences):
        keys_read, values_read = (x[1][i].transpose(1, 0, 2) for x in (k, v))
        hidden, sinks = mask[i, 0], np.full(heads, -np.inf)
        expected = attention(
            q[i], keys_read, values_read, hidden, softcap=0.0, max_bias=0.0, sinks=sinks
        )
        assert nmse(expected, found[i].astype(np.float64)) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("queries", "keys"), [(32, 80), (1, 700)])
def test_a_cell_that_is_not_seen_counts_nothing(
    dtype: str, value: float, queries: int, keys: int, backend: aggml.Backend
) -> None:
    # Cells of a cache beyond the sequence may hold any bits. 45 lies in the middle of a block.
    q = floats(2, queries, 64, seed=1)
    k, v = floats(2, keys, 64, seed=2), floats(2, keys, 64, seed=3)
    mask = np.full((queries, keys), -np.inf, np.float16)
    mask[:, :45] = 0
    found: list[Array] = []
    for fill in (0.0, value):
        k[:, 45:], v[:, 45:] = fill, fill
        tensors: dict[aggml.Tensor, Array] = {new_tensor("f32", ne=(64, queries, 2)): q}
        for x in (k, v):
            bits = (x.view(np.uint32) >> 16).astype(np.uint16)
            narrow = x.astype(np.float16 if dtype == "f16" else np.float32)
            tensors[new_tensor(dtype, ne=(64, keys, 2))] = bits if dtype == "bf16" else narrow
        tensors[new_tensor("f16", ne=(keys, queries))] = mask
        left, right, values, seen = tensors
        node = ops.flash_attn_ext(left, right, values, seen, 0.125)
        found.append(compute(backend, node, tensors).astype(np.float64))
    assert np.isfinite(found[1]).all()
    assert nmse(found[0], found[1]) <= 1e-4


@pytest.fixture
def paired(cpu_device: CPUDevice) -> Iterator[aggml.Backend]:
    """A backend that multiplies pairs of bf16, even if this CPU is not known to do so fast."""
    if "avx512" not in isas() or not _native.cpu_features() & AVX512_BF16:
        pytest.skip("this CPU has no AVX-512 BF16")
    backend = cpu_device.backend(n_threads=2, isa="avx512")
    backend.cpu |= FAST_BF16
    yield backend
    end(backend)


@pytest.mark.parametrize(
    "shape",  # d, dv, queries, keys, heads, kv_heads, causal, softcap, max_bias, as above
    [
        (64, 64, 70, 70, 4, 2, True, 0.0, 0.0),
        (128, 96, 33, 301, 2, 1, False, 0.0, 0.0),
        (96, 64, 40, 555, 2, 2, True, 5.0, 0.0),
        (50, 33, 17, 89, 4, 4, True, 0.0, 8.0),
        (66, 20, 6, 31, 2, 1, False, 3.0, 0.0),
        (128, 128, 40, 1100, 1, 1, True, 0.0, 0.0),  # more keys than a thread keeps of one head
        (63, 64, 40, 64, 1, 1, True, 0.0, 0.0),  # an odd width: no pairs
    ],
)
def test_pairs(
    shape: tuple[int, int, int, int, int, int, bool, float, float], paired: aggml.Backend
) -> None:
    test_against_numpy("bf16", *shape, paired)


def windows(dtype: str, queries: int, keys: int, backend: aggml.Backend) -> None:
    """Query i sees keys 45+i to keys-queries+i-45; keys that no query sees are NaN."""
    q, k, v = (floats(n, 40, seed=n) for n in (queries, keys, keys + 1))
    v = v[1:]
    ahead = np.arange(keys) - np.arange(queries)[:, None]
    mask = np.where((ahead >= 45) & (ahead <= keys - queries - 45), 0, -np.inf).astype(np.float16)
    seen = np.isfinite(mask).any(axis=0)
    k[~seen], v[~seen] = np.nan, np.nan
    (k_held, k_read), (v_held, v_read) = (stored(x[None], dtype) for x in (k, v))
    left, right, values = (
        new_tensor("f32", ne=(40, queries)),
        *(new_tensor(dtype, ne=(40, keys)) for _ in "kv"),
    )
    hidden = new_tensor("f16", ne=(keys, queries))
    found = compute(
        backend,
        ops.flash_attn_ext(left, right, values, hidden, 0.125),
        {left: q, right: k_held[0], values: v_held[0], hidden: mask},
    )[0, :, 0]
    for i, row in enumerate(found):
        at = np.flatnonzero(mask[i] == 0)
        s = 0.125 * k_read[0, at].astype(np.float64) @ q[i].astype(np.float64)
        p = np.exp(s - s.max())
        expected = p @ v_read[0, at].astype(np.float64) / p.sum()
        assert nmse(expected, row.astype(np.float64)) <= 10 * BOUND[dtype]


@pytest.mark.parametrize("queries", [7, 32])
@pytest.mark.parametrize("keys", [140, 700, 1001])
def test_windows_in_pairs(queries: int, keys: int, paired: aggml.Backend) -> None:
    windows("bf16", queries, keys, paired)


@pytest.mark.parametrize(
    ("dtype", "queries", "keys"),
    [("f32", 32, 140), ("f16", 20, 1001), ("bf16", 24, 140), ("bf16", 70, 1001)],
)
def test_windows(dtype: str, queries: int, keys: int, backend: aggml.Backend) -> None:
    windows(dtype, queries, keys, backend)


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(("dtype", "keys"), [("f32", 500), ("f32", 1100), ("bf16", 500)])
def test_tiles_of_both_kinds(dtype: str, keys: int, backend: aggml.Backend) -> None:
    # Some tiles of each head see a number that is no sum of bf16 terms, or a value so large that
    # sums before the division overflow. These tiles are computed element by element in vectors.
    q, k, v = (floats(3, keys, 128, seed=n) for n in (1, 2, 3))
    if dtype == "f32":
        k[:, 300, 5] = 1e-37
    else:
        v[:, 300, 5] = 1e20
    mask = np.where(np.arange(keys) <= np.arange(keys)[:, None], 0, -np.inf).astype(np.float16)
    (k_held, k), (v_held, v) = (stored(x, dtype) for x in (k, v))
    left, right, values = (new_tensor(t, ne=(128, keys, 3)) for t in ("f32", dtype, dtype))
    tensors = {left: q, right: k_held, values: v_held}
    seen = new_tensor("f16", ne=(keys, keys))
    node = ops.flash_attn_ext(left, right, values, seen, float(1 / np.sqrt(128)))
    found = compute(backend, node, {**tensors, seen: mask})
    none = np.full(3, -np.inf)
    expected = attention(q, k, v, mask, softcap=0.0, max_bias=0.0, sinks=none)
    # the expected values of the second part are much larger
    for rows in (slice(0, 300), slice(300, keys)):
        assert nmse(expected[rows], found[0][rows].astype(np.float64)) <= BOUND[dtype]


@pytest.mark.parametrize("queries", [7, 30, 70])
@pytest.mark.parametrize("most", [30.0, 90.0, 3000.0])
@pytest.mark.parametrize("down", [False, True])
def test_maxima_that_come_late(
    down: bool, most: float, queries: int, backend: aggml.Backend
) -> None:
    # The logits rise to `most` over the keys, or fall from it. The result must not depend on which
    # maximum a kernel subtracts before exp. All logits are exact, because all numbers are bf16
    # numbers.
    keys = 300
    q = np.zeros((1, queries, 64), np.float32)
    q[0, :, 0], q[0, :, 1] = 1, np.arange(queries) % 3
    k, v = np.zeros((1, keys, 64), np.float32), floats(1, keys, 64, seed=3)
    k[0, :, 0] = np.round(np.linspace(0, most, keys)[:: -1 if down else 1] / 16) * 16
    k[0, :, 1] = np.arange(keys) % 5
    (k_held, k_read), (v_held, v_read) = (stored(x, "bf16") for x in (k, v))
    left, right, values = (
        new_tensor("f32", ne=(64, queries)),
        *(new_tensor("bf16", ne=(64, keys)) for _ in "kv"),
    )
    node = ops.flash_attn_ext(left, right, values, None, 0.125)
    found = compute(backend, node, {left: q[0] * 8.0, right: k_held[0], values: v_held[0]})
    expected = attention(
        q * 8.0, k_read, v_read, None, softcap=0.0, max_bias=0.0, sinks=np.full(1, -np.inf)
    )
    assert nmse(expected, found[0].astype(np.float64)) <= BOUND["bf16"]
