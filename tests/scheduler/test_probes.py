"""Probes 16 to 22: splits, offload, ops that follow their weights, pins, callbacks, pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

Array = np.ndarray[Any, Any]


def weights(be: aggml.Backend, ne: tuple[int, ...], name: str) -> aggml.Tensor:
    t = new_tensor("f32", ne=ne, name=name)
    be.alloc([t], usage="weights")
    assert be.set(t, np.ones(t.shape, np.float32)).wait(60)
    return t


def pair(**options: Any) -> tuple[aggml.Backend, aggml.Backend]:
    return SimDevice("SIM", **options).backend(), aggml.get_device("CPU").backend(n_threads=1)


def mlp(w: aggml.Tensor) -> tuple[Graph, aggml.Tensor, list[aggml.Tensor]]:
    x = new_tensor("f32", ne=(w.ne[0], 2), name="x").set_input()
    first = ops.mul_mat(w, x).set_name("first")
    middle = ops.soft_max(first).set_name("middle")
    last = ops.mul_mat(w, middle).set_name("last")
    return Graph(last), x, [first, middle, last]


async def test_probe_16_splits() -> None:
    gpu, cpu = pair()
    graph, x, nodes = mlp(weights(gpu, (8, 8), "w"))
    sched = Scheduler([gpu, cpu])
    sched.split_graph(graph)
    assert sched.n_splits == 1
    assert [sched.get_tensor_backend(n) for n in nodes] == [gpu] * 3

    gpu, cpu = pair(unsupported=["soft_max"])
    graph, x, nodes = mlp(weights(gpu, (8, 8), "w"))
    sched = Scheduler([gpu, cpu])
    plan = sched.plan(graph)
    assert sched.n_splits == 3
    assert [sched.get_tensor_backend(n) for n in nodes] == [gpu, cpu, gpu]
    copied = [[c.tensor.name for c in s.inputs] for s in plan.splits]
    assert copied == [["x"], ["first"], ["middle"]]
    got = await sched.run(graph, {x: np.ones((2, 8), np.float32)}, nodes[2])
    assert np.allclose(got, 1)


class Greedy(SimDevice):
    """Asks to be offloaded the products of large batches."""

    def offload_op(self, tensor: aggml.Tensor) -> bool:
        return tensor.op == "mul_mat" and tensor.ne[1] >= 32


async def test_probe_17_offload() -> None:
    for n, offload, where in ((64, True, 0), (2, True, 1), (64, False, 1)):
        gpu, cpu = Greedy("SIM").backend(), aggml.get_device("CPU").backend(n_threads=1)
        w = weights(cpu, (8, 8), "w")
        x = new_tensor("f32", ne=(8, n), name="x").set_input()
        y = ops.mul_mat(w, x)
        sched = Scheduler([gpu, cpu], op_offload=offload)
        graph = Graph(y)
        sched.split_graph(graph)
        assert sched.get_tensor_backend(y) is [gpu, cpu][where]
        got = await sched.run(graph, {x: np.ones((n, 8), np.float32)}, y)
        assert np.array_equal(got, np.full((n, 8), 8))


async def test_probe_18_rope_and_attention_do_not_follow_their_small_weights() -> None:
    gpu, cpu = pair()
    big, factors = weights(gpu, (8, 8), "big"), weights(cpu, (4,), "factors")
    x = new_tensor("f32", ne=(8, 2), name="x").set_input()
    pos = new_tensor("i32", ne=(2,), name="pos").set_input()
    q = ops.reshape_3d(ops.mul_mat(big, x), 8, 1, 2)
    y = ops.rope_ext(q, pos, factors, n_dims=8, mode="neox", freq_base=1e4)
    sched = Scheduler([gpu, cpu])
    sched.split_graph(Graph(y))
    assert sched.get_tensor_backend(y) is gpu
    k, v = weights(cpu, (8, 4, 1), "k"), weights(cpu, (8, 4, 1), "v")
    q = ops.reshape_3d(ops.mul_mat(big, x), 8, 2, 1)
    z = ops.flash_attn_ext(q, k, v, None, 1.0, 0.0, 0.0)
    sched.split_graph(Graph(z))
    assert sched.get_tensor_backend(z) is gpu


async def test_probe_19_the_upgrade_and_pins() -> None:
    device = aggml.get_device("CPU")
    one, two = device.backend(n_threads=1), device.backend(n_threads=1)
    x = new_tensor("f32", ne=(8,), name="x").set_input()
    y = ops.sqr(x)
    z = ops.neg(y)
    sched = Scheduler([one, two])
    sched.split_graph(Graph(z))
    # both have the same memory, so the nodes moved up to the backend of higher priority
    assert sched.get_tensor_backend(z) is one
    sched.set_tensor_backend(y, two)
    sched.split_graph(Graph(z))
    # the pin wins here; ggml moves the node up nevertheless
    assert sched.get_tensor_backend(y) is two


async def test_probe_20_again_and_anew() -> None:
    gpu, cpu = pair()
    graph, x, nodes = mlp(weights(gpu, (8, 8), "w"))
    async with Scheduler([gpu, cpu]) as sched:
        sched.alloc_graph(graph)
        with pytest.raises((aggml.AlreadyAllocated, aggml.InvalidState)):
            sched.alloc_graph(graph)
        data = np.random.default_rng(0).standard_normal((2, 8), np.float32)
        outs = []
        for _ in range(2):
            outs.append(await sched.run(graph, {x: data}, nodes[2]))  # noqa: PERF401 - one by one
        assert np.array_equal(outs[0], outs[1])
        sched.reset()
        other, x2, nodes2 = mlp(weights(gpu, (8, 8), "w2"))
        sched.alloc_graph(other)
        assert np.array_equal(await sched.run(other, {x2: data}, nodes2[2]), outs[0])


async def test_probe_21_the_callback() -> None:
    gpu, cpu = pair(unsupported=["soft_max"])
    graph, x, nodes = mlp(weights(gpu, (8, 8), "w"))
    asked: list[str] = []
    shown: list[str] = []

    def callback(node: aggml.Tensor, ask: bool) -> bool:
        (asked if ask else shown).append(node.name)
        return node.name == "middle" if ask else True

    data = {x: np.ones((2, 8), np.float32)}
    async with Scheduler([gpu, cpu]) as sched:
        sched.set_eval_callback(callback)
        await sched.run(graph, data, nodes[2])
        assert asked == ["first", "middle", "last"]
        assert shown == ["middle"]
        # false for the first node: the run ends there
        sched.set_eval_callback(lambda _node, ask: ask)
        with pytest.raises(aggml.Aborted):
            await sched.run(graph, data, nodes[2])
        sched.set_eval_callback(None)
        assert np.allclose(await sched.run(graph, data, nodes[2]), 1)


async def test_probe_22_three_in_flight() -> None:
    gpu, cpu = pair(unsupported=["soft_max"])
    w = weights(gpu, (8, 8), "w")
    graph, x, nodes = mlp(w)
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((8, 8), np.float32)
    await gpu.set(w, matrix)
    async with Scheduler([gpu, cpu], parallel=4) as sched:
        assert sched.n_copies == 4
        await sched.prepare(graph)
        given = [rng.standard_normal((2, 8), np.float32) for _ in range(3)]
        with gpu.stream.hold():
            futures = [await sched.submit(graph, {x: data}, nodes[2]) for data in given]
        for data, future in zip(given, futures, strict=True):
            inner = np.exp(data @ matrix.T - (data @ matrix.T).max(-1, keepdims=True))
            wanted = inner / inner.sum(-1, keepdims=True) @ matrix.T
            assert np.allclose(await future, wanted, rtol=1e-4, atol=1e-5)
