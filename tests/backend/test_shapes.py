"""Shapes of the arrays that get and run give: the rank that was built, or what `shape=` asks for.

Here: both loops, backends and schedulers. Not here: the rank that each builder makes
(ops/test_ranks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.cpu import CPUBackend


def t(*ne: int) -> Tensor:
    return new_tensor("f32", ne)


@pytest.fixture
def scheduler(cpu: CPUBackend) -> Iterator[aggml.Scheduler]:
    with aggml.Scheduler([cpu]) as opened:
        yield opened


@pytest.mark.parametrize("n", [1, 2])
async def test_a_batch_of_one_comes_back_as_a_batch(cpu: CPUBackend, n: int) -> None:
    w, x = t(8, 4), t(8, n)
    y = ops.add(ops.mul_mat(w, x), t(4))
    graph = Graph(y)
    cpu.alloc_graph(graph)
    values = {leaf: np.ones(leaf.shape, np.float32) for leaf in graph.leafs}
    out = await cpu.run(graph, values, y)
    assert out.shape == y.shape == (n, 4)
    assert np.array_equal(out, np.full((n, 4), 9))
    assert (await cpu.get(x)).shape == (n, 8)
    assert (await cpu.get(y, shape=(4 * n,))).shape == (4 * n,)
    assert (await cpu.get(y, shape=(1, n, 4))).shape == (1, n, 4)
    assert y.host_view().shape == (n, 4)
    assert np.from_dlpack(y).shape == (n, 4)
    await cpu.set(x, np.zeros(8 * n, np.float32))  # any shape that has the elements in order


async def test_run_gives_the_shape_that_is_asked_for(
    cpu: CPUBackend, scheduler: aggml.Scheduler
) -> None:
    x = t(8, 3).set_name("x").set_input()
    y, z = ops.scale(x, 2.0).set_name("y"), ops.sum_rows(x)
    x_value = np.arange(24, dtype=np.float32).reshape(3, 8)
    graph, later = Graph(y, z), Graph(y, z)
    cpu.alloc_graph(graph)
    for _ in range(3):  # the first run, then prepared and replayed ones
        for give in (cpu.run(graph, {x: x_value}, y, shape=(2, 12)), None):
            out = (
                await scheduler.run(later, {x: x_value}, "y", shape=(2, 12))
                if give is None
                else await give
            )
            assert np.array_equal(out, 2 * x_value.reshape(2, 12))
        several: Any = {"shape": [(24,), None]}
        for outs in (
            await cpu.run(graph, {"x": x_value}, [y, z], **several),
            await scheduler.run(later, {"x": x_value}, ("y", z), **several),
            await (await scheduler.submit(later, {"x": x_value}, (y, z), **several)),
        ):
            assert [out.shape for out in outs] == [(24,), (3, 1)]
    with cpu.batch():
        batched = cpu.run(graph, {x: x_value}, y, shape=(4, 6))
    assert (await batched).shape == (4, 6)


@pytest.mark.parametrize(
    ("one", "shape", "error", "words"),
    [
        (True, (2, 11), aggml.LayoutMismatch, r"y f32 .*\(3, 8\).*\(2, 11\)"),
        (True, (-1, 12), aggml.InvalidArgument, "negative"),
        (True, 24, aggml.InvalidHandle, "shape=24"),
        (True, (2.0, 12), aggml.InvalidHandle, "extent"),
        (False, [(24,)], aggml.InvalidArgument, "shape has 1 entries for 2 outputs"),
        (False, (24, 3), aggml.InvalidHandle, "shape=24"),
        (False, 24, aggml.InvalidHandle, "shape=24"),
    ],
)
async def test_shapes_that_do_not_fit_are_refused_before_anything_is_queued(
    cpu: CPUBackend,
    scheduler: aggml.Scheduler,
    one: bool,
    shape: Any,
    error: type[Exception],
    words: str,
) -> None:
    x = t(8, 3)
    y, z = ops.scale(x, 2.0).set_name("y"), ops.sum_rows(x)
    graph = Graph(y, z)
    cpu.alloc_graph(graph)
    value = np.zeros((3, 8), np.float32)
    outputs: Any = y if one else [y, z]
    with pytest.raises(error, match=words):
        cpu.run(graph, {x: value}, outputs, shape=shape)
    assert cpu.pending == 0
    with pytest.raises(error, match=words):
        await scheduler.run(Graph(y, z), {x: value}, outputs, shape=shape)


def test_the_rank_shows_in_messages_and_text() -> None:
    assert "[4, 1]" in repr(t(4, 1))
    with pytest.raises(aggml.LayoutMismatch, match=r"\[4, 1, 1\]"):
        ops.mul_mat(t(4, 1, 1), t(5))


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
async def test_from_arrays_and_to_arrays(cpu: CPUBackend, dtype: str) -> None:
    kind = aggml.DType.parse(dtype)
    x = aggml.empty((1, 1, 32), kind)
    x[...] = 1
    a = aggml.new_tensor(kind, (32, 1, 1))
    cpu.alloc([a])
    await cpu.set(a, x)
    assert (await cpu.get(a)).shape == x.shape
    if kind.numpy is not None:
        assert aggml.from_dlpack(x).shape == x.shape
