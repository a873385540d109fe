"""map_custom1 to 3, custom_4d: functions of the user in Python and in C.

Here: the operands that the functions get, how often they are called, misuse. Not here: functions
that fail, wait or are aborted, plans and devices (test_custom_streams.py).
"""

from __future__ import annotations

import ctypes
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute, floats
from ops.doubling import Array, X, double, leaf

import aggml
from aggml import Graph, InvalidArgument, InvalidHandle, new_tensor, ops

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.devices.cpu import CPUBackend


# -- the arguments of functions in Python


def test_operands_are_arrays_over_their_memory(any_backend: aggml.Backend) -> None:
    a, b, c = leaf(), new_tensor("f16", ne=(7,), name="b"), new_tensor("q8_0", ne=(64, 2), name="c")
    got: list[Any] = []

    def note(dst: Array, *rest: Any) -> None:
        got.extend([dst.copy(), *[x.copy() if isinstance(x, np.ndarray) else x for x in rest]])
        assert [x.flags.writeable for x in (dst, *rest[:3])] == [True, False, False, False]
        dst[...] = rest[0]

    node = ops.map_custom3(ops.transpose(a), b, c, note, userdata="mine")
    assert (node.op, node.ne, node.dtype) == ("map_custom3", (3, 5, 1, 1), aggml.DType.F32)
    blocks = aggml.quantize(floats(2, 64, seed=1), "q8_0")
    node = ops.reshape(ops.map_custom1(node, double), leaf())
    values: dict[Any, Array] = {a: X, b: np.arange(7, dtype=np.float16), c: blocks}
    result = compute(any_backend, node, values)
    dst, first, second, third, *rest = got
    assert dst.shape == first.shape == (5, 3)
    assert np.array_equal(first, X.T)
    assert np.array_equal(second, np.arange(7))
    assert second.dtype == np.float16
    assert np.array_equal(third, blocks)
    assert rest == [0, 1, "mine"]
    assert np.array_equal(result.reshape(5, 3), 2 * X.T)


def test_bf16_and_empty_operands(any_backend: aggml.Backend) -> None:
    a, none = leaf(dtype="bf16"), new_tensor("f32", ne=(4, 0), name="none")

    def add_one(dst: Array, a: Array, b: Array, *_: object) -> None:
        assert b.size == 0
        dst[...] = a + 1

    node = ops.map_custom2(a, none, add_one)
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    values: dict[Any, Array] = {a: bits, none: np.empty((0, 4), np.float32)}
    result = compute(any_backend, ops.cast(node, "f32"), values)
    assert np.array_equal(result.reshape(3, 5), X + 1)


@pytest.mark.parametrize(("n_tasks", "calls"), [(-1, 1), (1, 1), (3, 3), (100000, 512)])
def test_number_of_tasks(by_threads: list[aggml.Backend], n_tasks: int, calls: int) -> None:
    for backend in by_threads:
        seen: list[tuple[int, int]] = []

        def note(dst: Array, a: Array, ith: int, nth: int, _: object, to: Any = seen) -> None:
            to.append((ith, nth))
            dst[ith::nth] = a[ith::nth] + 1

        a = leaf()
        result = compute(backend, ops.map_custom1(a, note, n_tasks), {a: X})
        assert seen == [(i, calls) for i in range(calls)]
        assert np.array_equal(result.reshape(3, 5), X + 1)


def test_custom_4d_has_its_own_type_and_extents(any_backend: aggml.Backend) -> None:
    a, b = leaf(), new_tensor("i32", ne=(2,), name="b")

    def fill(dst: Array, a: Array, b: Array, ith: int, nth: int, userdata: list[int]) -> None:
        dst[...] = userdata[0] + b[:, None]
        assert np.array_equal(a, X)

    node = ops.custom_4d("i16", 3, 2, 1, 1, [a, b, a], 2, fill, 1, [10])
    assert (node.op, node.ne, node.dtype.type_name) == ("custom", (3, 2, 1, 1), "i16")
    result = compute(any_backend, node, {a: X, b: np.array([1, 2], np.int32)})
    assert np.array_equal(result.reshape(2, 3), [[11] * 3, [12] * 3])

    def count(dst: Array, *_: object) -> None:
        dst[...] = np.arange(4)

    alone = ops.custom_4d(aggml.DType.F32, 4, 1, 1, 1, [], None, count)
    assert np.array_equal(compute(any_backend, ops.neg(alone), {}).ravel(), [0, -1, -2, -3])


def test_in_place_writes_the_storage_of_a(any_backend: aggml.Backend) -> None:
    a, b = leaf(), leaf("b")

    def bump(dst: Array, *rest: Any) -> None:
        dst += rest[1]

    nodes = [
        ops.map_custom1_inplace(a, double),
        ops.map_custom2_inplace(ops.view_2d(a, 5, 2, 20, 20), ops.view_2d(b, 5, 2, 20, 0), bump),
        ops.map_custom3_inplace(a, b, b, bump),
        ops.custom_inplace(a, [b], None, bump),
    ]
    assert all(node.root is a for node in nodes)
    graph = Graph(*nodes)
    memory = any_backend.alloc([a, b])
    placed = any_backend.alloc_graph(graph)
    any_backend.set(a, X)
    any_backend.set(b, np.ones((3, 5), np.float32))
    any_backend.graph_compute(graph)
    result = any_backend.get(a)
    assert result.wait(60)
    expected = 2 * X + 2
    expected[1:] += 1
    assert np.array_equal(result.result(), expected)
    placed.close()
    memory.close()


