"""flash_attn_ext of few rows against numpy: groups of heads, every type, keys that are shared.

Sums are computed in f32 for every type, so one bound serves all. Not here: rows that fill tiles,
masks with windows (test_flash_tiles.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import compute, floats
from ops.test_flash_tiles import attention, stored
from support import end

import aggml
from aggml import DType, InvalidArgument, new_tensor, ops
from aggml.native import isas

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    from aggml.devices.cpu import CPUDevice

    Array: TypeAlias = NDArray[Any]

BOUND = 1e-11
# the kernel has no loop for q5_0: it is widened to f32, block by block
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q5_0")


def cached(
    dtype: str,
    heads: int,
    kv_heads: int,
    d: int,
    dv: int,
    keys: int,
    queries: int,
    sequences: int,
    *,
    values: str = "",
    times: float = 1,
    compared: bool = True,
) -> tuple[aggml.Tensor, dict[aggml.Tensor, Array], Array]:
    """The op over a cache whose rows hold all heads; its inputs; numpy's result, if it is compared.

    ``values`` is the type of V if it differs from K's. Every third head of Q is multiplied by
    ``times``.
    """
    q = floats(sequences, heads, queries, d, seed=1)
    q[:, ::3] *= np.float32(times)
    left = new_tensor("f32", ne=(d, queries, heads, sequences))
    mask = np.zeros((sequences, 1, queries, keys), np.float16)
    for i in range(sequences):
        mask[i, ..., max(1, keys - 40 * i) :] = -np.inf
    seen = new_tensor("f16", ne=(keys, queries, 1, sequences))
    tensors: dict[aggml.Tensor, Array] = {left: q, seen: mask}
    rows, reads = [], []
    for width, seed, kind in ((d, 2, dtype), (dv, 3, values or dtype)):
        held, read = stored(floats(sequences, keys, kv_heads, width, seed=seed), kind)
        cache = new_tensor(kind, ne=(width, kv_heads, keys, sequences))
        tensors[cache] = held
        rows.append(ops.permute(cache, 0, 2, 1, 3))
        reads.append(read)
    sinks = floats(heads, seed=9)
    node = ops.flash_attn_ext(left, rows[0], rows[1], seen, float(1 / np.sqrt(d)))
    sink = new_tensor("f32", ne=(heads,))
    ops.flash_attn_ext_add_sinks(node, sink)
    tensors[sink] = sinks
    expected = [
        attention(
            q[i],
            reads[0][i].transpose(1, 0, 2),
            reads[1][i].transpose(1, 0, 2),
            mask[i, 0],
            softcap=0.0,
            max_bias=0.0,
            sinks=sinks.astype(np.float64),
        )
        for i in range(sequences if compared else 0)
    ]
    return node, tensors, np.stack(expected) if compared else np.empty(0)


SHAPES = [  # heads of Q, heads of K, d, dv, keys, queries, sequences
    # 7 heads share one of K: four rows are computed together, then three
    (14, 2, 64, 64, 700, 1, 1),
    (16, 2, 128, 128, 300, 1, 3),
    (20, 1, 32, 96, 65, 1, 1),
    (80, 2, 64, 32, 150, 1, 2),  # 40 heads share one of K: two units of 20
    (6, 6, 96, 32, 129, 1, 5),
    (12, 3, 64, 64, 1500, 1, 4),
    (4, 2, 64, 128, 200, 8, 1),  # several queries: the heads are computed one by one
    (4, 4, 160, 160, 37, 3, 2),
    (64, 64, 32, 32, 1100, 1, 1),  # more heads than a bunch holds
    (2, 1, 64, 64, 1, 1, 1),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_numpy(
    dtype: str, shape: tuple[int, int, int, int, int, int, int], backend: aggml.Backend
) -> None:
    node, tensors, expected = cached(dtype, *shape)
    found = compute(backend, node, tensors)
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND


@pytest.mark.parametrize("rows", range(1, 10))
@pytest.mark.parametrize("dtype", TYPES)
def test_heads_side_by_side(dtype: str, rows: int, backend: aggml.Backend) -> None:
    # whole blocks of keys and 18 more; the first sequence hides none of them, the others do
    node, tensors, expected = cached(dtype, 4 * rows, 4, 64, 128, 530, 1, 2)
    found = compute(backend, node, tensors)
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
def test_every_instruction_set(dtype: str, cpu_device: CPUDevice) -> None:
    node, tensors, expected = cached(dtype, *SHAPES[0])
    for isa in isas():
        backend = cpu_device.backend(n_threads=2, isa=isa)
        found = compute(backend, node, tensors)
        assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND, isa
        end(backend)


KINDS = [("q8_0", "f16"), ("q4_0", "q8_0"), ("q8_0", "q5_0"), ("q4_0", "f32"), ("f16", "q4_0")]


@pytest.mark.parametrize(("keys", "values"), KINDS)
def test_keys_and_values_of_two_types(keys: str, values: str, backend: aggml.Backend) -> None:
    for shape in (SHAPES[0], SHAPES[2], SHAPES[4]):
        node, tensors, expected = cached(keys, *shape, values=values)
        found = compute(backend, node, tensors)
        assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("times", [0, 1e-36, 1e-4, 6])
def test_queries_of_any_size(dtype: str, times: float, backend: aggml.Backend) -> None:
    node, tensors, expected = cached(dtype, *SHAPES[1], times=times)
    found = compute(backend, node, tensors)
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_no_number_gives_none(
    dtype: str, odd: float, backend: aggml.Backend
) -> None:
    node, tensors, expected = cached(dtype, *SHAPES[1])
    assert node.src[0] is not None
    tensors[node.src[0]][1, 5, 0, 70] = odd
    found = compute(backend, node, tensors).reshape(expected.shape).astype(np.float64)
    assert np.isnan(found[1, 0, 5]).all()
    found[1, 0, 5] = expected[1, 0, 5] = 0
    assert nmse(expected.ravel(), found.ravel()) <= BOUND


@pytest.mark.parametrize("width", [40, 63])
def test_widths_that_fill_no_vector(width: int, backend: aggml.Backend) -> None:
    node, tensors, expected = cached("f16", 6, 2, width, width, 150, 1, 1)
    found = compute(backend, node, tensors)
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND


def test_threads_and_order_do_not_matter(cpu_device: CPUDevice) -> None:
    node, tensors, _ = cached("q8_0", *SHAPES[4])
    found = []
    for threads in (1, 2, 3):
        backend = cpu_device.backend(n_threads=threads)
        found.append(compute(backend, node, tensors).tobytes())
        end(backend)
    assert found[0] == found[1] == found[2]


def shared(
    dtype: str,
    heads: int,
    kv_heads: int,
    d: int,
    dv: int,
    keys: int,
    sequences: int,
    first: int,
    *,
    hidden: bool = False,
) -> tuple[aggml.Tensor, dict[aggml.Tensor, Array], Array]:
    """As `cached`, with one query each; all sequences share their first keys with the last one.

    With ``hidden`` the copies of the shared keys in the other sequences are NaN, or other data if
    the type has no NaN: the kernels must not read them.
    """
    node, tensors, _ = cached(dtype, heads, kv_heads, d, dv, keys, 1, sequences, compared=False)
    q, mask = node.src[0], node.src[3]
    sinks = node.src[4]
    assert q is not None
    assert mask is not None
    assert sinks is not None
    reads: list[Array] = []
    for of in node.src[1:3]:
        assert of is not None
        cache = of.src[0]
        assert cache is not None
        width = cache.ne[0]
        values = floats(sequences, keys, kv_heads, width, seed=width + len(reads))
        values[:, :first] = values[-1, :first]
        held, read = stored(values, dtype)
        held = held.copy()
        if not hidden:
            pass
        elif dtype in ("f32", "f16"):
            held[:-1, :first] = np.nan
        elif dtype == "bf16":
            held[:-1, :first] = 0x7FC0
        else:
            held[:-1, :first] = held[:1, -1:]
        tensors[cache] = held
        reads.append(read.reshape(sequences, keys, kv_heads, width))
    seen = tensors[mask]
    seen[:] = 0
    for i in range(sequences):
        seen[i, ..., max(first + 1, keys - 40 * i) :] = -np.inf
    seen[0, ..., 3:70] = -np.inf  # hides some of the shared keys from the first sequence, too
    seen[0, ..., 100:103] = -1.5
    expected = [
        attention(
            tensors[q][i],
            reads[0][i].transpose(1, 0, 2),
            reads[1][i].transpose(1, 0, 2),
            seen[i, 0],
            softcap=0.0,
            max_bias=0.0,
            sinks=tensors[sinks].astype(np.float64),
        )
        for i in range(sequences)
    ]
    ops.flash_attn_ext_set_shared(node, first, sequences - 1)
    return node, tensors, np.stack(expected)


COMMON = [  # heads of Q, heads of K, d, dv, keys, sequences, shared keys
    (14, 2, 64, 64, 700, 8, 600),  # 56 rows: two tiles
    (32, 8, 128, 128, 400, 8, 257),
    (6, 6, 96, 32, 300, 5, 200),  # 5 rows: four together, then one
    (4, 2, 128, 64, 1100, 3, 1000),
    (20, 4, 32, 96, 2500, 2, 2499),
    (16, 2, 64, 64, 300, 3, 300),  # the sequences have no keys of their own
    (80, 1, 32, 32, 200, 4, 128),  # 320 rows: more tiles than are kept at once
    (4, 1, 80, 80, 200, 2, 64),
]


@pytest.mark.long(cases=15)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", COMMON)
def test_shared_keys_are_read_from_one_sequence(
    dtype: str, shape: tuple[int, int, int, int, int, int, int], backend: aggml.Backend
) -> None:
    if DType.parse(dtype).blck_size > 1 and (shape[2] % 32 or shape[3] % 32):
        pytest.skip("no whole blocks")
    node, tensors, expected = shared(dtype, *shape)
    found = compute(backend, node, tensors)
    # From 9 rows on, bf16 keys are multiplied as pairs of bf16 where the machine can do so.
    bound = 2e-5 if dtype == "bf16" else BOUND
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= bound


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q4_0"])
def test_shared_keys_on_every_instruction_set(dtype: str, cpu_device: CPUDevice) -> None:
    node, tensors, expected = shared(dtype, *COMMON[0], hidden=True)
    for isa in isas():
        if isa == "scalar":
            continue  # plain C ignores the sharing: it reads the keys of each sequence
        found = []
        for threads in (1, 3):
            backend = cpu_device.backend(n_threads=threads, isa=isa)
            found.append(compute(backend, node, tensors))
            end(backend)
        bound = 2e-5 if dtype == "bf16" else BOUND
        assert nmse(expected.ravel(), found[0].astype(np.float64).ravel()) <= bound, isa
        assert found[0].tobytes() == found[1].tobytes(), isa


def test_what_cannot_be_shared(backend: aggml.Backend) -> None:
    node, _, _ = cached("f16", 4, 2, 64, 64, 100, 1, 2)
    for keys, batch in ((101, 0), (-1, 0), (50, 2), (50, -1)):
        with pytest.raises(InvalidArgument, match="flash_attn_ext_set_shared"):
            ops.flash_attn_ext_set_shared(node, keys, batch)
    # With several queries in a sequence the call has no effect: each reads its own keys.
    node, tensors, expected = cached("f16", 4, 2, 64, 64, 200, 3, 2)
    ops.flash_attn_ext_set_shared(node, 150, 1)
    found = compute(backend, node, tensors)
    assert nmse(expected.ravel(), found.astype(np.float64).ravel()) <= BOUND