def test_misuse() -> None:
    a = leaf()
    for tasks in (0, -2, 1 << 31):
        with pytest.raises(InvalidArgument, match="n_tasks"):
            ops.map_custom1(a, double, tasks)
    bad: Any
    for bad in (None, 0, 12345, "double", a):
        with pytest.raises(InvalidHandle, match="c_function"):
            ops.map_custom1(a, bad)
    with pytest.raises(InvalidHandle, match="b is no tensor"):
        ops.map_custom2_inplace(a, X, double)  # type: ignore[arg-type]
    with pytest.raises(InvalidHandle, match=r"args\[1\]"):
        ops.custom_inplace(a, [a, X], 2, double)  # type: ignore[list-item]
    with pytest.raises(InvalidHandle, match="no list"):
        ops.custom_inplace(a, 3, None, double)  # type: ignore[arg-type]
    for n in (-1, 3, 10):
        with pytest.raises(InvalidArgument, match="n_args"):
            ops.custom_4d("f32", 1, 1, 1, 1, [a, a], n, double)
    ops.custom_4d("f32", 1, 1, 1, 1, [a] * 9, 9, double)
    ops.custom_inplace(a, [a] * 8, 8, double)
    with pytest.raises(InvalidArgument, match="n_args"):
        ops.custom_4d("f32", 1, 1, 1, 1, [a] * 10, 10, double)
    with pytest.raises(InvalidArgument, match="n_args"):
        ops.custom_inplace(a, [a] * 9, 9, double)
    with pytest.raises(InvalidArgument, match="negative"):
        ops.custom_4d("f32", 1, -1, 1, 1, [], 0, double)
    make: Any = ctypes.CFUNCTYPE
    kind = make(None)
    with pytest.raises(InvalidHandle, match="null"):
        ops.map_custom1(a, kind())
    with pytest.raises(InvalidHandle, match="userdata"):
        ops.map_custom1(a, kind(lambda: None), -1, object())
    with pytest.raises(InvalidArgument):
        aggml.unsafe.c_function(0)


def test_arrays_that_a_function_keeps_stay_readable(cpu: CPUBackend) -> None:
    a, kept = leaf(), []
    node = ops.sum(ops.map_custom1(ops.neg(a), lambda dst, x, *_: kept.extend([dst, x])))
    compute(cpu, node, {a: X})
    cpu.close()
    del cpu, node
    # reading must not crash; the values may be any
    assert [x.sum() is not None for x in kept] == [True, True]
    assert kept[1].shape == (3, 5)


# -- functions in C

SOURCE = """
#include <stddef.h>
#include <stdint.h>
struct t {
    int32_t type; void *buffer; int64_t ne[4]; size_t nb[4]; int32_t op, op_params[16], flags;
    struct t *src[10], *view_src; size_t view_offs; void *data; char name[64]; void *extra;
};
static float *row(const struct t *t, int64_t i)
{
    return (float *)((char *)t->data + i * t->nb[1]);
}
static void scale(struct t *dst, const struct t *a, float by, int ith, int nth)
{
    for (int64_t r = ith; r < dst->ne[1]; r += nth)
        for (int64_t i = 0; i < dst->ne[0]; ++i) row(dst, r)[i] = row(a, r)[i] * by + (float)r;
}
void one(struct t *dst, const struct t *a, int ith, int nth, float *by)
{
    scale(dst, a, *by, ith, nth);
}
void three(struct t *dst, const struct t *a, const struct t *b, const struct t *c, int ith, int nth,
           void *none)
{
    scale(dst, a, none ? -1 : row(b, 0)[0] + row(c, 0)[1], ith, nth);
}
void any(struct t *dst, int ith, int nth, int *calls)
{
    __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
    scale(dst, dst->src[0], row(dst->src[1], 0)[0], ith, nth);
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("custom")
    (folder / "custom.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", "custom.so", "custom.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "custom.so"))


@pytest.mark.parametrize("n_tasks", [-1, 1, 2, 7])
def test_functions_in_c(
    by_threads: list[aggml.Backend], library: ctypes.CDLL, n_tasks: int
) -> None:
    x = floats(301, 100, seed=4)
    rows = np.arange(301, dtype=np.float32)[:, None]
    a, b = new_tensor("f32", ne=(100, 301), name="a"), new_tensor("f32", ne=(2,), name="b")
    values = {a: x, b: np.array([3, 4], np.float32)}
    calls, factor = ctypes.c_int(0), ctypes.c_float(0.5)
    address = ctypes.cast(library.one, ctypes.c_void_p).value
    assert address is not None
    for backend in by_threads:
        calls.value = 0
        nodes = {
            0.5: ops.map_custom1(a, library.one, n_tasks, factor),
            0.25: ops.map_custom1(
                ops.scale(a, 0.5), aggml.unsafe.c_function(address), n_tasks, ctypes.pointer(factor)
            ),
            7.0: ops.map_custom3(a, b, b, library.three, n_tasks),
            3.0: ops.custom_4d("f32", 100, 301, 1, 1, [a, b], 2, library.any, n_tasks, calls),
        }
        for by, node in nodes.items():
            result = compute(backend, node, values).reshape(301, 100)
            assert np.array_equal(result, x * np.float32(by) + rows)
        # 30100 elements, 4096 for each task
        assert calls.value == (7 if n_tasks == -1 else n_tasks)


def test_a_python_function_wrapped_by_ctypes_is_one_in_c(any_backend: aggml.Backend) -> None:
    threads: set[int] = set()
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
    )

    def note(dst: int, a: int, ith: int, nth: int, userdata: int) -> None:
        threads.add(threading.get_ident())
        assert (nth, userdata) == (4, 77)

    a = leaf()
    compute(any_backend, ops.map_custom1_inplace(ops.neg(a), kind(note), 4, 77), {a: X})
    assert threads
